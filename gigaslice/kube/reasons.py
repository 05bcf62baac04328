"""Every reason of an event on a pod, as one table: what `kubectl describe pod` shows, and docs/operations.md.

Values only. Who says what stands where it is said; a test compares those places with this table.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REASONS", "Reason"]


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. kind: "Normal" or "Warning". meaning: when it is said, and what it asks for."""

    name: str
    kind: str
    meaning: str


REASONS = (
    Reason("GigasliceAllocated", "Normal", "which GPUs a container got, and how much of each"),
    Reason("GigasliceWaiting", "Warning", "what the start gate waits for; the container starts by itself"),
    Reason("GigasliceImpossible", "Warning", "this node can never give what is asked for; ask for less, or elsewhere"),
    Reason("GigasliceStorage", "Warning",
           "the node's disk refused the record of the allocation; the pod has failed, and no more come for now"),
    Reason("GigasliceAnnotation", "Warning", "an annotation makes no sense or has no effect; it says what to write"),
    Reason("GigasliceEvicting", "Warning",
           "the pod is about to be evicted: for annotations that came too late, or for overuse where that is policy"),
    Reason("GigasliceResized", "Normal", "a limit follows an annotation that was edited"),
    Reason("GigasliceResize", "Warning", "an edited annotation cannot be followed now; it is as soon as there is room"),
    Reason("GigasliceGpuUnhealthy", "Warning", "a GPU of the container gets no new containers; the text says why"),
    Reason("GigasliceGpuWell", "Normal", "the GPU gets new containers again"),
    Reason("GigasliceForgotten", "Warning",
           "the kubelet has lost its record of a running container's devices; it runs on and cannot be started again"),
    Reason("GigasliceUnaligned", "Normal",
           "a container's GPU is on another NUMA node than the devices that the kubelet chose"),
    Reason("GigasliceUnhooked", "Warning", "processes without the library hold memory of a GPU"),
    Reason("GigasliceOveruse", "Warning", "the container holds more than its quota because of these, or of plug-ins"),
    Reason("GigasliceOverLimit", "Warning", "a container holds more than its limit of now, and gets no more"),
    Reason("GigasliceLedger", "Warning", "a container makes its ledger grow on the node's disk, which is cut back"),
    Reason("GigasliceNotAttached", "Normal", "no program of the container has used CUDA under the library for long"),
)  # fmt: skip
"""In the order of a pod's life."""
