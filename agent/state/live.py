"""Limits of running containers: what each may use now, whether a change fits, and what the kubelet must not give out.

What a container was promised is in the book; what its limits page says follows from the book and from who is alone on a
card. Pure: the book, the cards and the ledgers' numbers in, decisions out, so that a successor decides the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from agent import units
from agent.model import CORES_PER_CARD, Gpu, gpu_tokens
from agent.placement import limit_slices
from agent.state.records import Book, Grant, LiveLimit
from agent.state.shared import others_bytes, real_part

__all__ = ["MIB", "Refusal", "limits_now", "physical_now", "resized", "rounded", "with_limits", "withheld"]

MIB = 1 << 20
Present = Mapping[str, Mapping[str, int]]
"""Bytes that living processes hold, by grant and GPU."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a change cannot be made, for a person. mistake: it never can, as it was asked."""

    detail: str
    mistake: bool = False


def rounded(memory_bytes: int) -> int:
    """Whole MiB, upwards."""
    return -(-memory_bytes // MIB) * MIB


def limits_now(book: Book, gpus: Sequence[Gpu], present: Present) -> dict[str, dict[str, tuple[int, int]]]:
    """What every limits page should say: bytes and per cent of compute (0: all of it), by grant and GPU.

    An elastic container that is alone on a card may use the card, or as much of it as it named. Alone: nobody else was
    promised any of it, not even behind the start gate, and no living process of another container holds any of it.
    """
    cards = {gpu.uuid: gpu for gpu in gpus}
    holders: dict[str, set[str]] = {}
    for grant in book.grants:
        present_here = (gpu for gpu, count in present.get(grant.id, {}).items() if count)
        for gpu in {*grant.promised, *present_here}:
            holders.setdefault(gpu, set()).add(grant.id)
    return {
        grant.id: {
            gpu: _limit_now(grant, cards[gpu], quota, alone=holders.get(gpu) == {grant.id})
            if gpu in cards
            else (quota, grant.cores_of(gpu))
            for gpu, quota in grant.quota().items()
        }
        for grant in book.grants
    }


def _limit_now(grant: Grant, card: Gpu, quota: int, *, alone: bool) -> tuple[int, int]:
    elastic = grant.policy.elastic and alone and not (grant.gone or grant.waiting or grant.undecided)
    if not elastic:
        return quota, grant.cores_of(card.uuid)
    whole = card.slices if grant.physical.get(card.uuid) else card.own_slices
    most = limit_slices(
        quota // card.slice_bytes, whole, alone=True, elastic=True, max_slices=grant.policy.max_slices
    )
    return max(quota, card.bytes_of(most)), 0


def physical_now(grant: Grant, gpus: Sequence[Gpu], limits: Mapping[str, int]) -> dict[str, int]:
    """How much of each card's LIMITS may be the card's own memory: what an elastic container has beyond its quota is
    the card's own too, as far as that goes, since nobody else uses it.
    """
    own = {gpu.uuid: gpu.bytes_of(gpu.own_slices) for gpu in gpus}
    quota = grant.quota()
    return {
        gpu: max(1, min(count + max(0, limits.get(gpu, 0) - quota[gpu]), own.get(gpu, count)))
        for gpu, count in grant.physical.items()
    }


def resized(
    book: Book,
    grant: Grant,
    gpus: Sequence[Gpu],
    present: Present,
    *,
    memory: Mapping[str, int] | None = None,
    cores: Mapping[str, int] | None = None,
) -> Grant | Refusal:
    """GRANT with the MEMORY in bytes and CORES in per cent that are given for some of its cards, or why not.

    Shrinking always works. Growing needs room beside what the others on the card were promised, or hold where that is
    more: all cards or none.
    """
    cards = {gpu.uuid: gpu for gpu in gpus}
    sizes = {gpu: rounded(count) for gpu, count in (memory or {}).items()}
    shares = dict(cores or {})
    for gpu in {**sizes, **shares}:
        refusal = _refusal(
            book, grant, cards.get(gpu), gpu, present, size=sizes.get(gpu), share=shares.get(gpu)
        )
        if refusal is not None:
            return refusal
    return with_limits(grant, sizes, shares)


def with_limits(grant: Grant, memory: Mapping[str, int], cores: Mapping[str, int]) -> Grant:
    """GRANT with these limits, unasked; the same grant where it has them already."""
    known = {one.gpu: one for one in grant.limits}
    limits = []
    for hold in grant.holds:
        one = known.get(hold.gpu, LiveLimit(hold.gpu))
        if hold.gpu in memory:
            size = memory[hold.gpu]
            one = replace(one, memory_bytes=None if size == hold.memory_bytes else size)
        if hold.gpu in cores:
            share = cores[hold.gpu]
            one = replace(one, cores=None if share == grant.policy.cores else share)
        if one.memory_bytes is not None or one.cores is not None:
            limits.append(one)
    if tuple(limits) == grant.limits:
        return grant
    return replace(grant, limits=tuple(limits), resizes=grant.resizes + 1)


def withheld(book: Book, gpus: Sequence[Gpu], uncounted: Collection[str] = ()) -> frozenset[str]:
    """The free tokens that cannot be had because containers have grown beyond theirs, or have what nobody counts.

    The kubelet counts tokens, and a grown container has no more of them than before. UNCOUNTED: grants whose devices
    the kubelet counts as free and whose pods the scheduler does not count either. Nothing else is withheld, and never a
    token that somebody has: the kubelet takes a container whose devices are unhealthy for broken. Tokens of the grown
    containers' cards come first, and of each card those with the largest numbers.
    """
    units_of = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
    growth: dict[str, int] = {}
    promised: dict[str, int] = {}
    for grant in book.grants:
        given = {hold.gpu: 0 if grant.id in uncounted else hold.memory_bytes for hold in grant.holds}
        for gpu, count in grant.promised.items():
            promised[gpu] = promised.get(gpu, 0) + count
            growth[gpu] = growth.get(gpu, 0) + max(0, count - given[gpu])
    if not any(growth.values()):
        return frozenset()
    held = frozenset(token for grant in book.grants if grant.id not in uncounted for token in grant.kept)
    free = {gpu.uuid: [token for token in gpu_tokens(gpu) if token not in held] for gpu in gpus}
    room = {
        gpu.uuid: max(0, gpu.bytes_of(gpu.slices) - promised.get(gpu.uuid, 0)) // gpu.slice_bytes
        for gpu in gpus
    }
    grown = sum(-(-count // units_of[gpu]) for gpu, count in growth.items() if gpu in units_of)
    lost = min(grown, sum(map(len, free.values())) - sum(room.values()))
    found: list[str] = []
    for gpu in sorted(free, key=lambda uuid: (-growth.get(uuid, 0), uuid)):
        surplus = min(max(0, len(free[gpu]) - room[gpu]), max(0, lost - len(found)))
        found += free[gpu][len(free[gpu]) - surplus :]
    return frozenset(found)


def _refusal(
    book: Book,
    grant: Grant,
    card: Gpu | None,
    gpu: str,
    present: Present,
    *,
    size: int | None,
    share: int | None,
) -> Refusal | None:
    quota = grant.quota()
    if gpu not in quota:
        return Refusal(
            f"{grant.name} has no slices of {gpu}; it has some of {', '.join(quota)}", mistake=True
        )
    if size is not None and size < MIB:
        return Refusal("less than 1 MiB is no limit; delete the pod to take all away", mistake=True)
    if share is not None and not 0 <= share <= CORES_PER_CARD:
        return Refusal(f"{share} is no share of a card's compute; say 0 to {CORES_PER_CARD}", mistake=True)
    others = [other for other in book.grants if other.id != grant.id]
    if size is not None and size > quota[gpu]:
        if card is None:
            return Refusal(f"{gpu} is no longer on this node, so its share cannot grow")
        shared_out = grant.physical.get(gpu, 0) > 0
        whole = card.bytes_of(card.slices if shared_out else card.own_slices)
        if size > whole:
            return Refusal(f"{gpu} has {units.format_bytes(whole)} in all", mistake=True)
        held = {
            other.id: max(other.promised.get(gpu, 0), present.get(other.id, {}).get(gpu, 0))
            for other in others
        }
        real = sum(real_part(other, gpu, held[other.id]) for other in others)
        taken = others_bytes(grant, card, sum(held.values()), real)
        if taken + size > whole:
            free = max(0, whole - taken - quota[gpu])
            return Refusal(
                f"{units.format_bytes(size - quota[gpu])} more of {gpu} asked for, and {units.format_bytes(free)} are "
                f"free: {units.format_bytes(whole)} in all, {grant.name} has {units.format_bytes(quota[gpu])}"
                + "".join(
                    f", {_holder(other, gpu, present)}" for other in others if _holder(other, gpu, present)
                )
            )
    if share is not None and share > grant.cores_of(gpu):
        given = sum(other.cores_of(gpu) for other in others if gpu in other.promised)
        if given + share > CORES_PER_CARD:
            return Refusal(f"{CORES_PER_CARD - given}% of the compute of {gpu} are free, {share}% asked for")
    return None


def _holder(grant: Grant, gpu: str, present: Present) -> str:
    promised, used = grant.promised.get(gpu, 0), present.get(grant.id, {}).get(gpu, 0)
    if not promised and not used:
        return ""
    more = f" and uses {units.format_bytes(used)}" if used > promised else ""
    return f"{grant.name} has {units.format_bytes(promised)}{more}"
