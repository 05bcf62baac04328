"""Two and a half cards as two whole ones and half of a third: the "remainder" shape.

The Gaia paper leaves numbers such as 2.5 to future work because unequal cards cannot compute in parallel. The
default shape therefore makes the cards equal, and is an ordinary multi-slice request; this one is for jobs
that know what to do with a smaller card. The extra part prefers a fragment to breaking a card, even across a
slower link.
"""

from collections.abc import Iterator

from agent.placement.pool_state import PoolState
from agent.placement.subset import Search, Weights, cheapest
from agent.placement.tree import bits

_Key = tuple[int, int, int, int, int, int, int, tuple[int, ...], int]


def choose(pool_state: PoolState, whole_count: int, tail: int, cores: int) -> tuple[int, int] | None:
    """Return `whole_count` whole cards and another card with `tail` slices left; None if they are not there."""
    best: tuple[_Key, int, int] | None = None
    for extra in _extras(pool_state, tail, cores):
        for cards in _whole_sets(pool_state, whole_count, extra):
            lowest = next(card for card in _alike(pool_state, tail, cores, extra) if not cards >> card & 1)
            key = _key(pool_state, cards, lowest)
            if best is None or key < best[0]:
                best = (key, cards, lowest)
    return best[1:] if best else None


def _key(pool_state: PoolState, cards: int, extra: int) -> _Key:
    tree, together = pool_state.tree, cards | 1 << extra
    return (
        tree.bottleneck(cards),
        tree.total(cards),
        pool_state.whole >> extra & 1,
        tree.bottleneck(together),
        tree.total(together),
        pool_state.free[extra],
        pool_state.left_after(together),
        tuple(bits(cards)),
        extra,
    )


def _alike(pool_state: PoolState, tail: int, cores: int, card: int) -> list[int]:
    """Return the cards that can stand in for `card` as the extra one without changing any cost."""
    return [
        other
        for other in bits(pool_state.fitting(tail, cores))
        if pool_state.tree.twins[other] == pool_state.tree.twins[card]
        and pool_state.free[other] == pool_state.free[card]
        and (pool_state.whole >> other & 1) == (pool_state.whole >> card & 1)
    ]


def _extras(pool_state: PoolState, tail: int, cores: int) -> list[int]:
    """Return one card, the last, of every kind of card that could give the extra part."""
    fitting = bits(pool_state.fitting(tail, cores))
    return [card for card in fitting if _alike(pool_state, tail, cores, card)[-1] == card]


def _whole_sets(pool_state: PoolState, count: int, extra: int) -> Iterator[int]:
    """Yield the best sets of whole cards to go with `extra`, one per limit on how far from it they may be.

    On a uniform tree that distance follows from the set, so one search is enough.
    """
    tree, whole = pool_state.tree, pool_state.whole & pool_state.usable & ~(1 << extra)
    weights = Weights((0,) * len(tree.cost), tree.cost[extra])
    limits = {max(tree.cost[extra])} if tree.uniform else {tree.cost[extra][card] for card in bits(whole)}
    for limit in sorted(limits):
        near = sum(1 << card for card in bits(whole) if tree.cost[extra][card] <= limit)
        cards = cheapest(Search(tree, pool_state.whole & ~(1 << extra), near, count, weights))
        if cards is not None:
            yield cards
