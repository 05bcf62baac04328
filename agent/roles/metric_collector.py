# SPDX-License-Identifier: Apache-2.0
"""Collects the values of all metrics from the parts of a running node agent.

Nothing is read from disk: usage is that of the last measuring round.
"""

from __future__ import annotations

from typing import Protocol

from agent.accounting.auditor import Auditor
from agent.accounting.memory_monitor import MeasuredAllocation, MemoryMonitor
from agent.apiserver import Cluster
from agent.health.controller import HealthController
from agent.inventory.holder import InventoryHolder
from agent.ledgers.usage import Reading
from agent.limits.driver_limit_manager import DriverLimitManager
from agent.limits.no_driver_limits import NoDriverLimits
from agent.limits.time_slice_manager import TimeSliceManager
from agent.persistence.room import Room
from agent.persistence.store import Store
from agent.roles.claim_parts import ClaimParts
from agent.telemetry.counters import Counters
from agent.telemetry.metrics import values_of
from gigaslice.core.allocation.consumer import labels_of
from gigaslice.core.allocation.table import Allocation
from gigaslice.runtime.metrics import Values

__all__ = ["MetricCollector"]

_NOTHING = MeasuredAllocation(Reading({}, {}), None)


class ServedResource(Protocol):
    """What serves GPU memory to the kubelet. streams: how many of its connections are open."""

    @property
    def streams(self) -> int:
        """See above."""
        ...


