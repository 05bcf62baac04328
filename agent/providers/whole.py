"""Whole cards and slices in one book: what is left to whom. Pure.

A card that is given out whole is a grant like any other, with one token of the size of the card. So placement, start
gate, checkpoint and reconciliation count it without knowing of it. Device ids are tokens here as well (a race between
the two lists can end with a card under another one's name), and the two lists show the kubelet as many healthy devices
as there are free cards, or slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.discovery.source import Inventory
from agent.model import Gpu, NodeState, Placement, Request, gpu_tokens
from agent.placement import Policy, place
from agent.placement.pairs import best_effort
from agent.providers.values import Device
from agent.state.records import Book, Hold, whole_token

__all__ = ["Choice", "choose", "devices", "free_cards", "prefer", "slices_withheld"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The cards that serve a request. waiting: some of them are not free yet."""

    holds: tuple[Hold, ...]
    waiting: bool


def free_cards(book: Book, gpus: Sequence[Gpu]) -> frozenset[str]:
    """The healthy cards of which nobody has anything."""
    used = {share.gpu for one in book.allocations(gpus) for share in one.shares}
    return frozenset(gpu.uuid for gpu in gpus if gpu.healthy and gpu.slices and gpu.uuid not in used)


def devices(book: Book, gpus: Sequence[Gpu]) -> tuple[Device, ...]:
    """Every card as a device. As many free ones are healthy as there are free cards, those of the same name first.

    One that somebody has is as healthy as the card behind it.
    """
    health = {gpu.uuid: gpu.healthy for gpu in gpus}
    behind = {
        token: hold.gpu
        for grant in book.grants
        if grant.whole
        for hold in grant.holds
        for token in grant.kept.intersection(hold.tokens)
    }
    free = free_cards(book, gpus)
    unheld = [gpu.uuid for gpu in gpus if whole_token(gpu.uuid) not in behind]
    named_first = sorted(unheld, key=lambda uuid: (uuid not in free, not health[uuid]))
    good = {uuid for uuid in named_first[: len(free)] if health[uuid]}
    return tuple(
        Device(
            gpu.uuid,
            health.get(behind[whole_token(gpu.uuid)], False)
            if whole_token(gpu.uuid) in behind
            else gpu.uuid in good,
            gpu.numa_node,
        )
        for gpu in gpus
    )


def slices_withheld(book: Book, gpus: Sequence[Gpu]) -> frozenset[str]:
    """The free slices that nobody can have because their cards are given out whole.

    Never one that a container has: the kubelet takes a container whose devices are unhealthy for broken. Where another
    card's container has some of a whole card's names, slices named after that other card are withheld in their place.
    """
    cards = {gpu.uuid: gpu for gpu in gpus if gpu.healthy}
    taken = {share.gpu for grant in book.grants if grant.whole for share in grant.shares} & set(cards)
    if not taken:
        return frozenset()
    held = frozenset(token for grant in book.grants for token in grant.kept)
    used: dict[str, int] = {}
    for one in book.allocations(gpus):
        for share in one.shares:
            used[share.gpu] = used.get(share.gpu, 0) + share.slices
    lost = sum(cards[uuid].slices for uuid in taken)
    found: list[str] = []
    for uuid in sorted(cards, key=lambda uuid: (uuid not in taken, cards[uuid].index)):
        free = [token for token in gpu_tokens(cards[uuid]) if token not in held]
        surplus = len(free) - max(0, cards[uuid].slices - used.get(uuid, 0))
        count = max(0, min(surplus, lost - len(found)))
        found += free[len(free) - count :]
    return frozenset(found)


def choose(book: Book, gpus: Sequence[Gpu], wanted: Sequence[str]) -> Choice | None:
    """The cards behind the devices WANTED: those of the same names if they are free, else others that are.

    When too few are free, the containers on the least used ones are waited for. None when there are not so many cards.
    """
    free = free_cards(book, gpus)
    used = {
        share.gpu: share.slices + 1 for one in book.allocations(gpus) for share in one.shares
    }  # the +1: any holder counts
    nodes = {gpu.numa_node for gpu in gpus if gpu.uuid in wanted}

    def rank(gpu: Gpu) -> tuple[object, ...]:
        return (
            gpu.uuid not in free,
            not gpu.healthy,
            gpu.uuid not in wanted,
            gpu.numa_node not in nodes,
            used.get(gpu.uuid, 0),
            gpu.index,
        )

    chosen = sorted((gpu for gpu in gpus if gpu.slices), key=rank)[: len(wanted)]
    if len(chosen) < len(wanted):
        return None
    others = [uuid for uuid in wanted if uuid not in {gpu.uuid for gpu in chosen}]
    names = {gpu.uuid: gpu.uuid if gpu.uuid in wanted else others.pop(0) for gpu in chosen}
    holds = tuple(
        Hold(gpu.uuid, gpu.bytes_of(gpu.slices), (whole_token(names[gpu.uuid]),))
        for gpu in sorted(chosen, key=lambda gpu: gpu.index)
    )
    return Choice(holds, waiting=any(gpu.uuid not in free for gpu in chosen))


def prefer(
    book: Book,
    inventory: Inventory,
    policy: Policy,
    available: Sequence[str],
    *,
    must_include: Sequence[str] = (),
    size: int,
) -> tuple[str, ...]:
    """SIZE devices whose cards placement would choose for their links; with others fixed, those best linked to them."""
    gpus = inventory.gpus
    free = free_cards(book, gpus)
    rest = frozenset(uuid for uuid in available if uuid in free and uuid not in must_include)
    chosen: tuple[str, ...] = ()
    if not must_include and rest:
        node = NodeState.build(gpus, inventory.topology, book.allocations(gpus))
        found = place(node, Request(gpus=size, only=rest), policy)
        chosen = found.uuids if isinstance(found, Placement) else ()
    if not chosen:
        position = {gpu.uuid: number for number, gpu in enumerate(gpus)}
        fixed = [position[uuid] for uuid in must_include if uuid in position]
        cards = best_effort(
            inventory.topology, [*fixed, *(position[uuid] for uuid in sorted(rest))], fixed, size
        )
        chosen = tuple(gpus[number].uuid for number in cards or ())
    order = [*must_include, *chosen, *sorted(rest), *available]
    return tuple(dict.fromkeys(order))[:size]
