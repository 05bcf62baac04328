# SPDX-License-Identifier: Apache-2.0
"""A pod's way through the cluster: admission, the scheduler, its node, a program that uses memory, and the end.

The demo is the controller of these pods: each belongs to a Job that is managed by the demo (spec.managedBy), so that a
garbage collector finds its owner and nothing else makes pods of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.model import DATASET_DRIVER
from tests.demo.clients import Client, DemoError
from tests.demo.cluster.control_plane import ControlPlane, Document, Refused, pods_path
from tests.demo.cluster.nodes import SimulatedNode
from tests.demo.cluster.objects import Objects, status_of
from tests.demo.cluster.waiting import PATIENCE, wait
from tests.demo.report import GIB
from tests.fakes.kubeapi import new_pod
from tests.fakes.kubelet import ContainerSpec, Pod, PodSpec
from tests.fakes.kubelet.csi import CsiPod, CsiVolumeOfPod

_SCHEDULER = "gigaslice-scheduler"
_MANAGER = "gigaslice.io/demo"
_CONTAINER = "c0"  # as new_pod() names it
_FORCED = {"gracePeriodSeconds": 0}


@dataclass
class DemoPod:
    """A pod that was created.

    limits: as they were asked for. use: the part of its memory that its program takes. running: set once its program
    has its memory; gone: once the API server has the pod no more.
    """

    namespace: str
    name: str
    limits: Mapping[str, int]
    use: float
    dataset: str = ""
    node: SimulatedNode | None = None
    pod: Pod | None = None
    volume: CsiPod | None = None
    ending: bool = False
    running: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    created: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Where it is in the API server."""
        return pods_path(self.namespace, self.name)


