"""Collects the values of all metrics from the parts of a running node agent."""

from __future__ import annotations

import vcuda
from agent.audit.auditor import Auditor
from agent.control.turns import TurnKeeper
from agent.health.keeper import Keeper
from agent.kubelet.allocator import Allocator
from agent.kubelet.plugin import DevicePlugin
from agent.state.ledgers import Reading
from agent.state.measurer import Measured, Measurer
from agent.state.records import Grant
from agent.state.room import Room
from agent.state.store import Store
from agent.telemetry.counters import Counters
from agent.telemetry.metrics import Values

__all__ = ["Measures"]

_NOTHING = Measured(Reading({}, {}), None)


class Measures:
    """Looks at books, cards and counters. Nothing is read from disk: usage is that of the last measuring round."""

    def __init__(
        self,
        *,
        resource: str,
        store: Store,
        allocator: Allocator,
        plugin: DevicePlugin,
        keeper: Keeper,
        measurer: Measurer,
        auditor: Auditor,
        counters: Counters,
        room: Room,
        turns: TurnKeeper,
    ) -> None:
        self._resource = resource
        self._store = store
        self._allocator = allocator
        self._plugin = plugin
        self._keeper = keeper
        self._measurer = measurer
        self._auditor = auditor
        self._counters = counters
        self._room = room
        self._turns = turns

    def unready(self) -> str | None:
        """Why the agent cannot serve its kubelet now, or None."""
        return None if self._plugin.streams else "the kubelet does not watch the device list; not registered"

    def collect(self) -> Values:
        """The values of now."""
        values = Values()
        for grant in self._store.book.grants:
            self._container(values, grant)
        for name, labels, total in self._counters.totals:
            values.add(name, total, *labels)
        self._cards(values)
        for uuid, (turns, seconds) in self._turns.given().items():
            values.add("gigaslice_gpu_turns_total", turns, uuid)
            values.add("gigaslice_gpu_turn_seconds_total", seconds, uuid)
        for uuid, card in self._turns.cards.items():
            values.add("gigaslice_gpu_turns_active", int(card.arbiter.mode == "turns"), uuid)
            values.add("gigaslice_gpu_managed_fits", int(card.fits), uuid)
            if card.paging is not None:
                values.add("gigaslice_gpu_page_faults_total", card.paging.faults, uuid)
                values.add("gigaslice_gpu_paged_in_bytes_total", card.paging.bytes_in, uuid)
                values.add("gigaslice_gpu_paged_out_bytes_total", card.paging.bytes_out, uuid)
        self._agent(values)
        return values

    def _container(self, values: Values, grant: Grant) -> None:
        owner = grant.ref
        who = (owner.namespace, owner.pod, owner.container) if owner else ("", "", "")
        last = self._measurer.last.get(grant.id, _NOTHING)
        reading = last.reading
        bypassed = self._store.strangers.get(grant.id, {})
        for hold in grant.holds:
            gpu = hold.gpu
            used = reading.used.get(gpu, 0)
            for name, value in (
                ("limit", reading.limits.get(gpu, hold.memory_bytes)),
                ("used", used),
                ("unhooked", reading.unhooked.get(gpu, 0) if reading.alive or bypassed else 0),
                ("bypassed", bypassed.get(gpu, 0)),
                ("peak", reading.peak.get(gpu, 0)),
            ):
                values.add(f"gigaslice_container_memory_{name}_bytes", value, gpu, *who)
            if grant.physical.get(gpu):
                physical = reading.physical.get(gpu) or grant.physical[gpu]
                values.add("gigaslice_container_memory_physical_limit_bytes", physical, gpu, *who)
                if owner:
                    held = self._turns.held_us.get((grant.id, gpu), 0) / 1e6
                    name = "gigaslice_container_turn_held_seconds_total"
                    self._counters.totals.note(name, (gpu, *who), grant.id, {"": held})
                managed = reading.managed.get(gpu, 0)
                values.add("gigaslice_container_memory_managed_bytes", managed, gpu, *who)
            if last.memory is not None and gpu in last.memory:
                values.add("gigaslice_container_memory_measured_bytes", last.memory[gpu], gpu, *who)
                values.add("gigaslice_container_memory_drift_bytes", last.memory[gpu] - used, gpu, *who)
            if reading.cores.get(gpu) and gpu in reading.shares:
                values.add("gigaslice_container_compute_limit_ratio", reading.cores[gpu] / 100, gpu, *who)
            values.add("gigaslice_container_slices", len(grant.kept.intersection(hold.tokens)), gpu, *who)
        for gpu in bypassed.keys() - grant.quota().keys():
            values.add("gigaslice_container_memory_bypassed_bytes", bypassed[gpu], gpu, *who)
        values.add("gigaslice_container_processes", reading.living, *who)
        values.add("gigaslice_container_attached", int(reading.attached), *who)
        values.add("gigaslice_container_gate_waiting", int(grant.waiting), *who)

    def _cards(self, values: Values) -> None:
        inventory = self._allocator.inventory
        taken: dict[str, int] = dict.fromkeys(inventory.uuids, 0)
        unit = {gpu.uuid: gpu.slice_bytes for gpu in inventory.gpus}
        for grant in self._store.book.grants:
            for share in grant.shares_of(unit):
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
            values.add("gigaslice_gpu_cordoned", int(uuid in self._keeper.cordons), uuid)
            card = self._keeper.cards.get(uuid)
            for ailment in card.ailments if card else ():
                values.add("gigaslice_gpu_ailment", 1, uuid, ailment.code)
            silence = self._keeper.silent.get(uuid)
            if silence is not None and silence.lasting:
                values.add("gigaslice_gpu_ailment", 1, uuid, "silent")
            if card is not None and card.ecc is not None:
                values.add("gigaslice_gpu_uncorrectable_errors", card.ecc, uuid)
        for (uuid, xid), count in self._keeper.xids.items():
            values.add("gigaslice_gpu_xid_errors_total", count, uuid, str(xid))
        for uuid, count in self._auditor.survey.foreign.items():
            values.add("gigaslice_foreign_bytes", count, uuid)

    def _agent(self, values: Values) -> None:
        counters = self._counters
        values.add("gigaslice_kubelet_registered", int(self._plugin.streams > 0))
        values.add("gigaslice_kubelet_registrations_total", counters.registrations)
        values.add("gigaslice_allocate_duration_seconds", counters.allocate)
        values.add("gigaslice_allocate_failures_total", counters.allocate_failures)
        values.add("gigaslice_gate_waits_total", counters.gate_waits)
        values.add("gigaslice_ledger_cuts_total", self._store.dirs.ledgers.cuts)
        values.add("gigaslice_overuse_evictions_total", counters.evictions)
        for part, count in counters.parts.items():
            values.add("gigaslice_part_failures_total", count, part)
        values.add("gigaslice_state_usable", int(not self._room.problem))
        values.add("gigaslice_build_info", 1, vcuda.__version__, self._resource)
