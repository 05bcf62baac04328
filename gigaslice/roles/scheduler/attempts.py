# SPDX-License-Identifier: Apache-2.0
"""What became of each pod between its scoring and the moment in which the watch shows it bound. Pure.

    PROVISIONAL  scored; its GPUs are kept for some seconds on the node that our score makes the winner
    BINDING      its binding is being written
    BOUND        written; the watch has not shown it yet
    DOUBTFUL     written or not: no answer came. Its GPUs are kept until the API server shows what happened, and only
                 the same binding is tried again. A takeover ends it (docs/adr/0090)

A pod has one attempt at most. The GPUs themselves are counted by `ClusterState`, by the pod's UID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gigaslice.core.cluster.assignment import Assignment

__all__ = ["Attempt", "AttemptState", "Attempts"]


class AttemptState(Enum):
    """How far it has come; the value is the label of a metric."""

    PROVISIONAL = "provisional"
    BINDING = "binding"
    BOUND = "bound"
    DOUBTFUL = "doubtful"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One pod on its way to one node.

    Attributes:
        uid: The pod's.
        node: Where it goes.
        assignment: Its GPUs.
        state: How far it has come.
        since: When it came into this state.
        until: When it is given up.
        gone: Whether the pod was deleted while its binding was being written.
        overtaken: Whether another replica has decided since: what was not written by then never will be.
    """

    uid: str
    node: str
    assignment: Assignment
    state: AttemptState
    since: float
    until: float
    gone: bool = False
    overtaken: bool = False

    @property
    def settled(self) -> bool:
        """Whether the pod can go nowhere else: its binding may have been written."""
        return self.state is not AttemptState.PROVISIONAL


class Attempts:
    """The attempts, by the UID of the pod."""

    def __init__(self) -> None:
        self._found: dict[str, Attempt] = {}

    def get(self, uid: str) -> Attempt | None:
        """Returns the attempt of a pod."""
        return self._found.get(uid)

    def set(self, attempt: Attempt) -> None:
        """Takes an attempt in place of the pod's earlier one."""
        self._found[attempt.uid] = attempt

    def drop(self, uid: str) -> Attempt | None:
        """Forgets the attempt of a pod."""
        return self._found.pop(uid, None)

    def over(self, now: float) -> list[Attempt]:
        """Returns those whose time is over."""
        return [attempt for attempt in self._found.values() if attempt.until <= now]

    @property
    def doubtful(self) -> bool:
        """Whether any binding may be written later."""
        return any(attempt.state is AttemptState.DOUBTFUL for attempt in self._found.values())

    def counts(self) -> dict[str, int]:
        """Returns how many there are in each state."""
        states = Counter(attempt.state.value for attempt in self._found.values())
        return {state.value: states[state.value] for state in AttemptState}

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._found.values()))

    def __len__(self) -> int:
        return len(self._found)
