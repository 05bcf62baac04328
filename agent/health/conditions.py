"""From what happens to a GPU to whether it may be given out: strikes, cooldown, relapses. Pure.

A strike makes a GPU unhealthy at once. It is well again when nothing has struck it for the cooldown. One that falls
unhealthy again within a day of that waits twice as long, and so on: a GPU that errs every quarter of an hour must not
come and go with each. A state that lasts (lost, a reset is due) strikes at every look, so cooldown begins when it ends.

A driver that does not answer says nothing about the GPU, so silence is no strike: the GPU is out of service while it
lasts, and back with the first answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agent.inventory.source import Vitals

__all__ = ["SILENCES", "Condition", "GpuHealth", "Silence", "settled", "silences", "standing", "struck"]

_REMEMBERED = 86400.0  # seconds from a recovery in which a new strike is a relapse
_MOST_RELAPSES = 7  # 10 minutes become 21 hours
SILENCES = 2
"""Questions in a row without an answer until a GPU is out of service: a driver that is being opened anew answers the
next one."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is wrong. code: short and from a fixed set ("xid-79"), for metrics; text: for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One GPU. Times are Unix times in seconds.

    conditions: none when it is well. since: when it fell unhealthy. last: the latest strike. relapses: how often
    cooldown has doubled. recovered: when it last was well again. ecc: the last seen count of uncorrectable errors.
    """

    conditions: tuple[Condition, ...] = ()
    since: float = 0.0
    last: float = 0.0
    relapses: int = 0
    recovered: float = 0.0
    ecc: int | None = None

    @property
    def unhealthy(self) -> bool:
        """Whether it gets no new containers."""
        return bool(self.conditions)

    @property
    def text(self) -> str:
        """What is wrong, in one line."""
        return "; ".join(condition.text for condition in self.conditions)

    def cooldown(self, seconds: float) -> float:
        """How long it must be quiet when the first time needs SECONDS."""
        return float(seconds * 2**self.relapses)


@dataclass(frozen=True, slots=True)
class Silence:
    """A GPU for which the driver did not answer. count: questions in a row. text: why, for people."""

    count: int
    text: str

    @property
    def lasting(self) -> bool:
        """Whether the GPU gets no new containers for it."""
        return self.count >= SILENCES


def silences(before: Mapping[str, Silence], vitals: Mapping[str, Vitals]) -> dict[str, Silence]:
    """The silences after the driver was asked for VITALS, by UUID."""
    return {
        uuid: Silence(before[uuid].count + 1 if uuid in before else 1, one.silent)
        for uuid, one in vitals.items()
        if one.silent
    }


def struck(gpu: GpuHealth, conditions: Iterable[Condition], now: float) -> GpuHealth:
    """The GPU after AILMENTS were seen at NOW; unchanged by none."""
    found = {condition.code: condition for condition in conditions}
    if not found:
        return gpu
    merged = tuple({**{condition.code: condition for condition in gpu.conditions}, **found}.values())
    if gpu.unhealthy:
        return replace(gpu, conditions=merged, last=max(now, gpu.last))
    again = gpu.recovered > 0 and now - gpu.recovered < _REMEMBERED
    relapses = min(gpu.relapses + 1, _MOST_RELAPSES) if again else 0
    return replace(gpu, conditions=merged, since=now, last=now, relapses=relapses)


def settled(gpu: GpuHealth, cooldown: float, now: float) -> GpuHealth:
    """The GPU at NOW: well again when it was quiet for long enough. A clock that was set back starts anew."""
    if not gpu.unhealthy:
        return gpu
    if now < gpu.last:
        return replace(gpu, last=now)
    if now - gpu.last < gpu.cooldown(cooldown):
        return gpu
    return replace(gpu, conditions=(), recovered=now)


def standing(gpu: GpuHealth, vitals: Vitals) -> tuple[GpuHealth, tuple[Condition, ...]]:
    """What VITALS say is wrong now, and the GPU with its counter brought up to date.

    A count that was never seen before is where counting begins: errors of the past are no news. One that is smaller
    than before was reset with the GPU.
    """
    if vitals.silent:
        return gpu, ()
    found = []
    if vitals.lost:
        found.append(
            Condition("lost", "the GPU does not answer (lost); only a new start of the machine mends it")
        )
    if vitals.recovery:
        found.append(Condition("recovery", f"the driver asks for: {vitals.recovery}"))
    if vitals.remap_failed:
        found.append(
            Condition("remapping", "a faulty memory row could not be remapped; the GPU is to be replaced")
        )
    if vitals.uncorrectable is None:
        return gpu, tuple(found)
    if gpu.ecc is not None and vitals.uncorrectable > gpu.ecc:
        count = vitals.uncorrectable - gpu.ecc
        found.append(Condition("ecc", f"{count} uncorrectable memory error{'s' if count > 1 else ''}"))
    return replace(gpu, ecc=vitals.uncorrectable), tuple(found)
