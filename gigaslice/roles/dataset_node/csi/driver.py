# SPDX-License-Identifier: Apache-2.0
"""The driver's answers to the kubelet: Identity and Node of the CSI, over tasks.

What a code means to the kubelet (1.36): ABORTED, UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED and RESOURCE_EXHAUSTED say
that work may be under way, so the volume is unpublished when its pod goes; any other failure says that nothing is, and
the target is removed at once. The code changes nothing about when the kubelet tries again: after half a second, then
twice as long each time, up to two minutes. Every text becomes the pod's FailedMount event.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf.wrappers_pb2 import BoolValue

from gigaslice.core.dataset.errors import (
    CacheFullError,
    DatasetError,
    ListingError,
    QuotaError,
    RequestError,
    SourceError,
)
from gigaslice.core.errors import GigasliceError, InputError
from gigaslice.core.model import DATASET_DRIVER
from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2 as api
from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2_grpc as rpc
from gigaslice.roles.dataset_node.csi.target import PublishTarget, check_target
from gigaslice.roles.dataset_node.store import Volume
from gigaslice.roles.dataset_node.tasks.volume_tasks import StillFetching, VolumeTasks
from gigaslice.runtime.logs import get_logger

__all__ = ["IdentityServicer", "NodeServicer", "code_of"]

_HOLD = 118.0  # seconds; the kubelet's own limit is 120
_MARGIN = 2.0
_MOST_TEXT = 900  # characters of a FailedMount event that stay legible
_POD = "csi.storage.k8s.io/pod."


def code_of(error: GigasliceError) -> grpc.StatusCode:
    """The code that an error is answered with."""
    if isinstance(error, StillFetching):
        return grpc.StatusCode.ABORTED
    if isinstance(error, CacheFullError | QuotaError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, ListingError):
        return grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, RequestError | InputError):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, SourceError):
        if error.denied:
            return grpc.StatusCode.PERMISSION_DENIED
        return (
            grpc.StatusCode.UNAVAILABLE
            if error.retry or error.changed
            else grpc.StatusCode.FAILED_PRECONDITION
        )
    return grpc.StatusCode.UNAVAILABLE if isinstance(error, DatasetError) else grpc.StatusCode.INTERNAL


class IdentityServicer(rpc.IdentityServicer):
    """Who the driver is."""

    def __init__(self, version: str) -> None:
        self._version = version

    async def GetPluginInfo(  # noqa: N802
        self, request: api.GetPluginInfoRequest, context: Any
    ) -> api.GetPluginInfoResponse:
        """Name and version."""
        del request, context
        return api.GetPluginInfoResponse(name=DATASET_DRIVER, vendor_version=self._version)

    async def GetPluginCapabilities(  # noqa: N802
        self, request: api.GetPluginCapabilitiesRequest, context: Any
    ) -> api.GetPluginCapabilitiesResponse:
        """None: there is no controller."""
        del request, context
        return api.GetPluginCapabilitiesResponse()

    async def Probe(self, request: api.ProbeRequest, context: Any) -> api.ProbeResponse:  # noqa: N802
        """Ready as soon as it answers."""
        del request, context
        return api.ProbeResponse(ready=BoolValue(value=True))


class NodeServicer(rpc.NodeServicer):
    """Volumes on this node.

    Args:
        tasks: Do the work.
        node: This node's name.
        pods: The kubelet's directory of pods.
        hold: How many seconds a call is held at most.
    """

    def __init__(self, tasks: VolumeTasks, node: str, pods: Path, *, hold: float = _HOLD) -> None:
        self._tasks = tasks
        self._node = node
        self._pods = pods
        self._hold = hold
        self._log = get_logger("csi")

    async def NodeGetInfo(self, request: api.NodeGetInfoRequest, context: Any) -> api.NodeGetInfoResponse:  # noqa: N802
        """The node's name."""
        del request, context
        return api.NodeGetInfoResponse(node_id=self._node)

    async def NodeGetCapabilities(  # noqa: N802
        self, request: api.NodeGetCapabilitiesRequest, context: Any
    ) -> api.NodeGetCapabilitiesResponse:
        """None: volumes are not staged, and need no room of their own."""
        del request, context
        return api.NodeGetCapabilitiesResponse()

    async def NodeStageVolume(  # noqa: N802
        self, request: api.NodeStageVolumeRequest, context: Any
    ) -> api.NodeStageVolumeResponse:
        """Not offered: an inline volume has nothing to stage."""
        del request
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "volumes of this driver are not staged")
        raise AssertionError("abort raises")

    async def NodeUnstageVolume(  # noqa: N802
        self, request: api.NodeUnstageVolumeRequest, context: Any
    ) -> api.NodeUnstageVolumeResponse:
        """Not offered."""
        del request
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "volumes of this driver are not staged")
        raise AssertionError("abort raises")

    async def NodePublishVolume(  # noqa: N802
        self, request: api.NodePublishVolumeRequest, context: Any
    ) -> api.NodePublishVolumeResponse:
        """Answers when the volume can be used, or with how far it is."""
        remaining = context.time_remaining()
        seconds = self._hold if remaining is None else min(self._hold, remaining - _MARGIN)
        try:
            volume = self._volume(request)
            attributes = dict(request.volume_context)
            await self._tasks.publish(volume, attributes, dict(request.secrets), seconds)
        except GigasliceError as error:
            await self._refuse(error, request.volume_id, context)
        return api.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(  # noqa: N802
        self, request: api.NodeUnpublishVolumeRequest, context: Any
    ) -> api.NodeUnpublishVolumeResponse:
        """Answers when nothing of the volume is mounted any more."""
        try:
            self._named(request.volume_id, request.target_path)
            check_target(request.target_path, self._pods)
            await self._tasks.unpublish(request.volume_id, request.target_path)
        except GigasliceError as error:
            await self._refuse(error, request.volume_id, context)
        self._log.info("unpublished", volume=request.volume_id)
        return api.NodeUnpublishVolumeResponse()

    def _volume(self, request: api.NodePublishVolumeRequest) -> Volume:
        context = request.volume_context
        self._named(request.volume_id, request.target_path)
        if request.volume_capability.WhichOneof("access_type") == "block":
            raise RequestError("a dataset is a file system, not a block device; leave volumeMode out")
        if not request.readonly:
            raise RequestError(
                "a dataset is never written to; write readOnly: true beside driver: in the pod's csi volume"
            )
        if context.get("csi.storage.k8s.io/ephemeral") == "false":
            raise RequestError(
                "a dataset is an inline volume of a pod; write csi: under volumes, without a claim"
            )
        uid, namespace, name = (context.get(f"{_POD}{field}", "") for field in ("uid", "namespace", "name"))
        if not (uid and namespace and name):
            raise RequestError(
                f"the kubelet has not said which pod it is; the CSIDriver object {DATASET_DRIVER} needs "
                "podInfoOnMount: true"
            )
        target: PublishTarget = check_target(request.target_path, self._pods, pod_uid=uid)
        return Volume(request.volume_id, target.path, uid, namespace, name)

    @staticmethod
    def _named(volume_id: str, target: str) -> None:
        if not volume_id or not target:
            raise RequestError("the call has no volume_id or no target_path; this is a mistake of the caller")

    async def _refuse(self, error: GigasliceError, volume_id: str, context: Any) -> NoReturn:
        code, text = code_of(error), plain(str(error))[:_MOST_TEXT]
        level = self._log.info if code is grpc.StatusCode.ABORTED else self._log.warning
        level("call refused", volume=volume_id, code=code.name, detail=text)
        await context.abort(code, text)
        raise AssertionError("abort raises")
