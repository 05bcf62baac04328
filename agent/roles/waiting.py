"""A node agent on a node without GPUs: waits quietly, answers the probes, and looks again every so often.

A DaemonSet reaches every node, and a pod that ends there would be started over and over, hold up rolling updates and
look like a fault. So the agent is ready, unregistered and says once why. It knows nothing of state and kubelet: when
GPUs appear it hands over, and the ordinary start begins. Tests: tests/unit/roles/test_waiting.py, and the whole agent
in tests/integration/agent/test_waiting.py.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import vcuda
from agent.discovery import sysfs
from agent.errors import MissingError
from agent.roles.supervise import run_together
from agent.telemetry.http import Server
from agent.telemetry.logs import get_logger
from agent.telemetry.metrics import Exposition, Values

__all__ = ["Bus", "Wait", "look_at_bus"]

_PATIENCE = 3  # looks: a module is there some seconds before its devices are
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bus:
    """What the kernel shows without NVML. cards: bus ids of NVIDIA's GPUs. driver: whether its module is loaded."""

    cards: tuple[str, ...]
    driver: bool

    @property
    def reason(self) -> str:
        """Why there is nothing to serve, as the metric's label."""
        return "gpu-unusable" if self.cards else "no-gpu"


def look_at_bus(root: Path = sysfs.SYSFS) -> Bus:
    """The bus as it is now."""
    return Bus(sysfs.nvidia_cards(root), sysfs.driver_loaded(root))


class Wait(Generic[T]):
    """Waits until SCAN finds GPUs, which it shows by not raising MissingError; looks every INTERVAL seconds.

    BUS looks at the kernel's view. ADDRESS is where metrics and probes are served, NODE and RESOURCE are their labels.
    """

    def __init__(
        self,
        scan: Callable[[], T],
        bus: Callable[[], Bus],
        *,
        interval: float,
        address: tuple[str | None, int] | None,
        node: str,
        resource: str,
    ) -> None:
        self._scan = scan
        self._bus = bus
        self._interval = interval
        self._resource = resource
        self._before = bus()
        self._now = self._before
        self._said = ""
        self._driver_looks = 0
        self._http = Server(address, Exposition(node, self.collect).prepare, lambda: None)
        self._log = get_logger("node")

    def until_found(self, first: MissingError) -> T | None:
        """What SCAN has found in the end; None when the process was asked to end. FIRST is why it must wait.

        Raises MissingError when the driver came and stays out of reach: this container was made without it, and the
        next one will have it.
        """
        return asyncio.run(self._run(first))

    def collect(self) -> Values:
        """The values of now."""
        values = Values()
        values.add("gigaslice_waiting_for_gpus", 1, self._now.reason)
        values.add("gigaslice_kubelet_registered", 0)
        values.add("gigaslice_build_info", 1, vcuda.__version__, self._resource)
        return values

    def look(self) -> T | None:
        """Looks once; None: go on waiting. Blocks as long as a driver takes."""
        self._now = self._bus()
        try:
            return self._scan()
        except MissingError as error:
            self._say(error)
            came = self._now.driver and not self._before.driver
            self._driver_looks = self._driver_looks + 1 if came else 0
            if self._driver_looks >= _PATIENCE:
                raise MissingError(
                    f"the NVIDIA driver was loaded while the agent waited, and this process cannot reach it ({error}); "
                    "ending, so that the container is made anew and gets it"
                ) from error
            return None

    def _say(self, error: MissingError) -> None:
        if self._now.cards:
            text = f"{len(self._now.cards)} NVIDIA GPUs are on the PCI bus, but {error}"
        else:
            text = f"no NVIDIA GPU is on the PCI bus; {error}"
        if text != self._said:
            self._said = text
            level = self._log.warning if self._now.cards else self._log.info
            level("waiting for GPUs", reason=self._now.reason, again_seconds=self._interval, detail=text)

    async def _run(self, first: MissingError) -> T | None:
        self._say(first)
        stop, found = asyncio.Event(), list[T]()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)

        async def search() -> None:
            while not stop.is_set():
                try:
                    await asyncio.wait_for(stop.wait(), self._interval)
                except asyncio.TimeoutError:
                    answer = await asyncio.to_thread(self.look)
                    if answer is not None:
                        found.append(answer)
                        return

        await run_together("search", {"search": search(), "http": self._http.run()})
        return found[0] if found and not stop.is_set() else None  # the signal may have come during the look
