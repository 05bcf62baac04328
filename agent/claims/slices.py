# SPDX-License-Identifier: Apache-2.0
"""This node's slices at the API server, kept as they should be.

A slice is compared with what the server has, and written where that differs: after a start, after a hand-over and after
the kubelet has deleted it, which it does at its own start and when a driver was away for a while. Health and capacity
are written at once. The order of devices is only advice to the scheduler's first fit, and every write has it look at
waiting pods again, so a change of the order alone waits, and is written only where first fit would choose another GPU.

A server that does not know shared devices drops what makes them shared, without a word, and would then allocate them as
if each claim had one alone. So the first write of each kind is tried without effect, every answer is read, and on such
a server nothing is published. A server that drops taints has unhealthy GPUs left out in their place.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent.claims.slice_objects import SliceObjects
from agent.claims.slice_source import SliceContent
from agent.claims.stored_slice import (
    StoredSlice,
    content_of,
    keeps_sharing,
    keeps_taints,
)
from gigaslice.core.claims.slices import device_documents, pool_specs
from gigaslice.core.kube.fields import object_at, text_at
from gigaslice.core.placement.first_fit import chooses_alike
from gigaslice.kubeapi.client import ApiFailure, KubeClient
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of
from gigaslice.runtime.wakeup import Alarm

__all__ = ["SlicePublisher", "SliceTimes"]

# Writes at once; seconds for another one. However often health changes, the slice is less than a second behind.
_BURST, _REFILL = 3.0, 0.5
_LONGEST_PAUSE = 30.0
_FAILURES = 3  # in a row until a server that may be restarting is a problem
_FOREVER = 3600.0
_NOT_SHARED = (
    "the API server drops what lets claims share a device (allowMultipleAllocations), so nothing is published; switch "
    "its feature gate DRAConsumableCapacity on (it is on from Kubernetes 1.36), or use --api=device-plugin"
)
_REMEDIES = {
    401: "the agent's credentials are not accepted",
    403: "the agent may not write its slices; the chart gives it that right with claims",
    404: "the cluster has no ResourceSlices of resource.k8s.io/v1, which need Kubernetes 1.34, or no node of this name",
}
_LASTING = (*_REMEDIES, 400, 413, 422)


@dataclass(frozen=True, slots=True)
class SliceTimes:
    """Seconds of the publisher.

    Attributes:
        together: In which changes become one write.
        settled: Between two writes of which the second changes the order alone.
        jitter: What is added to that at most, so that not all nodes write at once.
        look: Until it is looked again what should be published.
        pause: The first pause after a failure.
        refused: The pause after an answer that the same request gets again.
    """

    together: float = 0.1
    settled: float = 10.0
    jitter: float = 3.0
    look: float = 5.0
    pause: float = 0.5
    refused: float = 60.0


class Content(Protocol):
    """Where what is published comes from."""

    def now(self) -> SliceContent:
        """Returns what is to be published now."""
        ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Has a function called when that may have changed. Returns a function that ends this."""
        ...


