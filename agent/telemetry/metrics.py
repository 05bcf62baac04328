"""Every metric of the agent in one table, and its text for Prometheus.

Names are `gigaslice_*` in base units. Values are collected when somebody asks, from what is true then, so a series
ends with its allocation and nothing has to be cleaned up. The table is also the one in docs/operations.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from agent.telemetry.counters import Histogram

__all__ = ["METRICS", "Exposition", "Row", "Values"]


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. kind: "gauge", "counter" or "histogram". labels: besides "node", which all have."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


_CONTAINER = ("gpu_uuid", "namespace", "pod", "container")
_OWNER = ("namespace", "pod", "container")
_GPU = ("gpu_uuid",)

METRICS = (
    Row("gigaslice_container_memory_limit_bytes", "gauge", _CONTAINER, "what the container may use of the GPU"),
    Row("gigaslice_container_memory_physical_limit_bytes", "gauge", _CONTAINER,
        "of the limit in the GPU's own memory at most; for containers that may use host memory"),
    Row("gigaslice_container_memory_managed_bytes", "gauge", _CONTAINER,
        "the part of used that may lie in host memory; for the same containers"),
    Row("gigaslice_container_turn_held_seconds_total", "counter", _CONTAINER,
        "seconds that its threads waited for its turn, added up; for the same containers"),
    Row("gigaslice_container_memory_used_bytes", "gauge", _CONTAINER,
        "what its living processes have declared or measured on themselves"),
    Row("gigaslice_container_memory_measured_bytes", "gauge", _CONTAINER,
        "what NVML shows for all its processes; missing where nobody measures"),
    Row("gigaslice_container_memory_drift_bytes", "gauge", _CONTAINER, "measured minus used"),
    Row("gigaslice_container_memory_unhooked_bytes", "gauge", _CONTAINER, "what the limits page counts beyond used"),
    Row("gigaslice_container_memory_bypassed_bytes", "gauge", _CONTAINER,
        "what processes without the library hold; part of unhooked"),
    Row("gigaslice_container_memory_peak_bytes", "gauge", _CONTAINER, "largest use so far"),
    Row("gigaslice_container_compute_limit_ratio", "gauge", _CONTAINER,
        "share of the GPU's time that it may use; for containers with one"),
    Row("gigaslice_container_compute_seconds_total", "counter", _CONTAINER,
        "time that its work was under way on the GPU, as charged; for the same containers"),
    Row("gigaslice_container_throttled_seconds_total", "counter", _CONTAINER,
        "time that its launches were held back, all threads added up; for the same containers"),
    Row("gigaslice_container_slices", "gauge", _CONTAINER, "slices of the GPU that it holds"),
    Row("gigaslice_container_processes", "gauge", _OWNER, "living processes under the quota"),
    Row("gigaslice_container_refusals_total", "counter", _OWNER, "allocations that were answered with out of memory"),
    Row("gigaslice_container_attached", "gauge", _OWNER, "1 once a process has loaded the library and used CUDA"),
    Row("gigaslice_container_gate_waiting", "gauge", _OWNER, "1 while the start gate has not let it pass"),
    Row("gigaslice_gpu_info", "gauge", (*_GPU, "index", "model"), "1 for each GPU"),
    Row("gigaslice_gpu_memory_bytes", "gauge", _GPU, "memory of the GPU that programs can have"),
    Row("gigaslice_gpu_host_memory_bytes", "gauge", _GPU, "host memory lent to the GPU; missing where none is"),
    Row("gigaslice_gpu_managed_fits", "gauge", _GPU,
        "1 while what containers have in managed memory and use fits the GPU; missing without such containers"),
    Row("gigaslice_gpu_turns_active", "gauge", _GPU, "1 while its containers take turns, since it thrashes together"),
    Row("gigaslice_gpu_turns_total", "counter", _GPU, "turns given since the agent started"),
    Row("gigaslice_gpu_turn_seconds_total", "counter", _GPU, "seconds of the GPU that were given in turns"),
    Row("gigaslice_gpu_page_faults_total", "counter", _GPU,
        "page faults on GPUs with lent host memory; missing where nvidia-uvm does not count them"),
    Row("gigaslice_gpu_paged_in_bytes_total", "counter", _GPU, "bytes that page faults have brought to it; likewise"),
    Row("gigaslice_gpu_paged_out_bytes_total", "counter", _GPU, "bytes that they have moved away; likewise"),
    Row("gigaslice_gpu_slice_bytes", "gauge", _GPU, "size of its slices"),
    Row("gigaslice_gpu_slices", "gauge", (*_GPU, "state"),
        "slices by state: allocated, free, or unavailable on a GPU that gets no new containers"),
    Row("gigaslice_gpu_healthy", "gauge", _GPU, "1 for a GPU that gets new containers"),
    Row("gigaslice_gpu_condition", "gauge", (*_GPU, "reason"),
        "1 for each thing that is wrong with the GPU: an Xid such as xid-79, ecc, lost, silent, recovery, remapping"),
    Row("gigaslice_gpu_cordoned", "gauge", _GPU, "1 for a GPU that people have taken out of service"),
    Row("gigaslice_gpu_xid_errors_total", "counter", (*_GPU, "xid"), "Xids since the agent started"),
    Row("gigaslice_gpu_uncorrectable_errors", "gauge", _GPU,
        "uncorrectable memory errors since the GPU's last reset"),
    Row("gigaslice_foreign_bytes", "gauge", _GPU, "memory of the GPU that processes in no container of ours hold"),
    Row("gigaslice_waiting_for_gpus", "gauge", ("reason",),
        "1 while there is nothing to serve: no-gpu, gpu-unusable for GPUs the driver does not show, driver-hangs; "
        "else missing"),
    Row("gigaslice_standing_by", "gauge", (),
        "1 while another agent serves this node and this one is ready to go on; else missing"),
    Row("gigaslice_kubelet_registered", "gauge", (), "1 while the kubelet watches the device list"),
    Row("gigaslice_kubelet_registrations_total", "counter", (),
        "device list streams that the kubelet has opened; each registration begins with one"),
    Row("gigaslice_allocate_duration_seconds", "histogram", (), "time of the kubelet's Allocate calls"),
    Row("gigaslice_allocate_failures_total", "counter", (), "Allocate calls that failed their pods"),
    Row("gigaslice_gate_waits_total", "counter", (), "starts that the start gate has sent round again"),
    Row("gigaslice_ledger_cuts_total", "counter", (), "ledgers that had grown on the disk and were cut back"),
    Row("gigaslice_overuse_evictions_total", "counter", (), "pods evicted for more memory than they may have"),
    Row("gigaslice_part_failures_total", "counter", ("part",),
        "parts of the agent that failed and were started again; any is a mistake in this program"),
    Row("gigaslice_state_usable", "gauge", (),
        "0 while the state directory is full, read-only or refuses writes, and nothing new is given out"),
    Row("gigaslice_build_info", "gauge", ("version", "resource"), "1, with the agent's version and its resource"),
)  # fmt: skip
"""In the order in which they are shown."""

_ROWS = {row.name: row for row in METRICS}
Value = float | Histogram


@dataclass
class Values:
    """What was collected: name -> label values in the table's order -> value. Equal labels add up."""

    found: dict[str, dict[tuple[str, ...], Value]] = field(default_factory=dict)

    def add(self, name: str, value: Value, *labels: str) -> None:
        """Notes VALUE of the metric NAME; KeyError or ValueError for what the table does not have."""
        if len(labels) != len(_ROWS[name].labels):
            raise ValueError(f"{name} has the labels {_ROWS[name].labels}, not {labels}")
        series = self.found.setdefault(name, {})
        before = series.get(labels)
        same = isinstance(before, int | float) and isinstance(value, int | float)
        series[labels] = before + value if same else value  # type: ignore[operator]


