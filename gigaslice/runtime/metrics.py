# SPDX-License-Identifier: Apache-2.0
"""The frame of every role's metrics: a table of what there is, the values of a scrape, and their text for Prometheus.

A role lists its metrics in a table of `Row`, and collects `Values` at each scrape from its present state. So a series
ends with what it is about, and nothing has to be removed. What can be counted only while it happens, such as a
duration, is a Histogram or Counter of prometheus_client, which `Values.add` takes like a number. Names follow the
conventions of Prometheus: prefix `gigaslice_`, base units, `_total` for counters. The tables in docs/ are made from
those of the roles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.metrics import MetricWrapperBase

from gigaslice.core.text import plain

__all__ = ["Exposition", "Row", "Value", "Values"]

Value = float | MetricWrapperBase
_FAMILIES: Mapping[str, type[Metric]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. kind: "gauge", "counter" or "histogram". labels: besides those that all metrics of a role have."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Values:
    """What was collected for the rows of TABLE."""

    def __init__(self, table: Iterable[Row]) -> None:
        self._rows = {row.name: row for row in table}
        self.series: dict[str, dict[tuple[str, ...], Value]] = {}

    def add(self, name: str, value: Value, *labels: str) -> None:
        """Adds VALUE to the metric NAME; numbers with equal labels add up. A Histogram or Counter has its own labels.

        Raises KeyError or ValueError for a name or labels that the table lacks.
        """
        expected = () if isinstance(value, MetricWrapperBase) else self._rows[name].labels
        if len(labels) != len(expected):
            raise ValueError(f"{name} has the labels {expected}, not {labels}")
        labels = tuple(map(plain, labels))  # a bare CR in a name of others ends a line for some readers
        series = self.series.setdefault(self._rows[name].name, {})
        before = series.get(labels)
        same = isinstance(before, int | float) and isinstance(value, int | float)
        series[labels] = before + value if same else value  # type: ignore[operator]

    def add_all(self, name: str, values: Mapping[str, float] | Mapping[tuple[str, ...], float]) -> None:
        """Adds every number of VALUES, by label or labels. The metric is shown even where there is none."""
        self.series.setdefault(self._rows[name].name, {})
        for key, value in values.items():
            self.add(name, value, *((key,) if isinstance(key, str) else key))

    def families(self, labels: Mapping[str, str]) -> Iterator[Metric]:
        """The values as prometheus_client takes them, with LABELS before their own, in the order of the table."""
        for row in self._rows.values():
            if row.name not in self.series:
                continue
            family = _FAMILIES[row.kind](row.name, row.help)  # type: ignore[call-arg]
            for own, value in self.series[row.name].items():
                if isinstance(value, MetricWrapperBase):
                    family.samples += [
                        sample._replace(labels={**labels, **sample.labels})
                        for metric in value.collect()
                        for sample in metric.samples
                    ]
                else:
                    family.add_sample(row.name, {**labels, **dict(zip(row.labels, own, strict=True))}, value)
            yield family


class Exposition:
    """The text of all metrics of this process. COLLECT returns the present values; LABELS are those that all have."""

    def __init__(self, collect: Callable[[], Values], **labels: str) -> None:
        self._collect = collect
        self._labels = labels
        self._process = ProcessCollector(registry=None)

    def prepare(self) -> Callable[[], bytes]:
        """Collects the values now and returns a function that renders them, which may be called in any thread.

        Collecting reads the role's state and is quick. Rendering takes tens of milliseconds where there are many
        series, which is too long for the event loop.
        """
        values = self._collect()
        return lambda: bytes(
            generate_latest(_Collected([*values.families(self._labels), *self._process.collect()]))
        )


class _Collected(CollectorRegistry):
    """A registry that returns what was collected already."""

    def __init__(self, families: list[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)