class SlicePublisher:
    """The slices of NODE at CLIENT."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        content: Content,
        *,
        clock: Callable[[], float] = time.monotonic,
        times: SliceTimes = SliceTimes(),
        **informer: Any,
    ) -> None:
        """Initializes the publisher; nothing is asked before `run`.

        Args:
            client: The API server.
            node: The name of this node, and of its pool.
            content: What is published.
            clock: Returns monotonic time.
            times: Seconds.
            informer: Times of the informer of the slices.
        """
        self.writes = 0
        """Those that the API server has accepted."""
        self.failures = 0
        """Requests that came to nothing."""
        self.current = False
        """Whether the API server has what it should have, as far as was seen."""
        self._node = node
        self._content = content
        self._clock = clock
        self._times = times
        self._offered = True
        self._problem = ""
        self._sharing = False  # whether the server was seen to keep it
        self._taints: bool | None = None  # likewise; None: not tried
        # As if just written: the agent before this one may have done so, and every write wakes pods.
        self._written_at, self._jitter = clock(), random.uniform(0.0, times.jitter)
        self._failed_in_row = 0
        self._not_before = 0.0
        self._tokens, self._filled_at = _BURST, clock()
        self._alarm, self._registrations = Alarm(), Alarm()
        self._slices = SliceObjects(client, node, self._alarm.ring, **informer)
        self._reported = LogOnce()
        self._log = get_logger("claims")

    @property
    def problem(self) -> str:
        """Why the node's GPUs are not published as they should be, in a sentence; empty where they are."""
        return self._problem or self._slices.refusal

    def offer(self) -> None:
        """Has the slices published. Returns at once."""
        self._offered = True
        self._alarm.ring()

    def withdraw(self) -> None:
        """Has the slices deleted: claims get nothing new here. Returns at once."""
        self._offered = False
        self._alarm.ring()

    def registered(self) -> None:
        """The kubelet has registered the driver; one that has just started has deleted all slices of its node."""
        self._registrations.ring()

    async def run(self) -> None:
        """Works until cancelled. The slices stay: the next agent finds them as they should be."""
        unwatch = self._content.watch(self._alarm.ring)
        try:
            await all_of(self._slices.run(), self._keep_publishing(), self._keep_listing())
        finally:
            unwatch()

    async def _keep_publishing(self) -> None:
        await self._slices.seen()
        while True:
            try:
                wait = await self._publish()
            except ApiFailure as failure:
                self._failed(failure)
                wait = 0.0
            wait = max(wait, self._not_before - self._clock(), 0.0)
            if await self._alarm.wait(wait):
                await asyncio.sleep(self._times.together)

    async def _keep_listing(self) -> None:
        while True:
            if await self._registrations.wait(_FOREVER):
                await self._slices.refresh()

    # --- what there should be -----------------------------------------------------------------------------------

    async def _publish(self) -> float:
        """Does what is due. Returns seconds until it is looked again. Raises ApiFailure."""
        now = self._clock()
        if now < self._not_before:
            return self._not_before - now
        if not self._offered:
            await self._slices.delete()
            self._succeeded()
            self.current = not self._slices.present
            return self._times.look
        content = self._content.now()
        devices = self._devices(content)
        wait = self._wait(content, devices, now)
        if wait > 0:
            return wait
        self.current = False
        self._tokens -= 1
        if not await self._is_kept(devices):
            return 0.0
        await self._write(devices)
        return 0.0

    def _devices(self, content: SliceContent) -> tuple[dict[str, Any], ...]:
        made = device_documents(
            content.gpus, content.topology, content.order, taints=self._taints is not False
        )
        self._reported.keep(lambda subject: not isinstance(subject, tuple) or subject[1] in made.notes)
        for note in made.notes:
            if self._reported.new(("note", note)):
                self._log.warning("label not published", detail=note)
        return made.devices

    def _wait(self, content: SliceContent, devices: Sequence[Mapping[str, Any]], now: float) -> float:
        """Seconds until a write is due; 0 when it is. Looks at nothing but what there is and what there should be."""
        wanted = {name: content_of(spec) for name, spec in pool_specs(self._node, devices, 0).items()}
        present, whole = self._slices.specs, self._slices.whole
        self.current = whole and present == wanted
        if self.current:
            self._succeeded()
            return self._times.look
        published = self._slices.devices
        if whole and _same_but_for_order(present, wanted, published, devices):
            if chooses_alike(_uuids(published), _uuids(devices), content.free):
                self.current = True
                self._succeeded()
                return self._times.look
            due = self._written_at + self._times.settled + self._jitter - now
            if due > 0:
                return min(due, self._times.look)
        self._tokens = min(_BURST, self._tokens + (now - self._filled_at) / _REFILL)
        self._filled_at = now
        return max(0.0, (1.0 - self._tokens) * _REFILL)

    # --- requests -----------------------------------------------------------------------------------------------

    async def _is_kept(self, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the server keeps all that these devices say, tried without effect where that is not known."""
        tainted = any(device.get("taints") for device in devices)
        if not devices or (self._sharing and (self._taints is not None or not tainted)):
            return True
        return await self._read(devices, await self._slices.tried(devices))

    async def _write(self, devices: Sequence[Mapping[str, Any]]) -> None:
        answers = await self._slices.write(devices)
        self.writes += 1
        self._written_at, self._jitter = self._clock(), random.uniform(0.0, self._times.jitter)
        if devices:
            await self._read(devices, answers)

    async def _read(self, devices: Sequence[Mapping[str, Any]], answers: Iterable[StoredSlice]) -> bool:
        """Whether the answers to a write of these devices have all that was written."""
        kept = [device for answer in answers for device in answer.devices]
        self._sharing = keeps_sharing(kept)
        if not self._sharing:
            await self._slices.delete()
            self._refused(_NOT_SHARED)
            return False
        if not any(device.get("taints") for device in devices):
            return True
        self._taints = keeps_taints(devices, kept)
        if not self._taints and self._reported.new("taints"):
            self._log.warning(
                "unhealthy GPUs left out of the slice",
                detail="the API server drops taints of devices; its feature gate DRADeviceTaints is on from Kubernetes "
                "1.36",
            )
        return self._taints

    # --- how it goes --------------------------------------------------------------------------------------------

    def _succeeded(self) -> None:
        self._failed_in_row, self._problem = 0, ""
        if self._reported.over("problem"):
            self._log.info("slices published again", node=self._node)

    def _refused(self, problem: str, seconds: float = 0.0) -> None:
        """Notes a problem that lasts; it is tried again after a long pause."""
        self._problem = problem
        pause = self._times.refused * random.uniform(0.5, 1.0)
        self._not_before = self._clock() + seconds + pause
        if self._reported.new("problem", problem):
            self._log.error("slices not published", node=self._node, detail=problem)

    def _failed(self, failure: ApiFailure) -> None:
        self.failures += 1
        self._failed_in_row += 1
        self.current = False
        if failure.status in _LASTING:
            remedy = _REMEDIES.get(failure.status, "tried again")
            self._refused(f"{failure}; {remedy}", failure.retry_after)
            return
        pause = min(_LONGEST_PAUSE, self._times.pause * 2 ** min(self._failed_in_row - 1, 10))
        self._not_before = self._clock() + failure.retry_after + pause * random.uniform(0.5, 1.0)
        if self._failed_in_row >= _FAILURES:
            self._problem = str(failure)
            if self._reported.new("problem", str(failure.status)):
                self._log.warning("slices not published", node=self._node, detail=f"{failure}; tried again")


def _same_but_for_order(
    present: Mapping[str, Mapping[str, Any]],
    wanted: Mapping[str, Mapping[str, Any]],
    published: Iterable[Mapping[str, Any]],
    devices: Iterable[Mapping[str, Any]],
) -> bool:
    """Whether slices have the same devices, in whatever order."""
    frames, wanted_frames = (
        {name: {**spec, "devices": None} for name, spec in specs.items()} for specs in (present, wanted)
    )
    by_name = {device.get("name"): device for device in published}
    return frames == wanted_frames and by_name == {device.get("name"): device for device in devices}


def _uuids(devices: Iterable[Mapping[str, Any]]) -> list[str]:
    return [text_at(object_at(object_at(device, "attributes"), "uuid"), "string") for device in devices]
