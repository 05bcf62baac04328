# SPDX-License-Identifier: Apache-2.0
"""The smallest driver of claims that can misbehave on request, to be met by the stand-in."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from agent.kubelet.pb import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from gigaslice.runtime.pb import pluginregistration_v1_pb2 as reg
from gigaslice.runtime.pb import pluginregistration_v1_pb2_grpc as reg_rpc
from tests.fakes.kubeapi.device_documents import DRIVER, device_document, slice_document
from tests.fakes.kubelet import FakeKubelet

Prepare = Callable[[Any, grpc.ServicerContext], str]
SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


class ClaimDriver(reg_rpc.RegistrationServicer):
    """Records every call. on_prepare, on_unprepare: called with the claim and the context, return an error or "".

    A prepared claim gets a device by CDI for each of its requests, with a variable CLAIM and a file at /run/claim.
    """

    def __init__(
        self,
        kubelet: FakeKubelet,
        instance: str = "a",
        *,
        services: Sequence[str] = SERVICES,
        name: str = DRIVER,
    ) -> None:
        self.kubelet = kubelet
        self.name = name
        self.services = list(services)
        self.registration = kubelet.plugins_registry / f"{name}-{instance}-reg.sock"
        self.endpoint = kubelet.directory / "plugins" / f"{name}-{instance}.sock"
        self.calls: list[tuple[str, ...]] = []  # method, then the names of the claims or what was told
        self.on_prepare: Prepare = lambda claim, context: ""
        self.on_unprepare: Prepare = lambda claim, context: ""
        self.requests = ("gpu",)
        self.silent = False  # answers leave claims out
        self._lock = threading.Lock()
        self._servers: list[grpc.Server] = []

    # life

    def start(self) -> ClaimDriver:
        self.endpoint.parent.mkdir(exist_ok=True)
        for path, add in ((self.endpoint, self._add_services), (self.registration, self._add_registration)):
            path.unlink(missing_ok=True)
            server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
            add(server)
            server.add_insecure_port(f"unix:{path}")
            server.start()
            self._servers.append(server)
        return self

    def stop(self) -> None:
        for server in self._servers:
            server.stop(0).wait()
        self._servers.clear()

    def kill(self) -> None:
        """As kill -9: the sockets' files stay."""
        self.stop()
        for path in (self.endpoint, self.registration):
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
                dead.bind(str(path))

    def publish(self, *gib: int) -> None:
        devices = [device_document(f"gpu-{number}", size) for number, size in enumerate(gib or (24,))]
        assert self.kubelet.api is not None
        self.kubelet.api.put("resourceslices", slice_document(*devices, driver=self.name))

    def named(self, method: str) -> list[tuple[str, ...]]:
        with self._lock:
            return [call[1:] for call in self.calls if call[0] == method]

    def _record(self, *call: str) -> None:
        with self._lock:
            self.calls.append(call)

    # registration

    def _add_registration(self, server: grpc.Server) -> None:
        reg_rpc.add_RegistrationServicer_to_server(self, server)

    def GetInfo(self, request, context):  # noqa: N802
        self._record("GetInfo")
        return reg.PluginInfo(
            type="DRAPlugin", name=self.name, endpoint=str(self.endpoint), supported_versions=self.services
        )

    def NotifyRegistrationStatus(self, request, context):  # noqa: N802
        self._record("Notify", "registered" if request.plugin_registered else request.error)
        return reg.RegistrationStatusResponse()

    # claims

    def _add_services(self, server: grpc.Server) -> None:
        for messages, rpc, version in (
            (dra_v1_pb2, dra_v1_pb2_grpc, "v1"),
            (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc, "v1beta1"),
        ):
            rpc.add_DRAPluginServicer_to_server(_Service(self, messages, version), server)

    def cdi_file(self, uid: str) -> Path:
        return self.kubelet.cdi_directory / f"claim-{uid}.json"

    def write_cdi(self, uid: str) -> None:
        source = self.kubelet.directory / f"claim-{uid}"
        source.write_text(f"{uid}\n")
        devices = []
        for request in self.requests:
            mount = {
                "hostPath": str(source),
                "containerPath": "/run/claim",
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
            edits = {"env": [f"CLAIM={uid}", f"REQUEST_{request}=1"], "mounts": [mount]}
            devices.append({"name": f"{uid}-{request}", "containerEdits": edits})
        document = {"cdiVersion": "0.5.0", "kind": "gigaslice.io/vgpu", "devices": devices}
        self.cdi_file(uid).write_text(json.dumps(document))


class _Service:
    """One version of the API."""

    def __init__(self, driver: ClaimDriver, messages: Any, version: str) -> None:
        self.driver = driver
        self.messages = messages
        self.version = version

    def NodePrepareResources(self, request, context):  # noqa: N802
        driver = self.driver
        driver._record(f"Prepare {self.version}", *(claim.name for claim in request.claims))
        answer = self.messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            error = driver.on_prepare(claim, context)
            if driver.silent:
                continue
            if error:
                answer.claims[claim.uid].error = error
                continue
            driver.write_cdi(claim.uid)
            for asked in driver.requests:
                answer.claims[claim.uid].devices.add(
                    request_names=[asked],
                    pool_name="node-a",
                    device_name="gpu-0",
                    cdi_device_ids=[f"gigaslice.io/vgpu={claim.uid}-{asked}"],
                )
        return answer

    def NodeUnprepareResources(self, request, context):  # noqa: N802
        driver = self.driver
        driver._record(f"Unprepare {self.version}", *(claim.name for claim in request.claims))
        answer = self.messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            error = driver.on_unprepare(claim, context)
            answer.claims[claim.uid].error = error
            if not error:
                driver.cdi_file(claim.uid).unlink(missing_ok=True)
        return answer
