"""Host memory that a node lends to its cards, so that they have more slices than fit their own memory.

Which card gets how much is decided once per card, by a rule that makes the most slices of it: what completes a slice
with the fewest bytes comes first. A card keeps what it was given, as containers count on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from agent.model.gpu import Gpu, count_slices


@dataclass(frozen=True, slots=True)
class Lending:
    """Bytes that the node lends to its cards together, and bytes for single cards (by UUID), which come on top."""

    node_bytes: int = 0
    by_gpu: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.node_bytes or self.by_gpu)


def lend(gpus: Iterable[Gpu], lending: Lending, given: Mapping[str, int]) -> tuple[Gpu, ...]:
    """GPUS with what LENDING lends them. given: what cards have been lent before, by UUID; they keep it.

    Bytes that complete no slice are lent to nobody.
    """
    cards = tuple(gpus)
    lent = {card.uuid: given.get(card.uuid, _own(card, lending)) for card in cards}
    left = lending.node_bytes - sum(
        max(0, count - lending.by_gpu.get(uuid, 0)) for uuid, count in given.items()
    )
    new = [card for card in cards if card.uuid not in given]
    while new:
        card = min(new, key=lambda card: (_missing(card, lent), lent[card.uuid], card.index))
        if _missing(card, lent) > left:
            break
        left -= _missing(card, lent)
        lent[card.uuid] += _missing(card, lent)
    return tuple(
        replace(
            card,
            host_bytes=lent[card.uuid],
            slices=count_slices(card.memory_bytes, card.slice_bytes, lent[card.uuid]),
        )
        if lent[card.uuid]
        else card
        for card in cards
    )


def _own(card: Gpu, lending: Lending) -> int:
    """What is lent to this card alone, as far as it makes slices."""
    whole = count_slices(card.memory_bytes, card.slice_bytes, lending.by_gpu.get(card.uuid, 0))
    return max(0, whole * card.slice_bytes - card.memory_bytes)


def _missing(card: Gpu, lent: Mapping[str, int]) -> int:
    """Bytes to the card's next slice."""
    have = card.memory_bytes + lent[card.uuid]
    return card.slice_bytes - have % card.slice_bytes
