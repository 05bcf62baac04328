"""Keeps the health of the node's GPUs: listens, asks, reads cordons, and says which GPUs may be given out.

Stands between the scanner, which knows what is there, and the plugin, which tells the kubelet: every inventory passes
here and leaves with unhealthy and cordoned GPUs unhealthy, and with those for which the driver does not answer. What it
knows outlives the agent in health.json; after a reboot the GPUs are new.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from agent.health.conditions import (
    SILENCES,
    Condition,
    GpuHealth,
    Silence,
    settled,
    silences,
    standing,
    struck,
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
from agent.health.xids import judge
from agent.inventory.source import GpuEvent, Inventory, Source
from gigaslice.errors import StateError
from gigaslice.model import Gpu
from gigaslice.runtime.logs import get_logger

__all__ = ["BOOT_ID", "HealthController"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LISTEN_SECONDS = 0.5  # an end of the agent waits as long at most
_LOOK_SECONDS = 0.5
_HANGS_SECONDS = 60.0  # without an answer of any kind
_WELL = GpuHealth()


class HealthController:
    """Health of the GPUs of SOURCE, over files in STATE_DIR.

    PROBATION: seconds. INTERVAL: seconds between two questions for vital signs. NOW gives Unix time. CHANGED is awaited
    with each other inventory to work with; TOLD is called with UUID, whether it is well, and a sentence, when a GPU
    falls unhealthy or is well again. HANGS: seconds after which a question without an answer is taken for a silent
    driver.
    """

    def __init__(
        self,
        source: Source,
        state_dir: Path,
        *,
        cooldown: float,
        interval: float,
        now: Callable[[], float],
        changed: Callable[[Inventory], Awaitable[None]],
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
        self._changed = changed
        self._told = told
        self._boot = _boot_id(boot_id)
        self._hangs = hangs
        self._asked_at: float | None = None  # by the monotonic clock; None: nobody asks
        self._raw: Inventory | None = None
        self._effective: Inventory | None = None
        self._stamp: tuple[int, int] | None = None
        self._problems: dict[str, str] = {}
        self._reported: tuple[GpuRecord, ...] = ()  # by the agent before this one
        self._log = get_logger("health")

    def open(self, found: Inventory) -> Inventory:
        """Takes up what is known of the GPUs of FOUND; the inventory to work with."""
        self._raw = found
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
        self._effective = self._overlay(found)
        self._save()
        return self._effective

    async def set_inventory(self, found: Inventory) -> None:
        """Takes over what the scanner has found."""
        self._raw = found
        await self._publish()

    async def run(self) -> None:
        """Works until cancelled: asks for vital signs, looks for cordons, ends probations.

        A driver that never answers costs the vital signs and then the GPUs, and keeps nothing else from going on.
        Raises MissingError when only another process can have an answer.
        """
        tasks = [asyncio.create_task(self._keep_examining()), asyncio.create_task(self._keep_reviewing())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_examining(self) -> None:
        while True:
            await self.examine()
            await asyncio.sleep(self._interval)

    async def _keep_reviewing(self) -> None:
        while True:
            await self.review()
            await asyncio.sleep(_LOOK_SECONDS)

    async def listen(self) -> None:
        """Works until cancelled: waits for what the GPUs report."""
        while True:
            events = await asyncio.to_thread(self._source.events, _LISTEN_SECONDS)
            if events is None:
                await asyncio.Event().wait()
            for event in events or ():
                await self.heard(event)

    async def heard(self, event: GpuEvent) -> None:
        """Takes note of one EVENT."""
        if event.xid is None:
            await self._strike({event.gpu: (Condition("ecc", "an uncorrectable memory error"),)})
            return
        row = judge(event.xid)
        self.xids[event.gpu, event.xid] = self.xids.get((event.gpu, event.xid), 0) + 1
        level = self._log.warning if row.verdict.fatal else self._log.info
        level("xid", gpu=event.gpu, xid=row.number, meaning=row.meaning, verdict=row.verdict.value)
        if row.verdict.fatal:
            await self._strike({event.gpu: (Condition(f"xid-{row.number}", row.text),)})

    async def examine(self) -> None:
        """Asks every GPU how it is."""
        self._asked_at = time.monotonic()
        found = await asyncio.to_thread(self._source.vitals)
        self._asked_at = None
        await self._silences(silences(self.silent, found or {}))
        strikes: dict[str, tuple[Condition, ...]] = {}
        gpus = dict(self.gpus)
        for uuid, vitals in (found or {}).items():
            gpus[uuid], strikes[uuid] = standing(gpus.get(uuid, _WELL), vitals)
        counted = gpus != self.gpus
        self.gpus = gpus
        await self._strike(strikes)
        if counted:
            self._save()

    async def review(self) -> None:
        """Ends probations that are over, and reads the cordons when they have changed."""
        if self._asked_at is not None and time.monotonic() - self._asked_at > self._hangs and self._raw:
            hangs = Silence(SILENCES, f"the driver has not answered for {self._hangs:g} seconds: it hangs")
            await self._silences(dict.fromkeys(self._raw.uuids, hangs))
        now = self._now()
        after = {uuid: settled(gpu, self._cooldown, now) for uuid, gpu in self.gpus.items()}
        well = [uuid for uuid, gpu in after.items() if self.gpus[uuid].unhealthy and not gpu.unhealthy]
        changed = after != self.gpus
        self.gpus = after
        for uuid in well:
            self._log.warning("GPU recovered", gpu=uuid)
            self._told(uuid, True, f"{uuid} has been quiet for its cooldown and gets new containers again")
        if self._read_cordons() or changed:
            await self._publish()

    def reason(self, uuid: str) -> str:
        """Why that GPU gets no new containers; empty when nothing is known against it."""
        gpu, cordon, silence = self.gpus.get(uuid, _WELL), self.cordons.get(uuid), self.silent.get(uuid)
        parts = [gpu.text] if gpu.unhealthy else []
        if silence is not None and silence.lasting:
            parts.append(silence.text)
        if cordon is not None:
            parts.append("cordoned" + (f": {cordon.reason}" if cordon.reason else ""))
        return "; ".join(parts)

    async def _silences(self, after: Mapping[str, Silence]) -> None:
        before, self.silent = self.silent, after
        known = self._raw.uuids if self._raw else ()
        began = [uuid for uuid in known if _lasts(after, uuid) and not _lasts(before, uuid)]
        ended = [uuid for uuid in known if _lasts(before, uuid) and not _lasts(after, uuid)]
        if began or ended:
            await self._publish()
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
            if self._raw is None or uuid not in self._raw.uuids:
                continue
            before = after.get(uuid, _WELL)
            gpu = after[uuid] = struck(before, conditions, now)
            fresh = [one for one in gpu.conditions if one.code not in {old.code for old in before.conditions}]
            if fresh:
                text = "; ".join(condition.text for condition in fresh)
                news[uuid] = text, round(gpu.cooldown(self._cooldown))
        self.gpus = after
        if news:
            await self._publish()  # before it is told: who has heard of it finds it after a restart, too
        for uuid, (text, wait) in news.items():
            self._log.error("GPU unhealthy", gpu=uuid, detail=text, cooldown_seconds=wait)
            self._told(
                uuid,
                False,
                f"{uuid}: {text}; no new containers while this goes on and for {wait} seconds after it",
            )

    async def _publish(self) -> None:
        """Hands out the inventory to work with when it is another one, and writes down why."""
        if self._raw is None:
            return
        inventory = self._overlay(self._raw)
        differs = inventory != self._effective
        self._effective = inventory
        self._save()
        if differs:
            await self._changed(inventory)

    def _overlay(self, found: Inventory) -> Inventory:
        unhealthy = {
            uuid: health.text
            for uuid, health in self.gpus.items()
            if health.unhealthy and uuid in found.uuids
        }
        for uuid in found.uuids:
            if _lasts(self.silent, uuid):
                unhealthy[uuid] = "; ".join(
                    [*([unhealthy[uuid]] if uuid in unhealthy else []), self.silent[uuid].text]
                )
        out = frozenset(uuid for uuid in found.uuids if uuid in self.cordons)
        gpus = tuple(
            replace(gpu, healthy=False) if gpu.uuid in unhealthy or gpu.uuid in out else gpu
            for gpu in found.gpus
        )
        alone = frozenset(
            gpu.uuid for gpu in found.gpus if gpu.uuid in out and gpu.healthy and gpu.uuid not in unhealthy
        )
        return replace(found, gpus=gpus, unhealthy=unhealthy, cordoned=alone)

    def _read_cordons(self) -> bool:
        """Reads the file when it is another one than last time; whether that changed anything."""
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
            self._problem("cordons", str(error))  # what was cordoned stays so, after a start too
            lost = {
                one.uuid: Cordon(one.detail.rpartition("cordoned")[2].removeprefix(": "), one.since)
                for one in self._reported
                if one.cordoned
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

    def _save(self) -> None:
        inventory = self._effective
        if inventory is None:
            return
        gpus = tuple(self._gpu(gpu) for gpu in inventory.gpus)
        try:
            write_report(self._state_dir, Report(self._boot, gpus, self.gpus))
        except StateError as error:
            self._problem("health", str(error))
        else:
            self._problems.pop("health", None)

    def _gpu(self, gpu: Gpu) -> GpuRecord:
        cordon, health = self.cordons.get(gpu.uuid), self.gpus.get(gpu.uuid, _WELL)
        detail = self.reason(gpu.uuid) or ("" if gpu.healthy else "not there, or declared unhealthy")
        since = health.since if health.unhealthy else cordon.since if cordon else 0.0
        return GpuRecord(
            gpu.uuid, gpu.index, gpu.model, gpu.slices, gpu.healthy, cordon is not None, detail, since
        )

    def _problem(self, about: str, text: str) -> None:
        if self._problems.get(about) != text:
            self._problems[about] = text
            self._log.error("health file unusable", detail=text)


def _lasts(silent: Mapping[str, Silence], uuid: str) -> bool:
    return uuid in silent and silent[uuid].lasting


def _boot_id(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