class Exposition:
    """The text of all metrics of NODE; COLLECT gives the values of now."""

    def __init__(self, node: str, collect: Callable[[], Values]) -> None:
        self._node = node
        self._collect = collect
        self._process = ProcessCollector(registry=None)

    def prepare(self) -> Callable[[], bytes]:
        """Collects now; what it returns writes that as Prometheus reads it, and may be called in any thread.

        Collecting looks at the agent's state and is quick; writing takes tens of milliseconds where there are many
        containers, for which nobody is to wait.
        """
        values = self._collect()
        return lambda: bytes(
            generate_latest(_Once([*families(self._node, values.found), *self._process.collect()]))
        )


class _Once(CollectorRegistry):
    """What was collected already, in place of a registry."""

    def __init__(self, found: list[Metric]) -> None:
        super().__init__()
        self._found = found

    def collect(self) -> Iterator[Metric]:
        return iter(self._found)


def families(node: str, found: Mapping[str, Mapping[tuple[str, ...], Value]]) -> Iterator[Metric]:
    """The values as prometheus_client takes them, in the order of the table. A row without values is left out."""
    for row in METRICS:
        series = found.get(row.name)
        if not series:
            continue
        names = ("node", *row.labels)
        family: Metric
        if row.kind == "histogram":
            family = HistogramMetricFamily(row.name, row.help, labels=names)
            for labels, value in series.items():
                if isinstance(value, Histogram):
                    family.add_metric((node, *labels), list(value.buckets()), value.sum)
        else:
            kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
            family = kind(row.name, row.help, labels=names)
            for labels, value in series.items():
                if not isinstance(value, Histogram):
                    family.add_metric((node, *labels), value)
        yield family
