# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of the plugin sockets: Register, the call back, and one stream per registration.

It keeps one client per resource name, as the kubelet does, with the consequence that makes a second
registration dangerous: when a stream ends, the client *registered under that name by then* is disconnected,
which is the newer one.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Protocol

import grpc

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.fakes.threads import await_end

API_VERSION = "v1beta1"
MESSAGE_LIMIT = 4 * 1024 * 1024  # bytes; grpc-go's default, which the kubelet does not raise
GO_NAMES = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def go_text(error: grpc.RpcError) -> str:
    """As grpc-go prints a status; it is what ends up in the pod's message."""
    code = error.code()
    name = GO_NAMES.get(code) or "".join(part.title() for part in code.name.split("_"))
    return f"rpc error: code = {name} desc = {error.details()}"


def extended_resource_name(name: str) -> bool:
    """Whether NAME is domain/name outside Kubernetes' own domain."""
    domain, slash, rest = name.partition("/")
    native = domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests.")
    return bool(slash and not native and NAME.fullmatch(domain) and NAME.fullmatch(rest))


_CLOSED = "rpc error: code = Canceled desc = grpc: the client connection is closing"


class EndpointError(Exception):
    """What the kubelet reports when a call to a plugin did not succeed."""


class Endpoint:
    """A plugin as the device manager holds it; calls on a stopped one fail without reaching the socket."""

    def __init__(self, resource: str, channel: grpc.Channel | None) -> None:
        self.resource = resource
        self.channel = channel
        self.stub = None if channel is None else rpc.DevicePluginStub(channel)
        self.options = pb.DevicePluginOptions()
        self.stopped_at: float | None = None if channel else 0.0

    def _live(self) -> rpc.DevicePluginStub:
        if self.stub is None or self.stopped_at is not None:
            raise EndpointError(f"endpoint {self.resource} has been stopped")
        return self.stub

    def allocate(self, ids: Sequence[str]) -> pb.AllocateResponse:
        """No deadline: neither has the kubelet's."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            return self._live().Allocate(request)
        except grpc.RpcError as error:
            raise EndpointError(go_text(error)) from error
        except ValueError as error:
            raise EndpointError(_CLOSED) from error

    def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """The plugin's choice as it came, right or wrong; nothing when it does not offer the call."""
        if not self.options.get_preferred_allocation_available:
            return []
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[asked])
        with _named("GetPreferredAllocation"):
            answer = self._live().GetPreferredAllocation(request)
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    def pre_start(self, ids: Sequence[str], timeout_s: float) -> None:
        """Only when the plugin asked for it; a stopped endpoint remembers what its plugin asked for."""
        if not self.options.pre_start_required:
            return
        with _named("PreStartContainer"):
            self._live().PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=timeout_s)


