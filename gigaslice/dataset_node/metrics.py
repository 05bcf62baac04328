"""The service's metrics, by the conventions of Prometheus. Everything is read from the present state at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gigaslice.dataset_node.tasks.supply import DatasetCounters

__all__ = ["METRICS", "DatasetMetrics", "DatasetReading"]

METRICS = {
    "gigaslice_dataset_hits_total": "datasets that were asked for and in the cache",
    "gigaslice_dataset_misses_total": "datasets that were asked for and had to be fetched",
    "gigaslice_dataset_joins_total": "datasets that were asked for while another task fetched them",
    "gigaslice_dataset_fetch_bytes_total": "bytes read from sources, failed fetches included",
    "gigaslice_dataset_fetch_files_total": "files of datasets that were fetched",
    "gigaslice_dataset_fetch_seconds_total": "time that complete fetches took, one after the other",
    "gigaslice_dataset_fetches_total": "fetches by result: complete, failed",
    "gigaslice_dataset_evictions_total": "datasets deleted to make room or on request",
    "gigaslice_dataset_trash_failures_total": "attempts to remove what was deleted that failed; they are repeated",
    "gigaslice_dataset_local_fallbacks_total": "datasets read from the storage itself because the node had no room",
    "gigaslice_dataset_gate_waits_total": "pods whose containers waited at their start for a dataset",
    "gigaslice_dataset_gate_wait_seconds_total": "how long they waited",
    "gigaslice_dataset_cache_bytes": "bytes of the cache by state: ready, partial",
    "gigaslice_dataset_in_use_bytes": "bytes of datasets that pods use or wait for",
    "gigaslice_dataset_free_bytes": "bytes that the cache may still take without deleting anything",
    "gigaslice_dataset_trash_bytes": "bytes of deleted datasets that the disk has not given back yet",
    "gigaslice_dataset_datasets": "datasets of the cache by state: ready, partial",
    "gigaslice_dataset_volumes": "volumes of pods by state: published, pending",
    "gigaslice_dataset_registered": "1 while the kubelet has accepted the driver",
    "gigaslice_dataset_agents": "GPU agents that wait for this service before a start: 1, or 0 and nothing is early",
}
"""Every metric and its help."""


@dataclass(frozen=True, slots=True)
class DatasetReading:
    """What is read at a scrape."""

    counters: DatasetCounters
    evictions: int
    cache_bytes: Mapping[str, float]
    datasets: Mapping[str, float]
    volumes: Mapping[str, float]
    in_use_bytes: int
    free_bytes: int
    trash_bytes: int
    trash_failures: int
    registered: bool
    agents: int


class DatasetMetrics:
    """All metrics of one service. READ returns the present values."""

    def __init__(self, read: Callable[[], DatasetReading]) -> None:
        self._read = read
        self._process = ProcessCollector(registry=None)

    def prepare(self) -> Callable[[], bytes]:
        """Reads the present values and returns a function that renders them, which may be called in any thread."""
        families = [*_families(self._read()), *self._process.collect()]
        registry = CollectorRegistry()
        registry.register(_Given(families))
        return lambda: bytes(generate_latest(registry))


class _Given:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """The families."""
        return iter(self._families)


def _families(reading: DatasetReading) -> Iterator[Metric]:
    counters = reading.counters
    totals: dict[str, Mapping[str, float] | float] = {
        "hits": counters.hits,
        "misses": counters.misses,
        "joins": counters.joins,
        "fetch_bytes": counters.fetched_bytes,
        "fetch_files": counters.fetched_files,
        "fetch_seconds": counters.fetch_seconds,
        "fetches": {"complete": counters.fetches, "failed": counters.failures},
        "evictions": reading.evictions,
        "trash_failures": reading.trash_failures,
        "local_fallbacks": counters.fallbacks,
        "gate_waits": counters.gate_waits,
        "gate_wait_seconds": counters.gate_wait_seconds,
    }
    for name, value in totals.items():
        full = f"gigaslice_dataset_{name}"
        labelled = isinstance(value, Mapping)
        counter = CounterMetricFamily(full, METRICS[f"{full}_total"], labels=["result"] if labelled else [])
        for key, one in value.items() if isinstance(value, Mapping) else [("", value)]:
            counter.add_metric([key] if labelled else [], one)
        yield counter
    gauges: dict[str, Mapping[str, float] | float] = {
        "cache_bytes": reading.cache_bytes,
        "datasets": reading.datasets,
        "volumes": reading.volumes,
        "in_use_bytes": reading.in_use_bytes,
        "free_bytes": reading.free_bytes,
        "trash_bytes": reading.trash_bytes,
        "registered": int(reading.registered),
        "agents": reading.agents,
    }
    for name, value in gauges.items():
        full = f"gigaslice_dataset_{name}"
        labelled = isinstance(value, Mapping)
        gauge = GaugeMetricFamily(full, METRICS[full], labels=["state"] if labelled else [])
        for key, one in value.items() if isinstance(value, Mapping) else [("", value)]:
            gauge.add_metric([key] if labelled else [], one)
        yield gauge
