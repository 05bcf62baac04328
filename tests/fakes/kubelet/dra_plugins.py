# SPDX-License-Identifier: Apache-2.0
"""The drivers of claims that have registered: found by their sockets, asked who they are, told the outcome.

A driver may have several instances. The newest that is connected gets the calls; when it goes the one before gets them
again. A driver without an instance that is connected is reported after a while, once for each absence.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from agent.kubelet.pb import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from gigaslice.runtime.pb import pluginregistration_v1_pb2 as reg
from gigaslice.runtime.pb import pluginregistration_v1_pb2_grpc as reg_rpc
from tests.fakes.kubelet.plugin_sockets import PluginSockets
from tests.fakes.kubelet.registry import EndpointError, go_text
from tests.fakes.threads import await_end

KIND = "DRAPlugin"
SERVICES = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
"""The best first."""
_POLL_S = 0.02
_REGISTRATION_S = 10.0
_UNWATCHED_S = 0.5  # grpc looks at a watched channel every 0.2 s, and fails at one that was closed meanwhile
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
]


class BrokenOff(Exception):  # noqa: N818
    """The pod is to end, or the kubelet: nobody waits for the answer any more."""


@dataclass
class Call:
    """A call to a driver. error: of the call as a whole, in Go's words."""

    method: str
    driver: str
    endpoint: str
    service: str
    request: Any
    at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0
    reply: Any = None
    error: str = ""

    @property
    def claims(self) -> list[str]:
        """The names of the claims it was for."""
        return [one.name for one in getattr(self.request, "claims", ())]


class Instance:
    """A driver's endpoint."""

    def __init__(self, driver: str, endpoint: str, service: str) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.service = service
        self.messages, rpc = SERVICES[service]
        self.connected = False
        self._closing = False
        self._channel = grpc.insecure_channel(f"unix:{endpoint}", _OPTIONS)
        self.stub = rpc.DRAPluginStub(self._channel)
        self._channel.subscribe(self._changed, try_to_connect=True)

    def _changed(self, state: grpc.ChannelConnectivity) -> None:
        if self._closing:
            return
        self.connected = state is grpc.ChannelConnectivity.READY
        if state is grpc.ChannelConnectivity.IDLE:  # a lost connection is made again without a call
            self._channel.unsubscribe(self._changed)
            self._channel.subscribe(self._changed, try_to_connect=True)

    def leave(self) -> None:
        """It is not asked any more, and may be closed after _UNWATCHED_S: its channel is watched until then."""
        self._closing = True
        self.connected = False
        self._channel.unsubscribe(self._changed)

    def close(self) -> None:
        """Calls under way are broken off."""
        self._channel.close()


def _close(instances: Sequence[Instance]) -> None:
    for instance in instances:
        instance.leave()
    if instances:
        time.sleep(_UNWATCHED_S)
    for instance in instances:
        instance.close()


