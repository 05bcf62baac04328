# SPDX-License-Identifier: Apache-2.0
"""A node agent on a node without GPUs: it waits, answers the probes, and scans again at an interval.

A DaemonSet reaches every node, and a pod that ends there would be started over and over, hold up rolling updates and
look like a fault. So the agent is ready and unregistered, and logs the reason once. It touches neither state nor
kubelet: when GPUs appear, the ordinary start begins. A driver that hangs is waited for too, from the first scan on:
scans run in a thread that the process need not join, the probe answers "live, not ready", and the log repeats it.
Tests: tests/unit/agent/roles/test_gpu_wait.py, and the whole agent in tests/integration/agent/test_waiting.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from agent.config import Config
from agent.inventory import sysfs
from agent.telemetry.metrics import values_of
from gigaslice.core.errors import MissingError
from gigaslice.runtime.http_server import endpoints
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.metrics import Values
from gigaslice.runtime.role_start import set_at_signals
from gigaslice.runtime.tasks import run_together
from gigaslice.runtime.time_limit import set_within

__all__ = ["Bus", "GpuWait", "GpuWaitTimes", "read_bus", "scan_in_thread"]

_PATIENCE = 3  # scans: a module is there some seconds before its devices are
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bus:
    """What the kernel shows without NVML. GPUs: bus ids of NVIDIA's GPUs. driver: whether its module is loaded."""

    gpus: tuple[str, ...]
    driver: bool

    @property
    def reason(self) -> str:
        """Why there is nothing to serve, as the metric's label."""
        return "gpu-unusable" if self.gpus else "no-gpu"


def read_bus(root: Path = sysfs.SYSFS) -> Bus:
    """The bus as it is now."""
    return Bus(sysfs.nvidia_gpus(root), sysfs.driver_loaded(root))


