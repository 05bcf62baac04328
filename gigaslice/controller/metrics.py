"""Every metric of the controller in one table, and its text for Prometheus.

Values of the cluster are those of the present state, collected at each scrape, and every replica has them. Sum over
replicas only what counts the controller's own work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gigaslice.text import plain

__all__ = ["METRICS", "ControllerCounters", "Readings", "exposition"]

METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "gigaslice_controller_leader": ("gauge", (), "1 while this replica writes"),
    "gigaslice_controller_writes_total": ("counter", ("kind", "write", "result"), "objects written"),
    "gigaslice_controller_queue_length": ("gauge", ("queue",), "keys that wait for a pass or are in one"),
    "gigaslice_controller_failed_passes_total": ("counter", ("queue",), "passes that the API server made fail"),
    "gigaslice_controller_watch_silent_seconds": ("gauge", ("resource",), "for how long no watch has run"),
    "gigaslice_controller_events_total": ("counter", ("reason",), "events that were reported"),
    "gigaslice_controller_reviews_total": ("counter", ("path", "allowed"), "pods that admission was asked about"),
    "gigaslice_cluster_nodes": ("gauge", ("inventory",), "nodes by their inventory: read, unreadable or none"),
    "gigaslice_cluster_gpus": ("gauge", ("model", "condition"), "GPUs: whole, partly used, full or unhealthy"),
    "gigaslice_cluster_memory_bytes": ("gauge", ("state",),
        "GPU memory: held, free_whole, free_partly (on GPUs that are partly used) or unhealthy"),
    "gigaslice_cluster_fragmentation_ratio": ("gauge", (), "part of the free memory that lies on partly used GPUs"),
    "gigaslice_class_gpus": ("gauge", ("class",), "GPUs that the class matches"),
    "gigaslice_class_free_gpus": ("gauge", ("class",), "those of them on which one unit fits now"),
    "gigaslice_pods_waiting": ("gauge", ("state",),
        "unbound pods that ask for GPUs: fits (a node has room), no-room or invalid"),
    "gigaslice_defragmentation_moves": ("gauge", (), "moves of pods that would free a whole GPU each"),
}  # fmt: skip
"""Kind, labels and help by name."""

Labels = tuple[str, ...]


@dataclass(slots=True)
class ControllerCounters:
    """What the controller has done since it started."""

    writes: Counter[Labels] = field(default_factory=Counter)
    events: Counter[Labels] = field(default_factory=Counter)
    reviews: Counter[Labels] = field(default_factory=Counter)


@dataclass(slots=True)
class Readings:
    """Values that were collected: name -> labels -> value."""

    found: dict[str, dict[Labels, float]] = field(default_factory=dict)

    def add(self, name: str, value: float, *labels: str) -> None:
        """Adds VALUE to a metric. Raises KeyError or ValueError for a name or labels that the table lacks."""
        if len(labels) != len(METRICS[name][1]):
            raise ValueError(f"{name} has the labels {METRICS[name][1]}, not {labels}")
        labels = tuple(map(plain, labels))  # a bare CR in a name of others ends a line for some readers
        series = self.found.setdefault(name, {})
        series[labels] = series.get(labels, 0.0) + value

    def add_all(self, name: str, counts: Counter[Labels]) -> None:
        """Adds every count of a counter with labels."""
        for labels, count in counts.items():
            self.add(name, count, *labels)


class _Collected(CollectorRegistry):
    """A registry that returns what was collected already."""

    def __init__(self, found: list[Metric]) -> None:
        super().__init__()
        self._found = found

    def collect(self) -> Iterator[Metric]:
        return iter(self._found)


def exposition(readings: Readings) -> Callable[[], bytes]:
    """Returns the function that writes READINGS as text, which may be called in any thread."""
    process = ProcessCollector(registry=None)
    return lambda: bytes(generate_latest(_Collected([*_families(readings), *process.collect()])))


def _families(readings: Readings) -> Iterator[Metric]:
    for name, series in readings.found.items():
        kind, labels, text = METRICS[name]
        family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
        for values, value in series.items():
            family.add_metric(values, value)
        yield family
