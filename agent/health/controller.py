# SPDX-License-Identifier: Apache-2.0
"""The health of the node's GPUs: waits for their errors, polls their vital signs, reads cordons, marks the inventory.

Stands between the scanner, which finds GPUs, and the device plugin, which reports them to the kubelet: every inventory
passes through here and leaves with those GPUs unhealthy that have a condition or a cordon, or for which the driver does
not answer. The state outlives the agent in health.json, and is dropped after a reboot, which resets the GPUs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from agent.health.conditions import (
    SILENCES,
    Condition,
    GpuHealth,
    Silence,
    after_cooldown,
    observed_conditions,
    silences,
    with_conditions,
)
from agent.health.health_files import (
    CORDON,
    Cordon,
    GpuRecord,
    Report,
    read_cordons,
    read_report,
    write_report,
)
from agent.health.xids import xid_row
from agent.inventory.holder import InventoryHolder
from agent.inventory.source import GpuEvent, Inventory, Source
from gigaslice.core.errors import StateError
from gigaslice.core.model import Gpu
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of

__all__ = ["BOOT_ID", "HealthController"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LISTEN_SECONDS = 0.5  # an end of the agent waits as long at most
_REVIEW_SECONDS = 0.5
_HANGS_SECONDS = 60.0  # without an answer of any kind
_HEALTHY = GpuHealth()


class HealthController:
    """Health of the GPUs of SOURCE, over files in STATE_DIR.

    Args:
        source: Where events and vital signs come from.
        state_dir: Where cordon.json and health.json are.
        cooldown: Seconds without a condition until a GPU recovers.
        interval: Seconds between two polls of the vital signs.
        now: Returns Unix time.
        gpus: Where the marked inventory is put whenever it has changed.
        told: Called with UUID, whether the GPU is healthy, and a sentence, when a GPU becomes unhealthy or recovers.
        boot_id: The kernel's file with the id of this boot.
        hangs: Seconds after which a poll without an answer counts as a silent driver.
    """

    def __init__(
        self,
        source: Source,
        state_dir: Path,
        *,
        cooldown: float,
        interval: float,
        now: Callable[[], float],
        gpus: InventoryHolder,
        told: Callable[[str, bool, str], None],
        boot_id: Path = BOOT_ID,
        hangs: float = _HANGS_SECONDS,
    ) -> None:
        self.cordons: Mapping[str, Cordon] = {}
        self.gpus: Mapping[str, GpuHealth] = {}
        self.silent: Mapping[str, Silence] = {}
        self.xids: dict[tuple[str, int], int] = {}
        self._source = source
        self._state_dir = state_dir
        self._cooldown = cooldown
        self._interval = interval
        self._now = now
        self._holder = gpus
        self._told = told
        self._boot = _boot_id(boot_id)
        self._hangs = hangs
        self._polled_at: float | None = None  # by the monotonic clock; None: no poll is under way
        self.scanned = gpus.now
        """The inventory as the last scan has found it."""
        self._stamp: tuple[int, int] | None = None
        self._problems = LogOnce()
        self._reported: tuple[GpuRecord, ...] = ()  # by the agent before this one
        self._log = get_logger("health")

    def open(self) -> None:
        """Reads the files, and marks the unhealthy and cordoned GPUs."""
        try:
            report = read_report(self._state_dir)
            if report is not None:
                self._reported = report.gpus
            if report is not None and report.boot == self._boot:
                self.gpus = report.health
        except StateError as error:
            self._problem("health", str(error))
        self._read_cordons()
        for uuid, gpu in self.gpus.items():
            if gpu.unhealthy:
                self._log.warning("GPU unhealthy", gpu=uuid, detail=gpu.text)
        self._publish()

    def set_inventory(self, scanned: Inventory) -> None:
        """Takes over an inventory from the scanner."""
        self.scanned = scanned
        self._publish()

    async def run(self) -> None:
        """Works until cancelled: polls vital signs, reads cordons, ends cooldowns.

        A driver that never answers stops the polls and then takes its GPUs out of service; all else goes on. Raises
        MissingError when only a new process can get an answer.
        """
        await all_of(self._keep_examining(), self._keep_reviewing())

    async def _keep_examining(self) -> None:
        while True:
            await self.examine()
            await asyncio.sleep(self._interval)

    async def _keep_reviewing(self) -> None:
        while True:
            await self.review()
            await asyncio.sleep(_REVIEW_SECONDS)

    async def listen(self) -> None:
        """Works until cancelled: waits for errors that the GPUs report."""
        while True:
            events = await asyncio.to_thread(self._source.events, _LISTEN_SECONDS)
            if events is None:
                await asyncio.Event().wait()
            for event in events or ():
                await self.handle(event)

    async def handle(self, event: GpuEvent) -> None:
        """Applies one EVENT."""
        if event.xid is None:
            await self._strike({event.gpu: (Condition("ecc", "an uncorrectable memory error"),)})
            return
        row = xid_row(event.xid)
        self.xids[event.gpu, event.xid] = self.xids.get((event.gpu, event.xid), 0) + 1
        level = self._log.warning if row.effect.fatal else self._log.info
        level("xid", gpu=event.gpu, xid=row.number, meaning=row.meaning, effect=row.effect.value)
        if row.effect.fatal:
            await self._strike({event.gpu: (Condition(f"xid-{row.number}", row.text),)})

    async def examine(self) -> None:
        """Polls the vital signs of every GPU."""
        self._polled_at = time.monotonic()
        readings = await asyncio.to_thread(self._source.vitals)
        self._polled_at = None
        await self._silences(silences(self.silent, readings or {}))
        strikes: dict[str, tuple[Condition, ...]] = {}
        gpus = dict(self.gpus)
        for uuid, vitals in (readings or {}).items():
            gpus[uuid], strikes[uuid] = observed_conditions(gpus.get(uuid, _HEALTHY), vitals)
        counted = gpus != self.gpus
        self.gpus = gpus
        await self._strike(strikes)
        if counted:
            self._save(self._holder.now)

    async def review(self) -> None:
        """Ends cooldowns that are over, and reads the cordons when their file has changed."""
        if self._polled_at is not None and time.monotonic() - self._polled_at > self._hangs:
            hangs = Silence(SILENCES, f"the driver has not answered for {self._hangs:g} seconds: it hangs")
            await self._silences(dict.fromkeys(self.scanned.uuids, hangs))
        now = self._now()
        after = {uuid: after_cooldown(gpu, self._cooldown, now) for uuid, gpu in self.gpus.items()}
        recovered = [uuid for uuid, gpu in after.items() if self.gpus[uuid].unhealthy and not gpu.unhealthy]
        changed = after != self.gpus
        self.gpus = after
        for uuid in recovered:
            self._log.warning("GPU recovered", gpu=uuid)
            self._told(uuid, True, f"{uuid} had no error during its cooldown and gets new containers again")
        if self._read_cordons() or changed:
            self._publish()

    def reason(self, uuid: str) -> str:
        """Why that GPU gets no new containers; empty where it gets them."""
        parts = self._faults(uuid)
        if (cordon := self.cordons.get(uuid)) is not None:
            parts.append("cordoned" + (f": {cordon.reason}" if cordon.reason else ""))
        return "; ".join(parts)

    def fault(self, uuid: str) -> str:
        """The same in a word, of a fixed set: the first condition ("xid-79"), "silent" or "cordoned"."""
        conditions = self.gpus.get(uuid, _HEALTHY).conditions
        if conditions:
            return conditions[0].code
        if _lasts(self.silent, uuid):
            return "silent"
        return "cordoned" if uuid in self.cordons else ""

    def _faults(self, uuid: str) -> list[str]:
        """What is wrong with that GPU itself."""
        gpu = self.gpus.get(uuid, _HEALTHY)
        faults = [gpu.text] if gpu.unhealthy else []
        if _lasts(self.silent, uuid):
            faults.append(self.silent[uuid].text)
        return faults

    async def _silences(self, after: Mapping[str, Silence]) -> None:
        before, self.silent = self.silent, after
        uuids = self.scanned.uuids
        began = [uuid for uuid in uuids if _lasts(after, uuid) and not _lasts(before, uuid)]
        ended = [uuid for uuid in uuids if _lasts(before, uuid) and not _lasts(after, uuid)]
        if began or ended:
            self._publish()
        for uuid in began:
            self._log.error("GPU not responding", gpu=uuid, detail=after[uuid].text)
            self._told(uuid, False, f"{uuid}: {after[uuid].text}; no new containers until it answers")
        for uuid in ended:
            self._log.warning("GPU responding again", gpu=uuid)
            self._told(uuid, True, f"{uuid} answers again")

    async def _strike(self, strikes: Mapping[str, tuple[Condition, ...]]) -> None:
        now = self._now()
        after = dict(self.gpus)
        news = dict[str, tuple[str, int]]()  # what is new, and seconds of cooldown
        for uuid, conditions in strikes.items():
            if uuid not in self.scanned.uuids:
                continue
            before = after.get(uuid, _HEALTHY)
            gpu = after[uuid] = with_conditions(before, conditions, now)
            fresh = [
                condition
                for condition in gpu.conditions
                if condition.code not in {old.code for old in before.conditions}
            ]
            if fresh:
                text = "; ".join(condition.text for condition in fresh)
                news[uuid] = text, round(gpu.cooldown(self._cooldown))
        self.gpus = after
        if news:
            self._publish()  # before it is reported: a report is true after a restart, too
        for uuid, (text, wait) in news.items():
            self._log.error("GPU unhealthy", gpu=uuid, detail=text, cooldown_seconds=wait)
            self._told(
                uuid,
                False,
                f"{uuid}: {text}; no new containers while this goes on and for {wait} seconds after it",
            )

    def _publish(self) -> None:
        """Passes on the marked inventory if it has changed, and records the reasons."""
        inventory = self._marked(self.scanned)
        self._save(inventory)
        self._holder.replace(inventory)

    def _marked(self, inventory: Inventory) -> Inventory:
        unhealthy = {uuid: "; ".join(faults) for uuid in inventory.uuids if (faults := self._faults(uuid))}
        out = frozenset(uuid for uuid in inventory.uuids if uuid in self.cordons)
        gpus = tuple(
            replace(gpu, healthy=False) if gpu.uuid in unhealthy or gpu.uuid in out else gpu
            for gpu in inventory.gpus
        )
        alone = frozenset(
            gpu.uuid
            for gpu in inventory.gpus
            if gpu.uuid in out and gpu.healthy and gpu.uuid not in unhealthy
        )
        return replace(inventory, gpus=gpus, unhealthy=unhealthy, cordoned=alone)

    def _read_cordons(self) -> bool:
        """Reads the file if it has changed; returns whether the cordons have."""
        try:
            status = (self._state_dir / CORDON).stat()
            stamp: tuple[int, int] | None = (status.st_ino, status.st_mtime_ns)
        except OSError:
            stamp = None
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            after = read_cordons(self._state_dir)
        except StateError as error:
            self._problem("cordons", str(error))  # the known cordons stay, after a start too
            lost = {
                gpu.uuid: Cordon(gpu.detail.rpartition("cordoned")[2].removeprefix(": "), gpu.since)
                for gpu in self._reported
                if gpu.cordoned
            }
            before, self.cordons = self.cordons, self.cordons or lost
            return before != self.cordons
        self._reported = ()
        before, self.cordons = self.cordons, after
        for uuid in after.keys() - before.keys():
            self._log.warning("GPU cordoned", gpu=uuid, reason=after[uuid].reason)
        for uuid in before.keys() - after.keys():
            self._log.info("GPU uncordoned", gpu=uuid)
        return before != after

    def _save(self, inventory: Inventory) -> None:
        gpus = tuple(self._gpu(gpu) for gpu in inventory.gpus)
        try:
            write_report(self._state_dir, Report(self._boot, gpus, self.gpus))
        except StateError as error:
            self._problem("health", str(error))
        else:
            self._problems.over("health")

    def _gpu(self, gpu: Gpu) -> GpuRecord:
        cordon, health = self.cordons.get(gpu.uuid), self.gpus.get(gpu.uuid, _HEALTHY)
        detail = self.reason(gpu.uuid) or ("" if gpu.healthy else "not there, or declared unhealthy")
        since = health.since if health.unhealthy else cordon.since if cordon else 0.0
        return GpuRecord(
            gpu.uuid, gpu.index, gpu.model, gpu.slices, gpu.healthy, cordon is not None, detail, since
        )

    def _problem(self, about: str, text: str) -> None:
        if self._problems.new(about, text):
            self._log.error("health file unusable", detail=text)


def _lasts(silent: Mapping[str, Silence], uuid: str) -> bool:
    return uuid in silent and silent[uuid].lasting


def _boot_id(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
