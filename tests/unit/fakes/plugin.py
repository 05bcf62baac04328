# SPDX-License-Identifier: Apache-2.0
"""The smallest device plugin that can misbehave on request, to be met by the stand-in."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path

import grpc

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.fakes.kubelet import ContainerSpec

RESOURCE = "example.com/thing"


def device(ident: str, node: int | None = None, health: str = "Healthy") -> pb.Device:
    topology = None if node is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)])
    return pb.Device(ID=ident, health=health, topology=topology)


def asking(count, name="main", **fields):
    """A container of a pod that asks for so many devices of the plugin."""
    return ContainerSpec(name, {RESOURCE: count}, **fields)


def gpus(count: int, each: int, numa: bool = False) -> list[pb.Device]:
    """IDs GPU-number; with NUMA GPU n is on node n % 2."""
    return [device(f"{c}-{n}", c % 2 if numa else None) for c in range(count) for n in range(each)]


class Plugin(rpc.DevicePluginServicer):
    """Records every call; answers can be replaced by assigning `on_preferred`, `on_allocate`, `on_pre_start`."""

    def __init__(
        self, directory: Path, devices: Iterable[pb.Device], name: str = RESOURCE, endpoint: str = "p.sock"
    ):
        self.directory = directory
        self.list = list(devices)
        self.name = name
        self.endpoint = endpoint
        self.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
        self.calls: list[tuple[str, tuple]] = []
        self.streams: list[queue.Queue] = []
        self.lock = threading.Lock()
        self.server: grpc.Server | None = None
        self.on_allocate: Callable[[list[str], grpc.ServicerContext], pb.AllocateResponse] = self.answer
        self.on_preferred: Callable[[list[str], list[str], int, grpc.ServicerContext], list[str]] = (
            lambda available, must, size, context: (must + sorted(set(available) - set(must)))[:size]
        )
        self.on_pre_start: Callable[[list[str], grpc.ServicerContext], None] = lambda ids, context: None
        self.response = pb.ContainerAllocateResponse(envs={"THING": "yes"})

    def answer(self, ids: list[str], context: grpc.ServicerContext) -> pb.AllocateResponse:
        return pb.AllocateResponse(container_responses=[self.response])

    # life

    def serve(self) -> Plugin:
        (self.directory / self.endpoint).unlink(missing_ok=True)
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
        rpc.add_DevicePluginServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.directory / self.endpoint}")
        self.server.start()
        return self

    def register(
        self, version: str = "v1beta1", name: str | None = None, endpoint: str | None = None
    ) -> None:
        request = pb.RegisterRequest(
            version=version, endpoint=endpoint or self.endpoint, resource_name=name or self.name
        )
        with grpc.insecure_channel(
            f"unix:{self.directory / 'kubelet.sock'}", [("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            rpc.RegistrationStub(channel).Register(request, timeout=30)
        self.calls.append(("Registered", ()))

    def start(self) -> Plugin:
        self.serve().register()
        return self

    def stop(self) -> None:
        if self.server is not None:
            for stream in self.streams:
                stream.put(None)
            self.server.stop(0).wait()
            self.server = None

    def push(self, devices: Iterable[pb.Device]) -> None:
        self.list = list(devices)
        for stream in self.streams:
            stream.put(self.list)

    def named(self, name: str) -> list[tuple]:
        with self.lock:
            return [arguments for call, arguments in self.calls if call == name]

    @property
    def order(self) -> list[str]:
        with self.lock:
            return [call for call, _ in self.calls]

    def _record(self, name: str, *arguments: object) -> None:
        with self.lock:
            self.calls.append((name, arguments))

    # the five calls

    def GetDevicePluginOptions(self, request, context):  # noqa: N802
        self._record("Options")
        return self.options

    def ListAndWatch(self, request, context):  # noqa: N802
        self._record("Watch")
        updates: queue.Queue = queue.Queue()
        context.add_callback(lambda: updates.put(None))
        self.streams.append(updates)
        for devices in itertools.chain([self.list], iter(updates.get, None)):
            yield pb.ListAndWatchResponse(devices=devices)

    def GetPreferredAllocation(self, request, context):  # noqa: N802
        asked = request.container_requests[0]
        available, must = list(asked.available_deviceIDs), list(asked.must_include_deviceIDs)
        self._record("Preferred", available, must, asked.allocation_size)
        ids = self.on_preferred(available, must, asked.allocation_size, context)
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids)]
        )

    def Allocate(self, request, context):  # noqa: N802
        assert len(request.container_requests) == 1
        ids = list(request.container_requests[0].devices_ids)
        self._record("Allocate", ids)
        return self.on_allocate(ids, context)

    def PreStartContainer(self, request, context):  # noqa: N802
        self._record("PreStart", sorted(request.devices_ids))
        self.on_pre_start(list(request.devices_ids), context)
        return pb.PreStartContainerResponse()
