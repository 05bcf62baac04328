# SPDX-License-Identifier: Apache-2.0
"""Why a pod gets no GPUs: of a node as one of a few fixed sentences, for `explain` with all details. Pure.

kube-scheduler puts the sentence into the pod's condition and adds equal ones up over the nodes. A sentence that changed
while nothing else does would make it try the pod again at once, each time, so no sentence has a free amount, a counter,
a time or a GPU in it. The details are in `NodeReport`, which only people ask for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

__all__ = ["GpuReport", "NodeReport", "Refusal", "RefusalReason"]


class RefusalReason(Enum):
    """The reasons, in the order in which they are looked for; the value is the label of a metric."""

    INVALID = "invalid"
    UNKNOWN_CLASS = "unknown-class"
    NO_INVENTORY = "no-inventory"
    UNREADABLE_INVENTORY = "unreadable-inventory"
    UNREADABLE_POD = "unreadable-pod"
    NO_RESOURCE = "no-resource"
    NO_CLASS = "no-class"
    NO_MATCH = "no-match"
    TOO_SMALL = "too-small"
    TOO_FEW = "too-few"
    TOGETHER_NEVER = "together-never"
    UNHEALTHY = "unhealthy"
    NO_ROOM = "no-room"
    NO_GPU = "no-gpu"
    NO_COMPUTE = "no-compute"
    TOGETHER = "together"

    @property
    def permanent(self) -> bool:
        """Whether pods that end on the node can never help: evicting them is of no use."""
        return self in _PERMANENT

    @property
    def refusal(self) -> Refusal:
        """The refusal of a node for this reason: always the same object."""
        return _REFUSALS[self]


_SENTENCES = {
    RefusalReason.INVALID: "the pod's request for GPUs makes no sense",
    RefusalReason.UNKNOWN_CLASS: "there is no such GPU class",
    RefusalReason.NO_INVENTORY: "no gigaslice agent has published GPUs of this node",
    RefusalReason.UNREADABLE_INVENTORY: "the GPU inventory cannot be read; run one version of gigaslice everywhere",
    RefusalReason.UNREADABLE_POD: "a pod on the node cannot be read, so nobody knows which GPUs it has",
    RefusalReason.NO_RESOURCE: "the node offers no GPU under the resource asked for",
    RefusalReason.NO_CLASS: "no GPU of the class asked for",
    RefusalReason.NO_MATCH: "no GPU that the pod's annotations allow",
    RefusalReason.TOO_SMALL: "the GPUs are smaller than what is asked for on one GPU",
    RefusalReason.TOO_FEW: "too few matching GPUs, even if all were free",
    RefusalReason.TOGETHER_NEVER: "the pod's containers never fit together, even if all GPUs were free",
    RefusalReason.UNHEALTHY: "matching GPUs are unhealthy or cordoned",
    RefusalReason.NO_ROOM: "no GPU has that much memory free together",
    RefusalReason.NO_GPU: "too few GPUs are free altogether",
    RefusalReason.NO_COMPUTE: "too little compute share is left where memory is free",
    RefusalReason.TOGETHER: "each container would fit alone, not all of them together",
}
_PERMANENT = frozenset(
    {
        RefusalReason.INVALID,
        RefusalReason.UNKNOWN_CLASS,
        RefusalReason.NO_INVENTORY,
        RefusalReason.UNREADABLE_INVENTORY,
        RefusalReason.NO_RESOURCE,
        RefusalReason.NO_CLASS,
        RefusalReason.NO_MATCH,
        RefusalReason.TOO_SMALL,
        RefusalReason.TOO_FEW,
        RefusalReason.TOGETHER_NEVER,
        RefusalReason.UNHEALTHY,
    }
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not: a code for programs and a sentence for people."""

    reason: RefusalReason
    text: str
    permanent: bool = field(init=False, repr=False, compare=False)
    """Whether pods that end on the node can never help."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "permanent", self.reason.permanent)  # read for each of thousands of nodes


_REFUSALS = {reason: Refusal(reason, sentence) for reason, sentence in _SENTENCES.items()}


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU as a pod sees it.

    Attributes:
        uuid: Its name.
        index: Its number on the node.
        model: As the driver says it.
        slices: Its size.
        free: Slices without a holder, also while it is unhealthy.
        free_cores: Compute share without a holder, in per cent.
        refusal_reason: Why it does not serve the pod, in one sentence; empty where it would.
        holders: The pods on it, as UIDs or as the agent calls them.
    """

    uuid: str
    index: int
    model: str
    slices: int
    free: int
    free_cores: int
    refusal_reason: str = ""
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node as a pod sees it.

    Attributes:
        node: Its name.
        refusal: Why the pod does not fit; None where it does.
        would_help: What would make room, in one sentence; empty where nothing is needed or nothing is known to.
        schedulable: False while it is cordoned.
        ready: Whether its kubelet says so.
        gpus: By index.
        wanted: Where models need different numbers of GPUs for the pod's one container, each number with the slices of
            each GPU, the fewest GPUs first; empty elsewhere.
    """

    node: str
    refusal: Refusal | None
    would_help: str = ""
    schedulable: bool = True
    ready: bool = True
    gpus: tuple[GpuReport, ...] = ()
    wanted: tuple[tuple[int, int], ...] = ()
