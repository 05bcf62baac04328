# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of the CSI, as recorded from 1.36: registration, publish, retries, restarts, unpublish.

It keeps the recorded order and times (tests/fixtures/transcripts/kubelet-csi-*): a socket in plugins_registry is asked
GetInfo, NodeGetInfo, and told the outcome; NodeGetCapabilities comes twice before every publish; a failed publish is
tried again after 0.5 s, then twice as long each time, up to 2 min 2 s; a kubelet that starts publishes every running
volume again; a deleted pod's volume is unpublished some two seconds later, and again until that succeeds. A Secret that
does not exist means no call at all. `scale` shortens the times.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2 as csi
from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2_grpc as csi_rpc
from gigaslice.runtime.pb import pluginregistration_v1_pb2 as reg
from gigaslice.runtime.pb import pluginregistration_v1_pb2_grpc as reg_rpc
from tests.fakes.kubelet.plugin_sockets import PluginSockets

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "CsiKubelet", "CsiPod", "CsiVolumeOfPod", "volume_handle"]

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 122.0
RPC_SECONDS = 120.0
_TICK = 0.1  # the reconciler's
_UNPUBLISH_AFTER = 2.0
_REPUBLISH_AFTER = 1.2
MAYBE_IN_PROGRESS = frozenset(
    ("ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED")
)


def volume_handle(uid: str, name: str) -> str:
    """The handle of an inline volume: the same for every call of it, and another for every pod."""
    return "csi-" + hashlib.sha256(f"{name}{uid}".encode()).hexdigest()


@dataclass
class CsiVolumeOfPod:
    """One inline volume. secret: its Secret's contents, None where it names none that exists."""

    name: str
    attributes: Mapping[str, str]
    secret: Mapping[str, str] | None = field(default_factory=dict)
    read_only: bool = True


@dataclass
class CsiPod:
    """A pod of this node. mounted: volumes that were published. events: of kind FailedMount, as the pod shows them."""

    name: str
    volumes: list[CsiVolumeOfPod]
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    mounted: set[str] = field(default_factory=set)
    uncertain: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    deleted: bool = False