class MetricCollector:
    """Reads the allocation table, the GPUs and the counters."""

    def __init__(
        self,
        *,
        resource: str,
        store: Store,
        gpus: InventoryHolder,
        servicer: ServedResource,
        health: HealthController,
        memory_monitor: MemoryMonitor,
        auditor: Auditor,
        counters: Counters,
        room: Room,
        time_slices: TimeSliceManager,
        cluster: Cluster,
        driver_limits: DriverLimitManager | NoDriverLimits,
        claims: ClaimParts | None = None,
        claims_lead: bool = False,
    ) -> None:
        """Initializes the collector. CLAIMS: what serves claims; CLAIMS_LEAD: what is new is given out by them."""
        self._resource = resource
        self._store = store
        self._inventory = gpus
        self._servicer = servicer
        self._health = health
        self._memory_monitor = memory_monitor
        self._auditor = auditor
        self._counters = counters
        self._room = room
        self._time_slices = time_slices
        self._cluster = cluster
        self._driver_limits = driver_limits
        self._claims = claims
        self._claims_lead = claims_lead

    def unready(self) -> str | None:
        """Why the agent cannot serve its kubelet now, or None."""
        if self._claims_lead and self._claims is not None:
            return self._claims.unready
        return (
            None if self._servicer.streams else "the kubelet does not watch the device list; not registered"
        )

    @property
    def _registered(self) -> bool:
        if self._claims_lead and self._claims is not None:
            return self._claims.registration.accepted is True
        return self._servicer.streams > 0

    def collect(self) -> Values:
        """The values of now."""
        values = values_of(self._resource, registered=self._registered)
        for allocation in self._store.table.allocations:
            self._container(values, allocation)
        for name, labels, total in self._counters.totals:
            values.add(name, total, *labels)
        self._gpus(values)
        for uuid, (turns, seconds) in self._time_slices.totals().items():
            values.add("gigaslice_gpu_time_slices_total", turns, uuid)
            values.add("gigaslice_gpu_time_slice_seconds_total", seconds, uuid)
        for uuid, gpu in self._time_slices.gpus.items():
            values.add("gigaslice_gpu_time_slicing_active", int(gpu.arbiter.mode == "slicing"), uuid)
            values.add("gigaslice_gpu_working_set_resident", int(gpu.fits), uuid)
            if gpu.paging is not None:
                values.add("gigaslice_gpu_page_faults_total", gpu.paging.faults, uuid)
                values.add("gigaslice_gpu_paged_in_bytes_total", gpu.paging.bytes_in, uuid)
                values.add("gigaslice_gpu_paged_out_bytes_total", gpu.paging.bytes_out, uuid)
        self._limits_of_driver(values)
        self._agent(values)
        if self._claims is not None:
            self._claim_calls(values, self._claims)
        return values

    def _container(self, values: Values, allocation: Allocation) -> None:
        who = labels_of(allocation.origin)
        last = self._memory_monitor.last.get(allocation.id, _NOTHING)
        reading = last.reading
        without_library = self._store.without_library.get(allocation.id, {})
        for hold in allocation.holds:
            gpu = hold.gpu
            used = reading.used.get(gpu, 0)
            for name, value in (
                ("limit", reading.limits.get(gpu, hold.memory_bytes)),
                ("used", used),
                ("undeclared", reading.undeclared.get(gpu, 0) if reading.alive or without_library else 0),
                ("without_library", without_library.get(gpu, 0)),
                ("peak", reading.peak.get(gpu, 0)),
            ):
                values.add(f"gigaslice_container_memory_{name}_bytes", value, gpu, *who)
            if allocation.physical.get(gpu):
                physical = reading.physical.get(gpu) or allocation.physical[gpu]
                values.add("gigaslice_container_memory_physical_limit_bytes", physical, gpu, *who)
                if allocation.consumers:
                    held = self._time_slices.held_us.get((allocation.id, gpu), 0) / 1e6
                    name = "gigaslice_container_time_slice_wait_seconds_total"
                    self._counters.totals.note(name, (gpu, *who), allocation.id, {"": held})
                managed = reading.managed.get(gpu, 0)
                values.add("gigaslice_container_memory_managed_bytes", managed, gpu, *who)
            if last.memory is not None and gpu in last.memory:
                values.add("gigaslice_container_memory_measured_bytes", last.memory[gpu], gpu, *who)
                values.add("gigaslice_container_memory_drift_bytes", last.memory[gpu] - used, gpu, *who)
            if reading.cores.get(gpu) and gpu in reading.shares:
                values.add("gigaslice_container_compute_limit_ratio", reading.cores[gpu] / 100, gpu, *who)
            slices = 0 if allocation.ended else hold.kept_bytes // hold.slice_bytes
            values.add("gigaslice_container_slices", slices, gpu, *who)
        for gpu in without_library.keys() - allocation.quota().keys():
            values.add("gigaslice_container_memory_without_library_bytes", without_library[gpu], gpu, *who)
        values.add("gigaslice_container_processes", reading.living, *who)
        values.add("gigaslice_container_attached", int(reading.attached), *who)
        values.add("gigaslice_container_start_waiting", int(allocation.waiting), *who)

    def _gpus(self, values: Values) -> None:
        inventory = self._inventory.now
        taken: dict[str, int] = dict.fromkeys(inventory.uuids, 0)
        unit = {gpu.uuid: gpu.slice_bytes for gpu in inventory.gpus}
        for allocation in self._store.table.allocations:
            for share in allocation.shares_of(unit):
                taken[share.gpu] = taken.get(share.gpu, 0) + share.slices
        for gpu in inventory.gpus:
            uuid, rest = gpu.uuid, max(0, gpu.slices - taken[gpu.uuid])
            values.add("gigaslice_gpu_info", 1, uuid, str(gpu.index), gpu.model)
            values.add("gigaslice_gpu_memory_bytes", gpu.memory_bytes, uuid)
            if gpu.host_bytes:
                values.add("gigaslice_gpu_host_memory_bytes", gpu.host_bytes, uuid)
            values.add("gigaslice_gpu_slice_bytes", gpu.slice_bytes, uuid)
            values.add("gigaslice_gpu_slices", taken[uuid], uuid, "allocated")
            values.add("gigaslice_gpu_slices", rest if gpu.healthy else 0, uuid, "free")
            values.add("gigaslice_gpu_slices", 0 if gpu.healthy else rest, uuid, "unavailable")
            values.add("gigaslice_gpu_healthy", int(gpu.healthy), uuid)
            values.add("gigaslice_gpu_cordoned", int(uuid in self._health.cordons), uuid)
            health = self._health.gpus.get(uuid)
            for condition in health.conditions if health else ():
                values.add("gigaslice_gpu_condition", 1, uuid, condition.code)
            silence = self._health.silent.get(uuid)
            if silence is not None and silence.lasting:
                values.add("gigaslice_gpu_condition", 1, uuid, "silent")
            if health is not None and health.ecc is not None:
                values.add("gigaslice_gpu_uncorrectable_errors", health.ecc, uuid)
        for (uuid, xid), count in self._health.xids.items():
            values.add("gigaslice_gpu_xid_errors_total", count, uuid, str(xid))
        for uuid, count in self._auditor.survey.foreign.items():
            values.add("gigaslice_gpu_foreign_memory_bytes", count, uuid)

    def _limits_of_driver(self, values: Values) -> None:
        report = self._driver_limits.report
        values.add("gigaslice_driver_limits", 1, report.backend)
        for namespace, pod, state in self._driver_limits.pod_states():
            for gpu, gpu_state in state.gpus.items():
                if gpu_state.hard is not None:
                    values.add("gigaslice_pod_driver_limit_bytes", gpu_state.hard, gpu, namespace, pod)
                if gpu_state.used is not None:
                    values.add("gigaslice_pod_driver_used_bytes", gpu_state.used, gpu, namespace, pod)
        for gpu, count in report.excess.items():
            values.add("gigaslice_gpu_driver_limits_excess_bytes", count, gpu)

    def _claim_calls(self, values: Values, claims: ClaimParts) -> None:
        counters = self._counters
        values.add("gigaslice_claim_prepare_duration_seconds", counters.claim_calls["prepare"])
        values.add("gigaslice_claim_unprepare_duration_seconds", counters.claim_calls["unprepare"])
        for operation, count in counters.claim_errors.items():
            values.add("gigaslice_claim_errors_total", count, operation)
        values.add("gigaslice_claims_refused", len(claims.preparation.refusals.waiting))
        values.add("gigaslice_slice_writes_total", claims.slices.writes)
        values.add("gigaslice_slice_write_failures_total", claims.slices.failures)
        values.add("gigaslice_slices_published", int(not claims.slices.problem))

    def _agent(self, values: Values) -> None:
        counters = self._counters
        values.add("gigaslice_kubelet_registrations_total", counters.registrations)
        values.add("gigaslice_allocate_duration_seconds", counters.allocate)
        values.add("gigaslice_allocate_failures_total", counters.allocate_failures)
        values.add("gigaslice_start_waits_total", counters.gate_waits)
        values.add("gigaslice_ledger_truncations_total", self._store.dirs.ledgers.cuts)
        values.add("gigaslice_overuse_evictions_total", counters.evictions)
        for part, count in counters.parts.items():
            values.add("gigaslice_component_failures_total", count, part)
        values.add("gigaslice_state_dir_usable", int(not self._room.problem))
        publishing = self._cluster.publishing
        if publishing is not None:
            values.add("gigaslice_inventory_writes_total", publishing.writes)
            values.add("gigaslice_inventory_write_failures_total", publishing.failures)
            values.add("gigaslice_inventory_outdated_seconds", publishing.outdated)
            values.add("gigaslice_inventory_withheld", int(publishing.withheld))
            if publishing.written is not None:
                values.add("gigaslice_inventory_written_timestamp_seconds", publishing.written)
