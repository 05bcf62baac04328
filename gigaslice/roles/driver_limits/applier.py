# SPDX-License-Identifier: Apache-2.0
"""Makes the driver's limits of cgroups what they are asked to be, and tells what they are afterwards.

Each pass begins with what the driver says and remembers nothing, so it mends whatever an earlier one has left, wherever
that was killed. No limit is ever taken away: on the misc backend an entry without a limit would hide the one above it.
Where a pod uses more than it is to have, its limit follows its use downwards: a hard limit below use is refused by one
backend and ignored by the other. A soft limit is never set.

On misc the nearest cgroup with an entry counts alone, and whoever starts a container can have one made for it. So each
cgroup below a pod's is compared with the pod's. Tests: tests/unit/gigaslice/roles/driver_limits/test_applier.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gigaslice.core.errors import ControlError
from gigaslice.core.kube.cgroups import container_of
from gigaslice.core.limits.driver_limit_messages import (
    MOST_LEAVES,
    MOST_PIDS,
    ApplyAnswer,
    ApplyRequest,
    GpuLimitState,
    Leaf,
    PodLimits,
    PodLimitState,
)
from gigaslice.roles.driver_limits.cgroup_tree import MOST_BELOW, CgroupTree
from gigaslice.roles.driver_limits.memory_limits import Limit, LimitCallError, MemoryLimits

__all__ = ["Applier"]

_ATTEMPTS = 3  # use may grow between the question and the limit
_GRANULE = 2 << 20  # bytes by which a driver may round: its largest page
_LATE = "not reached in time: the driver is slow"


class Applier:
    """One pass.

    Args:
        limits: The driver, which is open.
        tree: The node's cgroups.
        late: Whether the pass has taken too long; then what is left is answered as not reached.
    """

    def __init__(
        self, limits: MemoryLimits, tree: CgroupTree, late: Callable[[], bool] = lambda: False
    ) -> None:
        self._limits = limits
        self._tree = tree
        self._late = late
        self._totals = {gpu: support.total for gpu, support in limits.gpus().items()}
        self._backend = tree.backend()
        self._above: dict[tuple[str, str], Limit | None] = {}
        self._leaves_left = MOST_LEAVES

    def apply(self, request: ApplyRequest) -> ApplyAnswer:
        """Sets all that REQUEST names. Raises ControlError where nothing can be set at all."""
        refusal = self._limits.refusal()
        if refusal:
            raise ControlError(refusal)
        if not self._tree.version_2:
            raise ControlError(f"{self._tree.root} is no cgroup v2: driver limits are limits of its cgroups")
        paths = self._tree.pods().paths
        states = [self._pod(pod, paths.get(pod.uid, ())) for pod in request.pods]
        if self._backend == "misc":
            named: dict[str, dict[str, Mapping[str, int]]] = {}
            for container in request.containers:
                named.setdefault(container.uid, {})[container.container] = container.gpus
            states = [
                self._compared(state, paths.get(state.uid, ()), named.get(state.uid, {})) for state in states
            ]
        return ApplyAnswer(tuple(states))

    def _pod(self, pod: PodLimits, paths: tuple[str, ...]) -> PodLimitState:
        """Sets a pod's limits in each cgroup that bears its UID; the state of the one that bounds the least."""
        if not paths:
            return PodLimitState(pod.uid, present=False)
        if self._late():
            return PodLimitState(pod.uid, present=True, problem=_LATE)
        state = PodLimitState(pod.uid, present=True)
        for path in paths:
            lacking = self._tree.lacking(path, self._backend)
            if lacking:
                state = replace(state, problem=lacking)
                continue
            for gpu, wanted in pod.gpus.items():
                held = self.hold(path, gpu, wanted)
                state = replace(state, gpus={**state.gpus, gpu: _weaker(state.gpus.get(gpu), held)})
        if not any(map(os.path.lexists, paths)):
            return PodLimitState(pod.uid, present=False)
        if len(paths) > 1 and not state.problem:
            state = replace(state, problem=f"{' and '.join(paths[:2])} both bear this pod's UID")
        return state

    def hold(self, path: str, gpu: str, wanted: int) -> GpuLimitState:
        """Has the limit of a cgroup be WANTED, or present use where that is more; what the driver says afterwards."""
        if gpu not in self._totals:
            return GpuLimitState(None, None, f"the driver does not show {gpu}, or has it in MIG mode")
        wanted = min(wanted, self._totals[gpu])
        problem, limit, target = "", None, wanted
        try:
            limit = self._own(path, gpu)
            for _ in range(_ATTEMPTS):
                target = min(max(wanted, limit.used if limit else 0), self._totals[gpu])
                if limit is not None and limit.hard == target:
                    break
                problem = self._set(path, gpu, target)
                limit = self._limits.get(gpu, path)
                if (
                    limit is None and not problem
                ):  # dmem ignores a limit below use, and without one tells no use
                    problem = self._set(path, gpu, self._totals[gpu])
                    limit = self._limits.get(gpu, path)
                if problem and (limit is None or limit.used <= target):
                    break  # it is not use that it was refused for
        except LimitCallError as error:
            problem = str(error)
        return _judged(limit, target, problem)

    def _set(self, path: str, gpu: str, hard: int) -> str:
        """Sets a limit; what the driver has against it."""
        try:
            self._limits.set(gpu, path, hard)
        except LimitCallError as error:
            return str(error)
        return ""

    def _own(self, path: str, gpu: str) -> Limit | None:
        """The limit of a cgroup, None where it may be inherited: on misc the driver does not tell which it is."""
        limit = self._limits.get(gpu, path)
        if limit is None or self._backend != "misc":
            return limit
        key = os.path.dirname(path), gpu  # noqa: PTH120
        if key not in self._above:
            self._above[key] = self._limits.get(gpu, key[0]) if key[0] != self._tree.root else None
        return None if limit == self._above[key] else limit

    def _compared(
        self, state: PodLimitState, paths: tuple[str, ...], named: Mapping[str, Mapping[str, int]]
    ) -> PodLimitState:
        """STATE with the cgroups below whose limits are not the pod's, after those of NAMED containers were set."""
        if not state.gpus:
            return state
        comparison = _Comparison(state, named)
        for path in paths:
            for number, directory in enumerate(self._tree.below(path), 1):
                if self._late():
                    return comparison.ended(_LATE)
                comparison.path = path
                self._compare(comparison, directory, container_of(directory[len(path) :]))
                if number == MOST_BELOW:
                    comparison.problem = (
                        f"has {MOST_BELOW} cgroups below its own or more; those beyond are not compared"
                    )
        return comparison.ended()

    def _compare(self, comparison: _Comparison, directory: str, container: str) -> None:
        for gpu, state in comparison.state.gpus.items():
            if gpu not in self._totals or state.hard is None:
                continue
            try:
                limit = self._limits.get(gpu, directory)
            except LimitCallError as error:
                if os.path.lexists(directory):
                    comparison.problem = str(error)
                continue
            hard, used = (limit.hard, limit.used) if limit else (None, 0)
            wanted = comparison.wanted(container, gpu)
            expected = state.hard if wanted is None else min(wanted, self._totals[gpu])
            if hard == expected and (
                wanted is not None or self._inherits(comparison.path, directory, gpu, used)
            ):
                continue
            if wanted is not None:
                held = self.hold(directory, gpu, wanted)
                comparison.inherited[container, gpu] = wanted if held.hard is None else held.hard
                if not held.problem:
                    continue
                hard = held.hard
            if self._leaves_left > 0:
                self._leaves_left -= 1
                pids = self._tree.pids(directory)[:MOST_PIDS]
                comparison.leaves.append(Leaf(container, gpu, hard, pids))

    def _inherits(self, pod: str, directory: str, gpu: str, used: int) -> bool:
        """Whether a cgroup with its pod's number has the pod's entry: then what counts against both is the same.

        Else it has one of its own, as the cgroup of a dead container may leave it, and the pod may have that much more.
        """
        readings: dict[str, list[int]] = {pod: [], directory: [used]}
        with contextlib.suppress(LimitCallError):
            for path in (pod, directory, directory, pod, pod, directory):  # use changes meanwhile
                limit = self._limits.get(gpu, path)
                readings[path].append(limit.used if limit else 0)
                of_pod, of_cgroup = readings.values()
                if min(of_pod) <= max(of_cgroup) and min(of_cgroup) <= max(of_pod):
                    return True
            return False
        return True  # one of the two has gone