class DraPlugins(threading.Thread):
    """Watches the directory until it is stopped. absent: called with a driver that is gone for WIPE_AFTER_S."""

    def __init__(
        self,
        directory: Path,
        absent: Callable[[str], None],
        wipe_after_s: float,
        pauses_s: tuple[float, float],
        register_after_s: float = 0.0,
    ) -> None:
        super().__init__(name="plugins_registry", daemon=True)
        self.calls: list[Call] = []
        self.refused: list[str] = []  # registrations
        self._sockets = PluginSockets(directory)
        self._absent = absent
        self._wipe_after_s = wipe_after_s
        self._pauses_s = pauses_s
        self._register_after_s = register_after_s
        self._lock = threading.RLock()
        self._instances: dict[Path, Instance] = {}  # in the order of their registration
        self._pauses: dict[
            Path, tuple[float, float]
        ] = {}  # when a refused one is tried again, and the pause before
        self._gone: dict[str, float | None] = {}  # since when, by driver; None once that was reported
        self._halt = threading.Event()
        directory.mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        """Ends as the process does; nothing is removed."""
        self._halt.set()
        with self._lock:
            instances = list(self._instances.values())
            self._instances.clear()
        _close(instances)
        await_end(self)

    def instances(self, driver: str) -> list[Instance]:
        """Those of a driver, the oldest first."""
        with self._lock:
            return [one for one in self._instances.values() if one.driver == driver]

    def find(self, driver: str) -> Instance:
        """The one that gets the calls. Raises EndpointError."""
        found = self.instances(driver)
        if not found:
            raise EndpointError(f"DRA driver {driver} is not registered")
        return next((one for one in reversed(found) if one.connected), found[-1])

    def call(
        self, instance: Instance, method: str, request: Any, seconds: float, breaks_off: Callable[[], bool]
    ) -> Any:
        """The answer to a call. Raises EndpointError, and BrokenOff where that is called for."""
        call = Call(method, instance.driver, instance.endpoint, instance.service, request)
        self.calls.append(call)
        try:
            future = getattr(instance.stub, method).future(request, timeout=seconds)
            while True:
                try:
                    call.reply = future.result(timeout=_POLL_S)
                    return call.reply
                except grpc.FutureTimeoutError:
                    if breaks_off():
                        future.cancel()
        except grpc.FutureCancelledError as error:
            call.error = "rpc error: code = Canceled desc = context canceled"
            raise BrokenOff from error
        except grpc.RpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            text = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
            call.error = text if late else go_text(error)
            raise EndpointError(call.error) from error
        except ValueError as error:  # of Python's client, for a channel that was closed a moment ago
            call.error = "rpc error: code = Canceled desc = grpc: the client connection is closing"
            raise EndpointError(call.error) from error
        finally:
            call.ended_at = time.monotonic()

    # --- registrations ---------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._halt.wait(_POLL_S):
            come, gone = self._sockets.poll()
            for path in gone:
                self._pauses.pop(path, None)
                with self._lock:
                    instance = self._instances.pop(path, None)
                if instance is not None:
                    instance.leave()
                    threading.Thread(target=_close, args=([instance],), daemon=True).start()
            now = time.monotonic()
            for path in come:
                self._pauses[path] = (now + self._register_after_s, 0.0)
            for path in [path for path, (due, _) in self._pauses.items() if due <= now]:
                self._register(path)
            self._report_absent()

    def _register(self, path: Path) -> None:
        _, pause = self._pauses.pop(path)
        try:
            with grpc.insecure_channel(f"unix:{path}", _OPTIONS) as channel:
                stub = reg_rpc.RegistrationStub(channel)
                info = stub.GetInfo(reg.InfoRequest(), timeout=_REGISTRATION_S)
                self._log("GetInfo", info, reg.InfoRequest())
                if info.type != KIND:
                    return  # a driver of something else
                problem = self._problem(info)
                if not problem:
                    self._add(path, info)
                status = reg.RegistrationStatus(plugin_registered=not problem, error=problem)
                stub.NotifyRegistrationStatus(status, timeout=_REGISTRATION_S)
                self._log("NotifyRegistrationStatus", info, status)
                if not problem:
                    return
                self.refused.append(problem)
        except (grpc.RpcError, ValueError) as error:
            self.refused.append(go_text(error) if isinstance(error, grpc.RpcError) else str(error))
        first, longest = self._pauses_s
        pause = min(pause * 2, longest) or first
        self._pauses[path] = (time.monotonic() + pause, pause)

    def _log(self, method: str, info: reg.PluginInfo, request: Any) -> None:
        now = time.monotonic()
        self.calls.append(Call(method, info.name, info.endpoint, "", request, now, now))

    def _problem(self, info: reg.PluginInfo) -> str:
        problem = ""
        if not info.name or not info.endpoint:
            problem = "DRA plugin name or endpoint is empty"
        elif not set(SERVICES) & set(info.supported_versions):
            problem = (
                f"none of the services of DRA plugin {info.name} is known: {list(info.supported_versions)}"
            )
        elif any(one.endpoint == info.endpoint for one in self.instances(info.name)):
            problem = f'endpoint "{info.endpoint}" already registered for DRA driver {info.name}'
        return f"RegisterPlugin error -- plugin validation failed with err: {problem}" if problem else ""

    def _add(self, path: Path, info: reg.PluginInfo) -> None:
        service = next(one for one in SERVICES if one in info.supported_versions)
        with self._lock:
            self._instances[path] = Instance(info.name, info.endpoint, service)
            self._gone.setdefault(info.name, time.monotonic())

    def _report_absent(self) -> None:
        now = time.monotonic()
        for driver, since in list(self._gone.items()):
            if any(one.connected for one in self.instances(driver)):
                self._gone[driver] = now
            elif since is not None and now > since + self._wipe_after_s:
                self._gone[driver] = None
                self._absent(driver)

    def names(self, method: str = "", of: Sequence[Call] | None = None) -> list[str]:
        """The methods called so far, or the claims that METHOD was called for."""
        calls = self.calls if of is None else of
        if not method:
            return [one.method for one in calls]
        return [name for one in calls if one.method == method for name in one.claims]
