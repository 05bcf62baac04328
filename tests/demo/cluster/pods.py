"""A pod's way through the cluster: admission, the scheduler, its node, a program that uses memory, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.names import ASSIGNMENT, INVENTORY
from gigaslice.core.model import DATASET_DRIVER
from tests.demo.clients import Client, DemoError
from tests.demo.cluster.control import ControlPlane
from tests.demo.cluster.nodes import SimulatedNode
from tests.demo.cluster.waiting import wait
from tests.demo.report import GIB
from tests.fakes.kubeapi import ApiServer, new_pod
from tests.fakes.kubelet import ContainerSpec, Pod, PodSpec
from tests.fakes.kubelet.csi import CsiPod, CsiVolumeOfPod

_SCHEDULER = "gigaslice-scheduler"


@dataclass
class DemoPod:
    """A pod that was created. running: set once its program has its memory.

    limits: as they were asked for. use: the part of its memory that its program takes. document: as it was admitted.
    """

    namespace: str
    name: str
    limits: Mapping[str, int]
    use: float
    dataset: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    node: SimulatedNode | None = None
    pod: Pod | None = None
    volume: CsiPod | None = None
    running: asyncio.Event = field(default_factory=asyncio.Event)
    created: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Pods:
    """The pods of the cluster, which follow what the API server says of them. Everything is called in the loop."""

    def __init__(
        self, api: ApiServer, nodes: Mapping[str, SimulatedNode], plane: ControlPlane, program: Path
    ) -> None:
        self._api = api
        self._nodes = nodes
        self._plane = plane
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.there: dict[tuple[str, str], DemoPod] = {}
        self.failures: list[str] = []
        api.store.listeners.append(self._changed)

    async def create(
        self, session: ClientSession, full_name: str, use: float = 0.7, dataset: str = "", **limits: int
    ) -> DemoPod:
        """Creates NAMESPACE/NAME, whose program uses the part USE of its memory; of LIMITS, __ stands for a slash.

        Raises:
            Refused: Admission refuses it.
        """
        namespace, name = full_name.split("/")
        asked = {key.replace("__", "/").replace("_", "."): count for key, count in limits.items()}
        asked = {key.replace("vgpu.memory", "vgpu-memory"): count for key, count in asked.items()}
        return await self._create(session, DemoPod(namespace, name, asked, use, dataset))

    async def create_again(self, session: ClientSession, one: DemoPod) -> DemoPod:
        """Creates a pod anew that has ended, as its controller would."""
        return await self._create(session, DemoPod(one.namespace, one.name, one.limits, one.use, one.dataset))

    async def _create(self, session: ClientSession, made: DemoPod) -> DemoPod:
        namespace, name, dataset = made.namespace, made.name, made.dataset
        document = new_pod(name, made.limits, schedulerName=_SCHEDULER, priority=0)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name, "controller": True}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        document["metadata"] |= {"namespace": namespace, "ownerReferences": [owner], "creationTimestamp": now}
        document["status"] = {"phase": "Pending"}
        if dataset:
            csi = {"driver": DATASET_DRIVER, "readOnly": True, "volumeAttributes": {"source": dataset}}
            document["spec"]["volumes"] = [{"name": "data", "csi": csi}]
            document["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        made.document = await self._plane.admitted(session, document)
        self.there[namespace, name] = made
        self._api.create("pods", made.document, namespace)
        return made

    async def delete(self, one: DemoPod) -> None:
        """Ends a pod and waits until it is gone."""
        ending = {"metadata": {"deletionTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}}
        self._api.change("pods", one.name, ending, one.namespace)
        if one.node is not None and one.pod is not None:
            await asyncio.to_thread(one.node.kubelet.delete_pod, one.pod)
            if one.volume is not None:
                one.node.world.kubelet.delete(one.volume)
        self._api.delete("pods", one.name, one.namespace)
        del self.there[one.namespace, one.name]

    def where(self, one: DemoPod) -> str:
        """Its node and GPUs, such as "l4-node GPU0 (8 GiB)"; empty while it has none."""
        document = self._api.get("pods", one.name, one.namespace)
        node, text = (
            document["spec"].get("nodeName", ""),
            document["metadata"].get("annotations", {}).get(ASSIGNMENT),
        )
        if not node or not text:
            return ""
        inventory = NodeInventory.decode(self._api.get("nodes", node)["metadata"]["annotations"][INVENTORY])
        number = {gpu.gpu.uuid: gpu.gpu.index for gpu in inventory.gpus}
        shares = [share for shares in Assignment.decode(text).containers.values() for share in shares]
        gpus = ", ".join(f"GPU{number[share.gpu]} ({share.slices} GiB)" for share in shares)
        return f"{node} {gpus}"

    async def close(self) -> None:
        """Lets go of what runs; programs end with their nodes."""
        self._api.store.listeners.remove(self._changed)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _changed(self, resource: str, kind: str, document: Mapping[str, Any]) -> None:
        """What a node's kubelet does with what the API server shows it: of a pod that was bound to it, it begins."""
        if resource != "pods" or kind == "DELETED":
            return
        metadata, node = document["metadata"], self._nodes.get(document["spec"].get("nodeName", ""))
        one = self.there.get((metadata["namespace"], metadata["name"]))
        if one is None or one.node is not None or node is None:
            return
        one.node = node
        task = asyncio.create_task(self._run(one, node, metadata["uid"]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, one: DemoPod, node: SimulatedNode, uid: str) -> None:
        limits = one.document["spec"]["containers"][0]["resources"]["limits"]
        counted = {name: int(count) for name, count in limits.items() if not name.startswith("gpuclass.")}
        for volume in one.document["spec"].get("volumes", ()):
            data = CsiVolumeOfPod(volume["name"], volume["csi"]["volumeAttributes"])
            one.volume = node.world.kubelet.run(CsiPod(one.name, [data], one.namespace, uid))
            await one.volume.ready.wait()
        container = ContainerSpec("c0", counted, (str(self._program),), stdin=True)
        spec = PodSpec(one.name, (container,), namespace=one.namespace, bind=True, grace_s=0.1)

        def report(phase: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._api.set_phase, one.namespace, one.name, uid, phase)

        one.pod = pod = node.kubelet.create_pod(spec, uid, report)
        try:
            await wait(
                lambda: pod.container().process is not None or pod.terminal, f"{one} starts on {node.name}"
            )
            await asyncio.to_thread(self._use, one)
        except (DemoError, AssertionError, OSError) as error:
            self.failures.append(f"{one}: {pod.message or error}")
        one.running.set()

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
