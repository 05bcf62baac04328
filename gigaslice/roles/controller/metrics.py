# SPDX-License-Identifier: Apache-2.0
"""Every metric of the controller in one table.

Values of the cluster are those of the present state, collected at each scrape, and every replica has them. Sum over
replicas only what counts the controller's own work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gigaslice.runtime.metrics import Row

__all__ = ["METRICS", "ControllerCounters"]

METRICS = (
    Row("gigaslice_controller_leader", "gauge", (), "1 while this replica writes"),
    Row("gigaslice_controller_writes_total", "counter", ("kind", "write", "result"), "objects written"),
    Row("gigaslice_controller_queue_length", "gauge", ("queue",), "keys that wait for a pass or are in one"),
    Row("gigaslice_controller_failed_passes_total", "counter", ("queue",), "passes that the API server made fail"),
    Row("gigaslice_controller_watch_silent_seconds", "gauge", ("resource",), "for how long no watch has run"),
    Row("gigaslice_controller_events_total", "counter", ("reason",), "events that were reported"),
    Row("gigaslice_controller_reviews_total", "counter", ("path", "allowed"), "pods that admission was asked about"),
    Row("gigaslice_cluster_nodes", "gauge", ("inventory",), "nodes by their inventory: read, unreadable or none"),
    Row("gigaslice_cluster_gpus", "gauge", ("model", "condition"), "GPUs: whole, partly used, full or unhealthy"),
    Row("gigaslice_cluster_memory_bytes", "gauge", ("state",),
        "GPU memory: held, free_whole, free_partly (on GPUs that are partly used) or unhealthy"),
    Row("gigaslice_cluster_fragmentation_ratio", "gauge", (), "part of the free memory that lies on partly used GPUs"),
    Row("gigaslice_class_gpus", "gauge", ("class",), "GPUs that the class matches"),
    Row("gigaslice_class_free_gpus", "gauge", ("class",), "those of them on which one unit fits now"),
    Row("gigaslice_pods_waiting", "gauge", ("state",),
        "unbound pods that ask for GPUs: fits (a node has room), no-room or invalid"),
    Row("gigaslice_defragmentation_moves", "gauge", (), "moves of pods that would free a whole GPU each"),
)  # fmt: skip

Labels = tuple[str, ...]


@dataclass(slots=True)
class ControllerCounters:
    """What the controller has done since it started."""

    writes: Counter[Labels] = field(default_factory=Counter)
    events: Counter[Labels] = field(default_factory=Counter)
    reviews: Counter[Labels] = field(default_factory=Counter)