@dataclass(slots=True)
class _Comparison:
    """The cgroups below one pod's, which is at PATH.

    inherited: what cgroups within a container's inherit once that was set.
    """

    state: PodLimitState
    named: Mapping[str, Mapping[str, int]]
    leaves: list[Leaf] = field(default_factory=list)
    inherited: dict[tuple[str, str], int] = field(default_factory=dict)
    path: str = ""
    problem: str = ""

    def wanted(self, container: str, gpu: str) -> int | None:
        """What a cgroup of a container is to have of its own; None where the pod's limit is to hold for it."""
        number = self.named.get(container, {}).get(gpu)
        return None if number is None else self.inherited.get((container, gpu), number)

    def ended(self, problem: str = "") -> PodLimitState:
        """The pod's state with all this, and with a problem where it had none."""
        return replace(
            self.state,
            leaves=tuple(self.leaves),
            problem=self.state.problem or problem or self.problem,
        )


def _judged(limit: Limit | None, target: int, problem: str) -> GpuLimitState:
    if limit is None:
        return GpuLimitState(None, None, problem or "the driver has taken the limit and shows none")
    reached = limit.hard is not None and target - _GRANULE < limit.hard <= max(target, limit.used)
    if reached:
        return GpuLimitState(limit.hard, limit.used)
    return GpuLimitState(
        limit.hard, limit.used, problem or f"the driver shows {limit.hard} where {target} was set"
    )


def _weaker(first: GpuLimitState | None, second: GpuLimitState) -> GpuLimitState:
    """That of two cgroups of one pod which bounds it less."""
    if first is None:
        return second
    if second.hard is None or (first.hard is not None and second.hard > first.hard):
        return second
    return first
