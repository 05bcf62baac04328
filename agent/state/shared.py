"""What lent host memory changes in the book's arithmetic. Pure.

A card with lent memory has more slices than fit it. Containers that may use host memory count on all of them, but only
their physical share is real memory, which never leaves the card; the others count on the card's own memory alone. So
there are two views of a card, and a container is placed in its own: nobody without the wish for it is ever placed
beyond the card's own memory, and all together never beyond what it has with the lent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agent.model import Allocation, Gpu, Share
from agent.state.records import Book, Grant, Hold

__all__ = [
    "REAL",
    "host_need",
    "host_promised",
    "least_physical",
    "others_bytes",
    "own_view",
    "physical_share",
    "real_part",
    "split",
    "view",
]

MIB, GIB = 1 << 20, 1 << 30
REAL = "(card's own memory)"
"""Name of what stands for memory that the other view of a card has given away; no container has such a name."""


def own_view(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The cards with the slices of their own memory alone."""
    return tuple(replace(gpu, slices=gpu.own_slices, host_bytes=0) if gpu.host_bytes else gpu for gpu in gpus)


def real_part(grant: Grant, gpu: str, count: int) -> int:
    """Of COUNT bytes that GRANT has of a card, those that must be in the card's own memory."""
    physical = grant.physical.get(gpu, 0)
    return min(count, physical) if physical else count


