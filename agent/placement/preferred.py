"""Which device ids to prefer, so that the kubelet's books agree with where placement will put the slices.

The kubelet's choice does not bind placement: ids are tokens. But as long as it takes the preferred ones, the
ids a pod holds are named after the cards it uses, NUMA hints are true, and what is left on each card is left
in ids too. The answer is a preference: the kubelet may take other ids, and then placement decides anew.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agent.model import NodeState, Placement, Request, Share, format_token, parse_token
from agent.placement.dispatch import in_total
from agent.placement.pairs import best_effort, pair_score
from agent.placement.policy import Policy
from agent.placement.waiting import Waiting
from agent.placement.wanted import place, place_waiting


def preferred_tokens(
    state: NodeState,
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    *,
    request: Request | None = None,
    policy: Policy = Policy.GAIA,
) -> tuple[str, ...]:
    """Return `size` device ids: those that must be included, then ids of the cards that placement would choose.

    available: the ids that may be taken, including those of must_include; they can be a part of what is free,
    such as one NUMA node. Where the chosen cards have too few ids the nearest other cards fill up; fewer than
    `size` come back only if fewer are available. Nothing for a size below 1 or below what must be included.
    TokenError.
    """
    must = list(dict.fromkeys((token.uuid, token.number) for token in map(parse_token, must_include)))
    spare = _by_card(available)
    kept: dict[str, int] = {}
    for uuid, number in must:
        spare.setdefault(uuid, set()).discard(number)
        kept[uuid] = kept.get(uuid, 0) + 1
    if size < 1 or len(must) > size:
        return ()
    counts = {uuid: count for uuid in spare if (count := len(spare[uuid]) + kept.get(uuid, 0))}
    shares = _choose(state, counts, kept, in_total(size, request), policy)
    taken = list(must)
    for share in shares:
        own = sorted(spare.get(share.gpu, ()))[: max(0, share.slices - kept.get(share.gpu, 0))]
        spare.get(share.gpu, set()).difference_update(own)
        taken += [(share.gpu, number) for number in own]
    if len(taken) < size:
        chosen = [share.gpu for share in shares] or list(kept)
        nearest = {uuid: rank for rank, uuid in enumerate(_by_distance(state, chosen))}
        for uuid in sorted(spare, key=lambda uuid: (nearest.get(uuid, len(nearest)), uuid)):
            taken += [(uuid, number) for number in sorted(spare[uuid])]
    return tuple(format_token(uuid, number) for uuid, number in taken[:size])


def _by_card(texts: Iterable[str]) -> dict[str, set[int]]:
    """Return the numbers of each card; the kubelet sends a thousand ids, and the answer waits for it."""
    found: dict[str, set[int]] = {}
    for token in map(parse_token, texts):
        numbers = found.get(token.uuid)
        if numbers is None:
            numbers = found[token.uuid] = set()
        numbers.add(token.number)
    return found


def _choose(
    state: NodeState,
    counts: Mapping[str, int],
    kept: Mapping[str, int],
    wanted: Request,
    policy: Policy,
) -> tuple[Share, ...]:
    """Return the shares that placement would choose among the cards that have ids to give.

    counts: ids by card. kept: those of them that must be included.
    """
    for cards in _card_sets(state, counts, set(kept), wanted):
        placement = place(state, replace(wanted, only=cards), policy)
        if isinstance(placement, Placement):
            return placement.shares
    named = _allowed(wanted, counts)
    waiting = place_waiting(state, replace(wanted, only=named), policy) if named else None
    return waiting.placement.shares if isinstance(waiting, Waiting) else ()


def _card_sets(
    state: NodeState, counts: Mapping[str, int], kept: set[str], wanted: Request
) -> Iterator[frozenset[str]]:
    """Yield the sets of cards to try: with the ids that must be included, with enough ids, with any."""
    size = wanted.total or 0
    cards = {card.uuid: card for card in state.gpus}
    enough = {uuid for uuid in counts if uuid in cards and counts[uuid] >= min(size, cards[uuid].slices)}
    sets = [kept, _around(state, kept, enough, size), enough, set(counts)]
    for uuids in sets:
        allowed = _allowed(wanted, uuids)
        if allowed:
            yield allowed


def _around(state: NodeState, kept: set[str], enough: set[str], size: int) -> set[str]:
    """Return the best set of whole cards that includes those already fixed (best-effort, must-include)."""
    if not kept or not kept <= {card.uuid for card in state.gpus}:
        return set()
    per_card = state.gpu(min(kept)).slices
    positions = [state.position(uuid) for uuid in sorted(enough | kept)]
    must = [state.position(uuid) for uuid in sorted(kept)]
    cards = best_effort(state.topology, positions, must, -(-size // per_card)) if per_card else None
    return {state.gpus[position].uuid for position in cards or ()}


def _allowed(wanted: Request, uuids: Iterable[str]) -> frozenset[str]:
    named = frozenset(uuids)
    return named & wanted.only if wanted.only else named


def _by_distance(state: NodeState, chosen: Sequence[str]) -> list[str]:
    """Return all cards, those best linked to the chosen ones first."""
    near = [position for position, card in enumerate(state.gpus) if card.uuid in chosen]

    def key(position: int) -> tuple[bool, int, int]:
        return (
            position not in near,
            -sum(pair_score(state.topology, position, other) for other in near),
            position,
        )

    return [state.gpus[position].uuid for position in sorted(range(len(state.gpus)), key=key)]
