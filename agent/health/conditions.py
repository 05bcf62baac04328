# SPDX-License-Identifier: Apache-2.0
"""Conditions of a GPU, and when it recovers from them: cooldown and relapses. Pure.

A condition makes a GPU unhealthy at once. The GPU recovers when no condition was seen for the cooldown. A relapse
within a day of that doubles the cooldown: a GPU that fails every quarter of an hour must not come and go each time. A
condition that lasts (lost, a reset is due) is seen at every poll, so its cooldown begins when it ends.

A driver that does not answer is no evidence about the GPU, so silence is no condition: the GPU gets no new containers
while the silence lasts, and gets them again with the first answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agent.inventory.source import Vitals

__all__ = [
    "SILENCES",
    "Condition",
    "GpuHealth",
    "Silence",
    "after_cooldown",
    "observed_conditions",
    "silences",
    "with_conditions",
]

_REMEMBERED = 86400.0  # seconds from a recovery in which a new condition is a relapse
_MOST_RELAPSES = 7  # 10 minutes become 21 hours
SILENCES = 2
"""Polls in a row without an answer until a GPU gets no new containers: a driver that is being reopened answers the next
poll."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is wrong. code: short and from a fixed set ("xid-79"), for metrics; text: for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One GPU. Times are Unix times in seconds.

    conditions: none while it is healthy. since: when it became unhealthy. last: when a condition was last seen.
    relapses: how often the cooldown has doubled. recovered: when it last recovered. ecc: the last seen count of
    uncorrectable errors.
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
        """Seconds without a condition until it recovers, where the first cooldown takes SECONDS."""
        return float(seconds * 2**self.relapses)


@dataclass(frozen=True, slots=True)
class Silence:
    """A GPU for which the driver did not answer. count: polls in a row. text: the reason, for people."""

    count: int
    text: str

    @property
    def lasting(self) -> bool:
        """Whether the GPU gets no new containers for it."""
        return self.count >= SILENCES


def silences(before: Mapping[str, Silence], vitals: Mapping[str, Vitals]) -> dict[str, Silence]:
    """The silences after a poll that returned VITALS, by UUID."""
    return {
        uuid: Silence(before[uuid].count + 1 if uuid in before else 1, signs.silent)
        for uuid, signs in vitals.items()
        if signs.silent
    }


def with_conditions(gpu: GpuHealth, conditions: Iterable[Condition], now: float) -> GpuHealth:
    """The GPU after CONDITIONS were seen at NOW; unchanged where there are none."""
    by_code = {condition.code: condition for condition in conditions}
    if not by_code:
        return gpu
    merged = tuple({**{condition.code: condition for condition in gpu.conditions}, **by_code}.values())
    if gpu.unhealthy:
        return replace(gpu, conditions=merged, last=max(now, gpu.last))
    again = gpu.recovered > 0 and now - gpu.recovered < _REMEMBERED
    relapses = min(gpu.relapses + 1, _MOST_RELAPSES) if again else 0
    return replace(gpu, conditions=merged, since=now, last=now, relapses=relapses)


def after_cooldown(gpu: GpuHealth, cooldown: float, now: float) -> GpuHealth:
    """The GPU at NOW: healthy once its cooldown is over. A clock that was set back restarts the cooldown."""
    if not gpu.unhealthy:
        return gpu
    if now < gpu.last:
        return replace(gpu, last=now)
    if now - gpu.last < gpu.cooldown(cooldown):
        return gpu
    return replace(gpu, conditions=(), recovered=now)


def observed_conditions(gpu: GpuHealth, vitals: Vitals) -> tuple[GpuHealth, tuple[Condition, ...]]:
    """The conditions that VITALS show, and the GPU with its counter brought up to date.

    The first count seen is the baseline: errors from before it do not count. A count that is smaller than before was
    reset with the GPU.
    """
    if vitals.silent:
        return gpu, ()
    conditions = []
    if vitals.lost:
        conditions.append(
            Condition("lost", "the GPU does not answer (lost); only a new start of the machine mends it")
        )
    if vitals.recovery:
        conditions.append(Condition("recovery", f"the driver asks for: {vitals.recovery}"))
    if vitals.remap_failed:
        conditions.append(
            Condition("remapping", "a faulty memory row could not be remapped; the GPU is to be replaced")
        )
    if vitals.uncorrectable is None:
        return gpu, tuple(conditions)
    if gpu.ecc is not None and vitals.uncorrectable > gpu.ecc:
        count = vitals.uncorrectable - gpu.ecc
        conditions.append(Condition("ecc", f"{count} uncorrectable memory error{'s' if count > 1 else ''}"))
    return replace(gpu, ecc=vitals.uncorrectable), tuple(conditions)