@contextlib.contextmanager
def _named(call: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise EndpointError(f"device plugin {call} rpc failed with err: {go_text(error)}") from error
    except ValueError as error:  # of Python's client, for a channel that was closed a moment ago
        raise EndpointError(f"device plugin {call} rpc failed with err: {_CLOSED}") from error
    except EndpointError as error:
        raise EndpointError(f"device plugin {call} rpc failed with err: {error}") from error


class Handler(Protocol):
    """Who is told (the device manager)."""

    def connected(self, resource: str, endpoint: Endpoint) -> None: ...
    def devices(self, resource: str, devices: Sequence[pb.Device]) -> None: ...
    def disconnected(self, resource: str) -> None: ...


class Registry(rpc.RegistrationServicer):
    """Serves kubelet.sock. A kubelet start is a new Registry."""

    def __init__(self, directory: Path, handler: Handler, dial_timeout_s: float) -> None:
        self.directory = directory
        self.handler = handler
        self.dial_timeout_s = dial_timeout_s
        self.clients: dict[str, grpc.Channel] = {}
        self.registrations: list[str] = []  # resource names in the order they were accepted
        self.took: list[float] = []  # seconds from the socket to each of them, for people
        self.began = 0.0
        self.stream_ends: list[str] = []  # why streams ended, newest last
        self.lock = threading.RLock()
        self.threads: list[threading.Thread] = []
        self.stopping = False
        self.server: grpc.Server | None = None

    @property
    def socket(self) -> Path:
        return self.directory / "kubelet.sock"

    def start(self) -> None:
        """Removes every socket of the directory, and nothing else, before it serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for entry in self.directory.iterdir():
            if entry.is_socket():
                entry.unlink()
        self.server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=8, thread_name_prefix="kubelet.sock")
        )
        rpc.add_RegistrationServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.socket}")
        self.began = time.monotonic()
        self.server.start()

    def stop(self) -> None:
        """Ends the streams, as the end of the process would, and removes no file."""
        with self.lock:
            self.stopping = True
            channels = list(self.clients.values())
            self.clients.clear()
        for channel in channels:
            channel.close()
        if self.server is not None:
            inode = self.socket.stat().st_ino if self.socket.exists() else None
            self.server.stop(0).wait()
            _leave_socket_behind(self.socket, inode)
        for thread in self.threads:
            await_end(thread)

    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:  # noqa: N802
        """Checks, dials back and asks for the options, all before the plugin gets its answer."""
        if self.stopping:  # a process that has ended answers no call
            context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet has ended")
        if request.version != API_VERSION:
            text = f'requested API version "{request.version}" is not supported by kubelet.'
            context.abort(grpc.StatusCode.UNKNOWN, f'{text} Supported version is ["{API_VERSION}"]')
        if not extended_resource_name(request.resource_name):
            context.abort(grpc.StatusCode.UNKNOWN, f'the ResourceName "{request.resource_name}" is invalid')
        try:
            self._connect(request.resource_name, self.directory / request.endpoint)
        except EndpointError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.Empty()

    def _connect(self, resource: str, socket: Path) -> None:
        options = [("grpc.max_receive_message_length", MESSAGE_LIMIT), ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.insecure_channel(f"unix:{socket}", options)
        with self.lock:
            if self.stopping:
                channel.close()
                raise EndpointError("the kubelet has ended")
            self.clients[resource] = channel
        try:
            grpc.channel_ready_future(channel).result(timeout=self.dial_timeout_s)
            endpoint = Endpoint(resource, channel)
            assert endpoint.stub is not None
            endpoint.options = endpoint.stub.GetDevicePluginOptions(pb.Empty())
        except (grpc.FutureTimeoutError, grpc.RpcError, ValueError) as error:
            with self.lock:
                if self.clients.get(resource) is channel:
                    del self.clients[resource]
            channel.close()
            if isinstance(error, grpc.RpcError):
                raise EndpointError(f"failed to get device plugin options: {go_text(error)}") from error
            raise EndpointError("failed to dial device plugin: context deadline exceeded") from error
        self.handler.connected(resource, endpoint)
        self.registrations.append(resource)
        self.took.append(time.monotonic() - self.began)
        thread = threading.Thread(
            target=self._run, args=(resource, endpoint), name=f"watch {resource}", daemon=True
        )
        self.threads.append(thread)
        thread.start()

    def _run(self, resource: str, endpoint: Endpoint) -> None:
        assert endpoint.stub is not None
        try:
            for response in endpoint.stub.ListAndWatch(pb.Empty()):
                self.handler.devices(resource, response.devices)
            self.stream_ends.append("EOF")
        except grpc.RpcError as error:
            self.stream_ends.append(go_text(error))
        except ValueError:  # the channel was closed before the call began
            self.stream_ends.append("rpc error: code = Canceled desc = channel closed")
        if self.stopping:
            return
        with self.lock:  # by name, not "this client": see the module's docstring
            current = self.clients.pop(resource, None)
        if current is not None:
            current.close()
            self.handler.disconnected(resource)


def _leave_socket_behind(path: Path, inode: int | None) -> None:
    """A kubelet that ends removes nothing, but a grpc server unlinks its socket: put a dead one back."""
    if inode is None or path.exists():
        return
    import socket

    with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