def least_physical(memory_bytes: int) -> int:
    """The least of a quota that must be real: contexts, code and what frameworks take by handle cannot move."""
    return min(memory_bytes, max(memory_bytes // 8, GIB))


def physical_share(memory_bytes: int, own: int, host: int) -> int:
    """Bytes of a quota that are real memory on a card with OWN bytes and HOST bytes lent.

    Chosen so that on a fully used card the real memory of all and the rest of one container fit together: then each can
    have all its pages on the card while it is its turn. With p the part that is real, p x (own + host) is everybody's
    real memory and (1 - p) x memory the rest of one.
    """
    if memory_bytes >= own + host:
        return max(least_physical(memory_bytes), 0)
    exact = memory_bytes * max(0, own - memory_bytes) // (own + host - memory_bytes)
    rounded = exact // MIB * MIB
    return max(least_physical(memory_bytes), min(memory_bytes, rounded))


def view(
    book: Book, gpus: Sequence[Gpu], pod: str, *, host: bool, memory_bytes: int
) -> tuple[tuple[Gpu, ...], tuple[Allocation, ...]]:
    """The cards and what counts on them, for a container that may use host memory (HOST) or not.

    memory_bytes: what it asks for in all.
    """
    if not any(gpu.host_bytes for gpu in gpus):
        return tuple(gpus), book.allocations(gpus, pod)
    cards = tuple(gpus) if host else own_view(gpus)
    counted = book.allocations(cards, pod)
    physical = {grant.id: grant.physical for grant in book.grants}
    more = []
    for gpu in gpus:
        if not gpu.host_bytes:
            continue
        held = [(one.job, share.slices) for one in counted for share in one.shares if share.gpu == gpu.uuid]
        taken = sum(slices for _, slices in held)
        real = sum(_real_slices(gpu, slices, physical.get(job, {})) for job, slices in held)
        if host:
            room = gpu.own_slices * gpu.slice_bytes - _real_bytes(book, gpu)
            missing = gpu.slices - taken if room < least_physical(memory_bytes) else 0
        else:
            counted = tuple(_as_real(one, gpu, physical.get(one.job, {})) for one in counted)
            missing = max(0, taken - (gpu.slices - gpu.own_slices) - real)
        if missing > 0:
            more.append(Allocation(f"{REAL} {gpu.uuid}", (Share(gpu.uuid, missing),)))
    return cards, (*counted, *more)


def split(book: Book, grant: Grant, gpus: Sequence[Gpu]) -> Grant:
    """GRANT with its physical share of each card that has lent memory, where it may use that."""
    cards = {gpu.uuid: gpu for gpu in gpus if gpu.host_bytes}
    if not cards and not any(hold.physical_bytes for hold in grant.holds):
        return grant
    holds = []
    for hold in grant.holds:
        gpu, share = cards.get(hold.gpu), 0
        if grant.policy.oversubscribe and gpu is not None:
            share = _share_of(book, grant, hold, gpu)
        holds.append(replace(hold, physical_bytes=0 if share >= hold.memory_bytes else share))
    return replace(grant, holds=tuple(holds))


def others_bytes(grant: Grant, gpu: Gpu, everything: int, real: int) -> int:
    """Bytes of a card that count as taken for GRANT, in its own view: EVERYTHING others have there, REAL what of it is
    real memory."""
    if not gpu.host_bytes or grant.policy.exclusive or grant.whole:
        return everything
    own, lent = gpu.bytes_of(gpu.own_slices), gpu.bytes_of(gpu.slices - gpu.own_slices)
    if not grant.physical.get(gpu.uuid):
        return max(real, everything - lent)
    lacking = grant.physical[gpu.uuid] + real - own
    if lacking <= 0:
        return everything
    return max(everything, gpu.bytes_of(gpu.slices) - grant.quota().get(gpu.uuid, 0) + lacking)


def host_promised(book: Book, gpus: Sequence[Gpu]) -> dict[str, int]:
    """For each card with lent memory the bytes by which the promises of all containers in BOOK go beyond its own: what
    may have to lie on the host when all of them use what they have. Never more than the card was lent, for containers
    that have passed the start gate."""
    return {
        gpu.uuid: max(
            0, sum(one.promised.get(gpu.uuid, 0) for one in book.grants) - gpu.bytes_of(gpu.own_slices)
        )
        for gpu in gpus
        if gpu.host_bytes
    }


def host_need(book: Book, grant: Grant, used: Mapping[str, Mapping[str, int]], gpus: Sequence[Gpu]) -> int:
    """Bytes of host memory that have to be left so that GRANT may start, or have this quota: as much as all promises go
    beyond the cards' own memory, less what of that is in use and so taken from the host already. The memory that
    others were promised counts, too, since it is their pages that may have to make room. 0 where GRANT has no part in
    lent memory.

    used: bytes that living processes have, by grant and card. Containers that came later and wait themselves are not
    counted; whoever passes first has the memory.
    """
    if not any(gpu.host_bytes and gpu.uuid in grant.promised for gpu in gpus):
        return 0
    behind = [one.id for one in book.grants if one.waiting and one.number > grant.number]
    need = 0
    for gpu, beyond in host_promised(book.replaced([grant]).without(behind), gpus).items():
        own = next(one.bytes_of(one.own_slices) for one in gpus if one.uuid == gpu)
        there = sum(present.get(gpu, 0) for present in used.values()) - own
        need += max(0, beyond - max(0, there))
    return need


def _share_of(book: Book, grant: Grant, hold: Hold, gpu: Gpu) -> int:
    own = gpu.bytes_of(gpu.own_slices)
    room = own - _real_bytes(book.without([grant.id]), gpu)
    wanted = physical_share(hold.memory_bytes, own, gpu.bytes_of(gpu.slices - gpu.own_slices))
    return max(least_physical(hold.memory_bytes), min(wanted, room // MIB * MIB))


def _real_bytes(book: Book, gpu: Gpu) -> int:
    return sum(
        real_part(grant, gpu.uuid, grant.promised[gpu.uuid])
        for grant in book.grants
        if gpu.uuid in grant.promised
    )


def _real_slices(gpu: Gpu, slices: int, physical: Mapping[str, int]) -> int:
    own = physical.get(gpu.uuid, 0)
    return min(slices, -(-own // gpu.slice_bytes)) if own else slices


def _as_real(one: Allocation, gpu: Gpu, physical: Mapping[str, int]) -> Allocation:
    if not physical.get(gpu.uuid):
        return one
    shares = tuple(
        replace(share, slices=_real_slices(gpu, share.slices, physical)) if share.gpu == gpu.uuid else share
        for share in one.shares
    )
    return replace(one, shares=shares)