class Pods:
    """The pods of the cluster, which follow what the API server says of them. Everything is called in the loop."""

    def __init__(
        self, objects: Objects, nodes: Mapping[str, SimulatedNode], plane: ControlPlane, program: Path
    ) -> None:
        self._objects = objects
        self._nodes = nodes
        self._plane = plane
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.there: dict[tuple[str, str], DemoPod] = {}
        self.failures: list[str] = []
        objects.pod_changed, objects.pod_gone = self._changed, self._gone

    async def create(self, full_name: str, use: float = 0.7, dataset: str = "", **limits: int) -> DemoPod:
        """Creates NAMESPACE/NAME, whose program uses the part USE of its memory; of LIMITS, __ stands for a slash.

        Raises:
            Refused: Admission refuses it.
        """
        return await self._create(_pod(full_name, use, dataset, limits))

    async def restart(self, one: DemoPod) -> DemoPod:
        """Ends a pod, and creates it anew as its controller would."""
        await self._end(one)
        return await self._create(DemoPod(one.namespace, one.name, one.limits, one.use, one.dataset))

    async def delete(self, one: DemoPod) -> None:
        """Ends a pod for good, and waits until it is gone."""
        await self._end(one)
        await self._objects.delete(_jobs(one.namespace, one.name), {"propagationPolicy": "Background"})

    async def refusal(self, full_name: str, **limits: int) -> str:
        """Admission's sentence on a pod, of which nothing is made; empty where it has none."""
        document = self._document(_pod(full_name, 0.0, "", limits))
        try:
            await self._plane.create_pod(self._objects.client, document, dry_run=True)
        except Refused as refused:
            return str(refused)
        return ""

    async def _create(self, made: DemoPod) -> DemoPod:
        document = self._document(made)
        document["metadata"]["ownerReferences"] = [await self._owner(made, document)]
        key = made.namespace, made.name
        self.there[key] = made
        try:
            await self._plane.create_pod(self._objects.client, document)
        except Refused:
            del self.there[key]
            await self._objects.delete(_jobs(*key))
            raise
        return made

    def _document(self, made: DemoPod) -> Document:
        spec: Document = {"schedulerName": _SCHEDULER, "terminationGracePeriodSeconds": 1}
        document = new_pod(made.name, made.limits, **spec)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        document["metadata"] |= {"namespace": made.namespace, "creationTimestamp": now}
        document["status"] = {"phase": "Pending"}
        if made.dataset:
            csi = {"driver": DATASET_DRIVER, "readOnly": True, "volumeAttributes": {"source": made.dataset}}
            document["spec"]["volumes"] = [{"name": "data", "csi": csi}]
            document["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        return document

    async def _owner(self, made: DemoPod, document: Document) -> Document:
        template = {"spec": {**document["spec"], "restartPolicy": "Never"}}
        job = await self._objects.create(
            _jobs(made.namespace),
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": made.name, "namespace": made.namespace},
                "spec": {"managedBy": _MANAGER, "template": template},
            },
        )
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": made.name,
            "uid": job["metadata"]["uid"],
            "controller": True,
        }

    async def _end(self, one: DemoPod) -> None:
        await self._objects.delete(one.path)
        try:
            await asyncio.wait_for(one.gone.wait(), PATIENCE)
        except asyncio.TimeoutError:
            raise DemoError(f"{one} has not ended after {PATIENCE:.0f} s") from None

    def where(self, one: DemoPod) -> str:
        """Its node and GPUs, such as "l4-node GPU0 (8 GiB)"; empty while it has none."""
        document = self._objects.pod(one.namespace, one.name)
        node = document.get("spec", {}).get("nodeName", "")
        text = document.get("metadata", {}).get("annotations", {}).get(ASSIGNMENT)
        if not node or not text:
            return ""
        number = {gpu.gpu.uuid: gpu.gpu.index for gpu in self._objects.inventories()[node].gpus}
        shares = [share for shares in Assignment.decode(text).containers.values() for share in shares]
        gpus = ", ".join(f"GPU{number[share.gpu]} ({share.slices} GiB)" for share in shares)
        return f"{node} {gpus}"

    async def close(self) -> None:
        """Lets go of what runs; programs end with their nodes."""
        self._objects.pod_changed = self._objects.pod_gone = lambda document: None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what a node's kubelet does with what the API server shows it -------------------------------------------

    def _changed(self, document: Document) -> None:
        """Begins a pod that was bound to a node, and ends one that is to be ended."""
        metadata = document["metadata"]
        one = self.there.get((metadata["namespace"], metadata["name"]))
        node = self._nodes.get(document["spec"].get("nodeName", ""))
        if one is None or node is None:
            return
        if one.node is None:
            one.node = node
            self._spawn(self._run(one, node, document))
        if metadata.get("deletionTimestamp") and not one.ending:
            one.ending = True
            self._spawn(self._stop(one, metadata["uid"]))

    def _gone(self, document: Document) -> None:
        metadata = document["metadata"]
        if one := self.there.pop((metadata["namespace"], metadata["name"]), None):
            one.gone.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, one: DemoPod, node: SimulatedNode, document: Document) -> None:
        uid = document["metadata"]["uid"]
        limits = document["spec"]["containers"][0]["resources"]["limits"]
        counted = {name: int(count) for name, count in limits.items() if not name.startswith("gpuclass.")}
        for volume in document["spec"].get("volumes", ()):
            data = CsiVolumeOfPod(volume["name"], volume["csi"]["volumeAttributes"])
            one.volume = node.world.kubelet.run(CsiPod(one.name, [data], one.namespace, uid))
            await one.volume.ready.wait()
        container = ContainerSpec(_CONTAINER, counted, (str(self._program),), stdin=True)
        spec = PodSpec(one.name, (container,), namespace=one.namespace, bind=True, grace_s=0.1)

        def report(phase: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(lambda: self._spawn(self._report(one, uid, phase)))

        one.pod = pod = node.kubelet.create_pod(spec, uid, report)
        try:
            await wait(
                lambda: pod.container().process is not None or pod.terminal, f"{one} starts on {node.name}"
            )
            await asyncio.to_thread(self._use, one)
        except (DemoError, AssertionError, OSError) as error:
            self.failures.append(f"{one}: {pod.message or error}")
        one.running.set()

    async def _report(self, one: DemoPod, uid: str, phase: str) -> None:
        async with one.writing:  # in the order in which they were reported
            await self._objects.change(
                f"{one.path}/status", {"metadata": {"uid": uid}, "status": status_of(phase, _CONTAINER)}
            )

    async def _stop(self, one: DemoPod, uid: str) -> None:
        if one.node is not None and one.pod is not None:
            await asyncio.to_thread(one.node.kubelet.delete_pod, one.pod)
            if one.volume is not None:
                one.node.world.kubelet.delete(one.volume)
        async with one.writing:
            await self._objects.delete(one.path, {**_FORCED, "preconditions": {"uid": uid}})

    def _use(self, one: DemoPod) -> None:
        assert one.pod is not None
        process = one.pod.container().process
        if process is None:
            raise DemoError(f"{one.pod!r} {one.pod.message}")
        client = Client(process)
        wanted = int(client.total() * one.use)
        while wanted > 0:
            if code := client.alloc(min(wanted, 4 * GIB)):
                raise DemoError(f"it could not take its memory: CUDA error {code}")
            wanted -= 4 * GIB


def _pod(full_name: str, use: float, dataset: str, limits: Mapping[str, int]) -> DemoPod:
    namespace, name = full_name.split("/")
    asked = {key.replace("__", "/").replace("_", "."): count for key, count in limits.items()}
    asked = {key.replace("vgpu.memory", "vgpu-memory"): count for key, count in asked.items()}
    return DemoPod(namespace, name, asked, use, dataset)


def _jobs(namespace: str, name: str = "") -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")