def scan_in_thread(scan: Callable[[], T]) -> Future[T]:
    """What SCAN returns or raises, once it does; it runs in a thread that does not keep the process from ending."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(scan())
        except BaseException as error:  # noqa: BLE001  (the caller gets it from the future)
            answer.set_exception(error)

    threading.Thread(target=run, name="scan", daemon=True).start()
    return answer


@dataclass(frozen=True, slots=True)
class GpuWaitTimes:
    """How long a driver may take until something is said of it. Seconds.

    Attributes:
        quick: For the first scan; a driver that is slow to start takes longer.
        slow: For a driver that merely starts.
        log: Between two lines about a driver that hangs.
    """

    quick: float = 2.0
    slow: float = 60.0
    log: float = 30.0


class GpuWait(Generic[T]):
    """Waits until SCAN finds GPUs, which it shows by not raising MissingError.

    BUS reads the kernel's view. CONFIG says how often to scan, and where metrics and probes are served. BEGINS is
    called before it waits. MEANWHILE works beside it until its event is set, and then ends by itself. TIMES: how long a
    driver may take.
    """

    def __init__(
        self,
        scan: Callable[[], T],
        bus: Callable[[], Bus],
        config: Config,
        begins: Callable[[], None] = lambda: None,
        *,
        meanwhile: Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None = None,
        times: GpuWaitTimes = GpuWaitTimes(),
    ) -> None:
        self._scan = scan
        self._bus = bus
        self._interval = config.scan_interval
        self._resource = config.resource
        self._before = bus()
        self._now = self._before
        self._logged = LogOnce()
        self._driver_scans = 0
        self._begins = begins
        self._meanwhile = meanwhile
        self._times = times
        self._since: float | None = None  # when the scan began that has not ended yet
        self._http = endpoints(config, self.collect, self.unready, node=config.node)
        self._log = get_logger("node")

    def until_found(self, first: MissingError | None = None, *, exits: bool = False) -> T | None:
        """What SCAN has found in the end; None when the process was asked to end. FIRST is why it must wait.

        Without FIRST it scans at once, and EXITS has it raise what that scan raises. Raises MissingError too when the
        driver came and stays out of reach: this container was made without it, and the next one will have it.
        """
        scanning: Future[T | None] | None = None
        if first is None:
            scanning = scan_in_thread(self._scan)
            try:
                return scanning.result(self._times.quick)
            except MissingError as error:
                if exits:
                    raise
                first, scanning = error, None
            except FutureTimeout:
                pass
        self._begins()
        return asyncio.run(self._run(first, scanning, exits=exits))

    def unready(self) -> str | None:
        """Why the agent is not ready: a node without GPUs is, one whose driver hangs is not."""
        return "the NVIDIA driver does not answer" if self._hangs() else None

    def collect(self) -> Values:
        """The values of now."""
        values = values_of(self._resource, registered=False)
        reason = "driver-hangs" if self._hangs() else self._now.reason
        values.add("gigaslice_waiting_for_gpus", 1, reason)
        return values

    def scan(self) -> T | None:
        """Scans once; None: go on waiting. Blocks as long as a driver takes."""
        self._now = self._bus()
        try:
            return self._scan()
        except MissingError as error:
            self._log_reason(error)
            came = self._now.driver and not self._before.driver
            self._driver_scans = self._driver_scans + 1 if came else 0
            if self._driver_scans >= _PATIENCE:
                raise MissingError(
                    f"the NVIDIA driver was loaded while the agent waited, and this process cannot reach it ({error}); "
                    "ending, so that the container is made anew and gets it"
                ) from error
            return None

    def _log_reason(self, error: MissingError) -> None:
        if self._now.gpus:
            text = f"{len(self._now.gpus)} NVIDIA GPUs are on the PCI bus, but {error}"
        else:
            text = f"no NVIDIA GPU is on the PCI bus; {error}"
        if self._logged.new("waiting", text):
            level = self._log.warning if self._now.gpus else self._log.info
            level("waiting for GPUs", reason=self._now.reason, again_seconds=self._interval, detail=text)

    def _hangs(self) -> bool:
        return self._since is not None and time.monotonic() - self._since >= self._times.quick

    async def _run(
        self, first: MissingError | None, scanning: Future[T | None] | None, *, exits: bool
    ) -> T | None:
        if first is not None:
            self._log_reason(first)
        stop, over, answers = set_at_signals(asyncio.Event()), asyncio.Event(), list[T]()
        meanwhile = asyncio.ensure_future(self._meanwhile(over)) if self._meanwhile is not None else None

        async def search() -> None:
            try:
                answer = await self._first(scanning, stop, exits=exits) if scanning else None
                while answer is None and not stop.is_set():
                    if not await set_within(stop, self._interval):
                        answer = await self._outcome(scan_in_thread(self.scan), stop, self._times.log)
                answers.extend([] if answer is None else [answer])
            finally:
                over.set()
                if meanwhile is not None:
                    await asyncio.gather(meanwhile)

        await run_together("search", {"search": search(), "http": self._http.run()})
        return (
            answers[0] if answers and not stop.is_set() else None
        )  # the signal may have come during the scan

    def _log_slow(self, seconds: float) -> None:
        """Logs that the driver does not answer; one that merely starts slowly is no warning."""
        if seconds < self._times.slow:
            detail = (
                "the NVIDIA driver has not answered yet; GPUs without persistence mode take some seconds each"
            )
            self._log.info("waiting for NVML", seconds=round(seconds), detail=detail)
        else:
            detail = "the NVIDIA driver does not answer; see dmesg; the machine may have to be started anew"
            self._log.warning("waiting for NVML", seconds=round(seconds), detail=detail)

    async def _first(self, scanning: Future[T | None], stop: asyncio.Event, *, exits: bool) -> T | None:
        """The outcome of a first scan that takes long."""
        try:
            return await self._outcome(scanning, stop, 0.0)
        except MissingError as error:
            if exits:
                raise
            self._log_reason(error)
            return None

    async def _outcome(self, scanning: Future[T | None], stop: asyncio.Event, log_after: float) -> T | None:
        """What SCANNING finds; None when the process is asked to end. After LOG_AFTER seconds it is logged."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended.set)

        self._since = since = time.monotonic() - (0.0 if log_after else self._times.quick)
        both = [asyncio.ensure_future(event.wait()) for event in (ended, stop)]
        scanning.add_done_callback(wake)
        try:
            while not (ended.is_set() or stop.is_set()):
                done, _ = await asyncio.wait(both, timeout=log_after, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    log_after = self._times.log
                    self._log_slow(time.monotonic() - since)
            return scanning.result() if ended.is_set() and not stop.is_set() else None
        finally:
            self._since = None
            for waiter in both:
                waiter.cancel()