class CsiKubelet:
    """A kubelet with its directory at ROOT. `calls`: what it has sent, as the transcripts have it."""

    def __init__(self, root: Path, *, scale: float = 1.0, node: str = "lab-node") -> None:
        self.root = root
        self.scale = scale
        self.node = node
        self.node_id = ""
        self.driver = ""
        self.endpoint = ""
        self.calls: list[dict[str, Any]] = []
        self.pods: dict[str, CsiPod] = {}
        self.registered = asyncio.Event()
        self._began = time.monotonic()
        self._sockets = PluginSockets(self.registry)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._workers: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._watch: asyncio.Task[Any] | None = None
        self.registry.mkdir(parents=True, exist_ok=True)
        (root / "pods").mkdir(exist_ok=True)

    @property
    def registry(self) -> Path:
        return self.root / "plugins_registry"

    def target(self, pod: CsiPod, volume: str) -> Path:
        return self.root / "pods" / pod.uid / "volumes" / "kubernetes.io~csi" / volume / "mount"

    # Its life

    async def start(self) -> None:
        """Watches the directory; publishes what its pods have, as after a restart."""
        self._sockets.forget()
        self.registered.clear()
        self._watch = asyncio.create_task(self._watching())
        for pod in list(self.pods.values()):
            for volume in pod.volumes:
                if not pod.deleted:
                    self._work(pod, volume, after=_REPUBLISH_AFTER)
                else:
                    self._unmount(pod, volume)

    async def stop(self) -> None:
        """Ends at once, as by kill -9: mounts stay, calls under way are broken off."""
        for one in (*self._tasks, *self._workers.values(), *([self._watch] if self._watch else [])):
            one.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await one
        self._workers.clear()
        self._tasks.clear()

    def run(self, pod: CsiPod) -> CsiPod:
        """A pod is bound to this node."""
        self.pods[pod.uid] = pod
        for volume in pod.volumes:
            self._work(pod, volume)
        return pod

    def delete(self, pod: CsiPod) -> None:
        """A pod is deleted, with a grace of 0."""
        pod.deleted = True
        for volume in pod.volumes:
            worker = self._workers.pop((pod.uid, volume.name), None)
            if worker is not None:
                worker.cancel()
            self._unmount(pod, volume)

    # Plugins

    async def _watching(self) -> None:
        while True:
            for path in self._sockets.poll()[0]:
                self._spawn(self._register(path))
            await asyncio.sleep(0.02)

    async def _register(self, path: Path) -> None:
        try:
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                stub = reg_rpc.RegistrationStub(channel)
                info = await self._call(
                    "pluginregistration.Registration/GetInfo", stub.GetInfo, reg.InfoRequest(), 10
                )
                assert info.type == "CSIPlugin" and "1.0.0" in info.supported_versions
                async with grpc.aio.insecure_channel(f"unix:{info.endpoint}") as driver:
                    node = csi_rpc.NodeStub(driver)
                    told = await self._call(
                        "csi.v1.Node/NodeGetInfo", node.NodeGetInfo, csi.NodeGetInfoRequest()
                    )
                self.driver, self.endpoint, self.node_id = info.name, info.endpoint, told.node_id
                status = reg.RegistrationStatus(plugin_registered=True)
                name = "pluginregistration.Registration/NotifyRegistrationStatus"
                await self._call(name, stub.NotifyRegistrationStatus, status, 10)
                self.registered.set()
        except grpc.aio.AioRpcError:
            self._sockets.forget(path)

    # Volumes

    def _work(self, pod: CsiPod, volume: CsiVolumeOfPod, after: float = 0.0) -> None:
        self._workers[pod.uid, volume.name] = asyncio.create_task(self._publishing(pod, volume, after))

    async def _publishing(self, pod: CsiPod, volume: CsiVolumeOfPod, after: float) -> None:
        await asyncio.sleep(after * self.scale)
        pause = FIRST_PAUSE
        while not await self._publish(pod, volume):
            # The reconciler comes by every 0.1 s: that rounds each pause up.
            await asyncio.sleep((pause + _TICK / 2) * self.scale)
            pause = min(pause * 2, LONGEST_PAUSE)
        pod.mounted.add(volume.name)
        if len(pod.mounted) == len(pod.volumes):
            pod.ready.set()

    async def _publish(self, pod: CsiPod, volume: CsiVolumeOfPod) -> bool:
        failed = f'MountVolume.SetUp failed for volume "{volume.name}" : '
        if volume.secret is None:
            pod.events.append(
                f"{failed}fetching NodePublishSecretRef {pod.namespace}/missing failed: kubernetes.io/csi: failed to "
                f'find the secret missing in the namespace {pod.namespace} with error: secrets "missing" not found'
            )
            return False
        if not self.endpoint:
            pod.events.append(
                f"{failed}driver name dataset.gigaslice.io not found in the list of registered CSI drivers"
            )
            return False
        target = self.target(pod, volume.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        request = csi.NodePublishVolumeRequest(
            volume_id=volume_handle(pod.uid, volume.name),
            target_path=str(target),
            volume_capability=csi.VolumeCapability(
                mount=csi.VolumeCapability.MountVolume(),
                access_mode=csi.VolumeCapability.AccessMode(
                    mode=csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
                ),
            ),
            readonly=volume.read_only,
            secrets=dict(volume.secret),
            volume_context={
                **volume.attributes,
                "csi.storage.k8s.io/pod.name": pod.name,
                "csi.storage.k8s.io/pod.namespace": pod.namespace,
                "csi.storage.k8s.io/pod.uid": pod.uid,
                "csi.storage.k8s.io/serviceAccount.name": "default",
                "csi.storage.k8s.io/ephemeral": "true",
            },
        )
        try:
            async with grpc.aio.insecure_channel(f"unix:{self.endpoint}") as channel:
                node = csi_rpc.NodeStub(channel)
                for _ in range(2):
                    name = "csi.v1.Node/NodeGetCapabilities"
                    await self._call(name, node.NodeGetCapabilities, csi.NodeGetCapabilitiesRequest())
                await self._call("csi.v1.Node/NodePublishVolume", node.NodePublishVolume, request)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            go = "".join(word.capitalize() for word in code.split("_"))
            pod.events.append(f"{failed}rpc error: code = {go} desc = {error.details()}")
            if code in MAYBE_IN_PROGRESS:
                pod.uncertain.add(volume.name)
            else:
                pod.uncertain.discard(volume.name)
                with contextlib.suppress(OSError):
                    target.rmdir()
            return False
        return True

    def _unmount(self, pod: CsiPod, volume: CsiVolumeOfPod) -> None:
        self._spawn(self._unpublishing(pod, volume))

    async def _unpublishing(self, pod: CsiPod, volume: CsiVolumeOfPod) -> None:
        await asyncio.sleep(_UNPUBLISH_AFTER * self.scale)
        pause = FIRST_PAUSE
        while volume.name in pod.mounted | pod.uncertain:
            request = csi.NodeUnpublishVolumeRequest(
                volume_id=volume_handle(pod.uid, volume.name), target_path=str(self.target(pod, volume.name))
            )
            try:
                async with grpc.aio.insecure_channel(f"unix:{self.endpoint}") as channel:
                    node = csi_rpc.NodeStub(channel)
                    await self._call("csi.v1.Node/NodeUnpublishVolume", node.NodeUnpublishVolume, request)
                pod.mounted.discard(volume.name)
                pod.uncertain.discard(volume.name)
            except grpc.aio.AioRpcError:
                await asyncio.sleep((pause + _TICK / 2) * self.scale)
                pause = min(pause * 2, LONGEST_PAUSE)
        base = self.root / "pods" / pod.uid
        for path in (self.target(pod, volume.name), *self.target(pod, volume.name).parents):
            if path == base.parent:
                break
            with contextlib.suppress(OSError):
                path.rmdir()
        self.pods.pop(pod.uid, None)

    async def _call(self, name: str, method: Any, request: Any, seconds: float = RPC_SECONDS) -> Any:
        line: dict[str, Any] = {"t": (time.monotonic() - self._began) * 1000, "rpc": name, "request": request}
        self.calls.append(line)
        try:
            reply = await method(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            line["code"], line["details"] = error.code().name, error.details()
            raise
        finally:
            line["ms"] = (time.monotonic() - self._began) * 1000 - line["t"]
        line["reply"] = reply
        return reply

    def rpcs(self, name: str) -> list[dict[str, Any]]:
        """The calls of one method."""
        return [one for one in self.calls if one["rpc"].endswith(f"/{name}")]

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
