# SPDX-License-Identifier: Apache-2.0
"""Every reason of an event on a pod, as one table: what `kubectl describe pod` shows, and docs/operations.md.

Reasons are CamelCase and name what happened, as the kubelet's do. They have no prefix: the event's component says who
reports. Values only; the modules that report an event hold its text, and a test compares them with this table.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REASONS", "EventReason"]


@dataclass(frozen=True, slots=True)
class EventReason:
    """One reason. kind: "Normal" or "Warning". meaning: when it is reported, and what it asks for."""

    name: str
    kind: str
    meaning: str


REASONS = (
    EventReason("GPUAllocated", "Normal", "which GPUs a container got, and how much of each"),
    EventReason("WaitingForGPU", "Warning", "what the start of the container waits for; it starts by itself"),
    EventReason("WaitingForDataset", "Normal",
           "which dataset the start of the container waits for, and how far it is; it starts by itself"),
    EventReason("GPURequestInfeasible", "Warning",
           "this node can never satisfy the request; ask for less, or elsewhere"),
    EventReason("AssignmentNotExecutable", "Warning",
           "the GPUs that the scheduler chose cannot be had as it chose them, or no scheduler of gigaslice chose any; "
           "the event says what to do"),
    EventReason("ClaimNotExecutable", "Warning",
           "the pod's claim to devices cannot be had as it is written or used; the event says what to change"),
    EventReason("AllocationNotRecorded", "Warning",
           "the node's disk refused the record of the allocation; the pod has failed, and no more come for now"),
    EventReason("InvalidAnnotation", "Warning",
           "an annotation is invalid or has no effect; the event says what to write"),
    EventReason("EvictionPending", "Warning",
           "the pod is about to be evicted: its annotations came too late, or the policy evicts for overuse"),
    EventReason("GPUResizeCompleted", "Normal", "a limit follows an annotation that was edited"),
    EventReason("GPUResizeDeferred", "Warning",
           "an edited annotation has no effect yet; it has as soon as there is room"),
    EventReason("GPUUnhealthy", "Warning", "a GPU of the container gets no new containers; the event says why"),
    EventReason("GPURecovered", "Normal", "the GPU gets new containers again"),
    EventReason("AllocationForgotten", "Warning",
           "the kubelet has lost its record of a running container's devices; it runs on and cannot be started again"),
    EventReason("GPUNotAligned", "Normal",
           "a container's GPU is on another NUMA node than the devices that the kubelet chose"),
    EventReason("ProcessWithoutLibrary", "Warning", "processes without the library hold memory of a GPU"),
    EventReason("GPUMemoryOveruse", "Warning", "the container exceeds its quota because of such processes or plug-ins"),
    EventReason("GPULimitExceeded", "Warning", "the container exceeds its current limit, and gets no more memory"),
    EventReason("GPUQuotaUsedUp", "Warning",
           "programs of the container were refused memory because its own quota is used up"),
    EventReason("DriverLimitNotSet", "Warning",
           "the driver does not bound the pod's memory although this node's driver could; the library alone does"),
    EventReason("DriverLimitReplaced", "Warning",
           "a container's own cgroup had a limit of the driver beside its pod's, which would have counted instead"),
    EventReason("DriverLimitReached", "Warning",
           "the driver refused memory although the quota had room: it counts more than the library; raise the margin"),
    EventReason("GPUMemoryExhausted", "Warning",
           "the driver refused memory although the quota had room: something else holds the rest of the GPU"),
    EventReason("LedgerMayOvercount", "Warning", "neither the state directory nor `--ledger-dir` keeps the locks of "
        "processes: a container that is killed and restarted may stay charged; `gigaslice doctor` says why"),
    EventReason("LedgerTruncated", "Warning", "a container makes its ledger grow on the node's disk; it is truncated"),
    EventReason("LibraryNotAttached", "Normal", "no program of the container has used CUDA under the library for long"),
)  # fmt: skip
"""In the order of a pod's life."""
