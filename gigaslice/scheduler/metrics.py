"""The service's metrics, by the conventions of Prometheus.

Durations and refusals are counted as they happen; everything else is read from the present state at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gigaslice.cluster.refusal import RefusalReason
from gigaslice.runtime.http_server import CONTENT_TYPE

__all__ = ["CONTENT_TYPE", "METRICS", "SchedulerMetrics", "SchedulerReading"]

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_VERBS = ("filter", "prioritize", "preempt", "bind")

METRICS = {
    **{f"gigaslice_scheduler_{verb}_seconds": f"time that {verb} took in the service" for verb in _VERBS},
    "gigaslice_scheduler_rejections_total": "pods that fitted on no node, by reason; several may apply to one",
    "gigaslice_scheduler_bindings_total": "bindings by result: bound, refused, failed, doubtful",
    "gigaslice_scheduler_wakeups_total": "refused pods that were handed back to kube-scheduler because they fit now",
    "gigaslice_scheduler_reservations": "pods whose GPUs are kept before the watch shows them bound, by state",
    "gigaslice_scheduler_waiting_pods": "pods that were refused last time",
    "gigaslice_scheduler_objects": "objects in memory, by resource",
    "gigaslice_scheduler_ready": "1 while kube-scheduler is answered",
}
"""Every metric and its help."""


@dataclass(frozen=True, slots=True)
class SchedulerReading:
    """What is read at a scrape."""

    reservations: Mapping[str, int]
    objects: Mapping[str, int]
    bindings: Mapping[str, int]
    waiting: int
    wakeups: int
    ready: bool


class SchedulerMetrics:
    """All metrics of one service. READ returns the present values."""

    def __init__(self, read: Callable[[], SchedulerReading]) -> None:
        self._read = read
        self._registry = CollectorRegistry()
        self._seconds = {
            verb: Histogram(
                f"gigaslice_scheduler_{verb}_seconds",
                METRICS[f"gigaslice_scheduler_{verb}_seconds"],
                buckets=_BUCKETS,
                registry=self._registry,
            )
            for verb in _VERBS
        }
        self._rejections = Counter(
            "gigaslice_scheduler_rejections",
            METRICS["gigaslice_scheduler_rejections_total"],
            ["reason"],
            registry=self._registry,
        )
        self._process = ProcessCollector(registry=None)

    def took(self, verb: str, seconds: float) -> None:
        """Notes how long a request took."""
        self._seconds[verb].observe(seconds)

    def refused(self, reasons: Iterable[RefusalReason]) -> None:
        """Counts a pod that fits nowhere."""
        for reason in reasons:
            self._rejections.labels(reason.value).inc()

    def prepare(self) -> Callable[[], bytes]:
        """Reads the present values and returns a function that renders them, which may be called in any thread."""
        families = [*self._families(self._read()), *self._process.collect()]
        return lambda: bytes(generate_latest(_Both(self._registry, families)))

    @staticmethod
    def _families(reading: SchedulerReading) -> Iterator[Metric]:
        def gauge(name: str, values: Mapping[str, float], label: str = "") -> Metric:
            family = GaugeMetricFamily(name, METRICS[name], labels=[label] if label else [])
            for key, value in values.items():
                family.add_metric([key] if label else [], value)
            return family

        def counter(name: str, values: Mapping[str, float], label: str = "") -> Metric:
            family = CounterMetricFamily(name, METRICS[name], labels=[label] if label else [])
            for key, value in values.items():
                family.add_metric([key] if label else [], value)
            return family

        yield gauge("gigaslice_scheduler_reservations", reading.reservations, "state")
        yield gauge("gigaslice_scheduler_objects", reading.objects, "resource")
        yield gauge("gigaslice_scheduler_waiting_pods", {"": reading.waiting})
        yield gauge("gigaslice_scheduler_ready", {"": float(reading.ready)})
        yield counter("gigaslice_scheduler_bindings_total", reading.bindings, "result")
        yield counter("gigaslice_scheduler_wakeups_total", {"": reading.wakeups})


class _Both(CollectorRegistry):
    """A registry and what was read beside it."""

    def __init__(self, registry: CollectorRegistry, found: list[Metric]) -> None:
        super().__init__()
        self._both = registry, found

    def collect(self) -> Iterator[Metric]:
        """Returns all of it."""
        registry, found = self._both
        yield from registry.collect()
        yield from found
