# SPDX-License-Identifier: Apache-2.0
"""The service's metrics: durations and refusals are counted as they happen, everything else is read at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import Counter, Histogram

from gigaslice.core.cluster.refusal import RefusalReason
from gigaslice.runtime.http_server import CONTENT_TYPE
from gigaslice.runtime.metrics import Exposition, Row, Values

__all__ = ["CONTENT_TYPE", "METRICS", "SchedulerMetrics"]

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_VERBS = ("filter", "prioritize", "preempt", "bind")
_REJECTIONS = "gigaslice_scheduler_rejections_total"

METRICS = (
    *(
        Row(f"gigaslice_scheduler_{verb}_seconds", "histogram", (), f"time that {verb} took in the service")
        for verb in _VERBS
    ),
    Row(_REJECTIONS, "counter", ("reason",), "pods that fitted on no node, by reason; several may apply to one"),
    Row("gigaslice_scheduler_bindings_total", "counter", ("result",),
        "bindings by result: bound, refused, failed, doubtful"),
    Row("gigaslice_scheduler_wakeups_total", "counter", (),
        "refused pods that were handed back to kube-scheduler because they fit now"),
    Row("gigaslice_scheduler_reservations", "gauge", ("state",),
        "pods whose GPUs are kept before the watch shows them bound, by state"),
    Row("gigaslice_scheduler_waiting_pods", "gauge", (), "pods that were refused last time"),
    Row("gigaslice_scheduler_objects", "gauge", ("resource",), "objects in memory, by resource"),
    Row("gigaslice_scheduler_ready", "gauge", (), "1 while kube-scheduler is answered"),
)  # fmt: skip
"""Every metric."""


class SchedulerMetrics:
    """All metrics of one service. READ returns the present values of what is not counted here."""

    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read
        self._seconds = {
            verb: Histogram(f"gigaslice_scheduler_{verb}_seconds", "", buckets=_BUCKETS, registry=None)
            for verb in _VERBS
        }
        self._rejections = Counter(_REJECTIONS, "", ["reason"], registry=None)
        self.prepare = Exposition(self.collect).prepare

    def took(self, verb: str, seconds: float) -> None:
        """Notes how long a request took."""
        self._seconds[verb].observe(seconds)

    def refused(self, reasons: Iterable[RefusalReason]) -> None:
        """Counts a pod that fits nowhere."""
        for reason in reasons:
            self._rejections.labels(reason.value).inc()

    def collect(self) -> Values:
        """The values of now."""
        values = self._read()
        for verb, histogram in self._seconds.items():
            values.add(f"gigaslice_scheduler_{verb}_seconds", histogram)
        values.add(_REJECTIONS, self._rejections)
        return values
