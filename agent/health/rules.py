"""From what happens to a card to whether it may be given out: strikes, probation, relapses. Pure.

A strike makes a card sick at once. It is well again when nothing has struck it for the probation. One that falls sick
again within a day of that waits twice as long, and so on: a card that errs every quarter of an hour must not come and
go with each. A state that lasts (lost, a reset is due) strikes at every look, so probation begins when it ends.

A driver that does not answer says nothing about the card, so silence is no strike: the card is out of service while it
lasts, and back with the first answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agent.discovery.source import Vitals

__all__ = ["SILENCES", "Ailment", "CardHealth", "Silence", "settled", "silences", "standing", "struck"]

_REMEMBERED = 86400.0  # seconds from a recovery in which a new strike is a relapse
_MOST_RELAPSES = 7  # 10 minutes become 21 hours
SILENCES = 2
"""Questions in a row without an answer until a card is out of service: a driver that is being opened anew answers the
next one."""


@dataclass(frozen=True, slots=True)
class Ailment:
    """One thing that is wrong. code: short and from a fixed set ("xid-79"), for metrics; text: for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class CardHealth:
    """One card. Times are Unix times in seconds.

    ailments: none when it is well. since: when it fell sick. last: the latest strike. relapses: how often probation has
    doubled. recovered: when it last was well again. ecc: the last seen count of uncorrectable errors.
    """

    ailments: tuple[Ailment, ...] = ()
    since: float = 0.0
    last: float = 0.0
    relapses: int = 0
    recovered: float = 0.0
    ecc: int | None = None

    @property
    def sick(self) -> bool:
        """Whether it gets no new containers."""
        return bool(self.ailments)

    @property
    def text(self) -> str:
        """What is wrong, in one line."""
        return "; ".join(ailment.text for ailment in self.ailments)

    def probation(self, seconds: float) -> float:
        """How long it must be quiet when the first time needs SECONDS."""
        return float(seconds * 2**self.relapses)


@dataclass(frozen=True, slots=True)
class Silence:
    """A card for which the driver did not answer. count: questions in a row. text: why, for people."""

    count: int
    text: str

    @property
    def lasting(self) -> bool:
        """Whether the card gets no new containers for it."""
        return self.count >= SILENCES


def silences(before: Mapping[str, Silence], vitals: Mapping[str, Vitals]) -> dict[str, Silence]:
    """The silences after the driver was asked for VITALS, by UUID."""
    return {
        uuid: Silence(before[uuid].count + 1 if uuid in before else 1, one.silent)
        for uuid, one in vitals.items()
        if one.silent
    }


def struck(card: CardHealth, ailments: Iterable[Ailment], now: float) -> CardHealth:
    """The card after AILMENTS were seen at NOW; unchanged by none."""
    found = {ailment.code: ailment for ailment in ailments}
    if not found:
        return card
    merged = tuple({**{ailment.code: ailment for ailment in card.ailments}, **found}.values())
    if card.sick:
        return replace(card, ailments=merged, last=max(now, card.last))
    again = card.recovered > 0 and now - card.recovered < _REMEMBERED
    relapses = min(card.relapses + 1, _MOST_RELAPSES) if again else 0
    return replace(card, ailments=merged, since=now, last=now, relapses=relapses)


def settled(card: CardHealth, probation: float, now: float) -> CardHealth:
    """The card at NOW: well again when it was quiet for long enough. A clock that was set back starts anew."""
    if not card.sick:
        return card
    if now < card.last:
        return replace(card, last=now)
    if now - card.last < card.probation(probation):
        return card
    return replace(card, ailments=(), recovered=now)


def standing(card: CardHealth, vitals: Vitals) -> tuple[CardHealth, tuple[Ailment, ...]]:
    """What VITALS say is wrong now, and the card with its counter brought up to date.

    A count that was never seen before is where counting begins: errors of the past are no news. One that is smaller
    than before was reset with the card.
    """
    if vitals.silent:
        return card, ()
    found = []
    if vitals.lost:
        found.append(
            Ailment("lost", "the card does not answer (lost); only a new start of the machine mends it")
        )
    if vitals.recovery:
        found.append(Ailment("recovery", f"the driver asks for: {vitals.recovery}"))
    if vitals.remap_failed:
        found.append(
            Ailment("remapping", "a faulty memory row could not be remapped; the card is to be replaced")
        )
    if vitals.uncorrectable is None:
        return card, tuple(found)
    if card.ecc is not None and vitals.uncorrectable > card.ecc:
        count = vitals.uncorrectable - card.ecc
        found.append(Ailment("ecc", f"{count} uncorrectable memory error{'s' if count > 1 else ''}"))
    return replace(card, ecc=vitals.uncorrectable), tuple(found)
