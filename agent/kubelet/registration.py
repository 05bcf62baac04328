"""Keeps the plugin served and registered: looks at the sockets, asks `lifecycle`, and does what it says.

A look is taken ten times a second and whenever a stream opens or ends. A socket that was wiped gets a new server; one
that a stream still runs on is kept until that stream has ended, since the kubelet goes on using the connection.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc

from agent.errors import SocketError
from agent.kubelet import lifecycle, sockets, translate
from agent.kubelet.lifecycle import Action, Facts
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from agent.kubelet.servicer import Servicer
from agent.state.alarm import Alarm
from agent.state.lock import LockFile
from agent.telemetry.logs import get_logger

__all__ = ["Registration"]

_LOOK_SECONDS = 0.1
_REGISTER_SECONDS = 15.0  # the kubelet gives up dialling back after 10
_GRACE_SECONDS = 0.5
_KUBELET_SOCKET = "kubelet.sock"
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)  # no pause that a dead kubelet's connections have earned


class Registration:
    """Serves PLUGIN as RESOURCE on the socket DIRECTORY/SOCKET_NAME and registers it with the kubelet there."""

    def __init__(self, plugin: Servicer, directory: Path, socket_name: str, resource: str) -> None:
        self._plugin = plugin
        self._directory = directory
        self._path = directory / socket_name
        self._kubelet_path = directory / _KUBELET_SOCKET
        self._resource = resource
        self._lock = LockFile(directory / f"{socket_name}.lock", f"the resource {resource}")
        self._locked = False
        self._servers: list[grpc.aio.Server] = []
        self._mine: sockets.Identity | None = None
        self._told: sockets.Identity | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._failures = 0
        self._streams = 0
        self._idle_since = time.monotonic()
        self._alarm = Alarm()
        self._said = ""
        self._log = get_logger("registration")

    def wake(self) -> None:
        """Has the world looked at now instead of at the next interval."""
        self._alarm.ring()

    async def run(self, stop: asyncio.Event) -> None:
        """Works until STOP is set, then ends streams and socket. Raises SocketError or LockedError when it may not."""
        try:
            while True:
                rule = lifecycle.decide(self._look(stopping=stop.is_set()))
                self._log.debug("decided", case=rule.case, action=rule.action.value)
                if rule.action is Action.END:
                    return
                if rule.action is Action.SERVE and await self._serve():
                    continue
                if rule.action is Action.REGISTER:
                    self._start_attempt()
                await self._pause()
        finally:
            await self._end()

    def _look(self, *, stopping: bool) -> Facts:
        streams = self._plugin.streams
        if streams != self._streams:
            self._streams = streams
            self._idle_since = time.monotonic()
        return Facts(
            stopping=stopping,
            serving=self._mine is not None and sockets.identify(self._path) == self._mine,
            kubelet=sockets.identify(self._kubelet_path),
            told=self._told,
            registering=self._attempt is not None and not self._attempt.done(),
            failures=self._failures,
            streams=streams,
            idle=time.monotonic() - self._idle_since,
        )

    async def _pause(self) -> None:
        if self._streams == 0 and len(self._servers) > 1:
            for server in self._servers[:-1]:
                await server.stop(grace=None)
            del self._servers[:-1]
        await self._alarm.wait(_LOOK_SECONDS)

    async def _serve(self) -> bool:
        """Puts a new server behind the public path; False while a kubelet is about to make, or wipes, the directory."""
        if not self._directory.is_dir():
            self._say(
                "waiting for the kubelet",
                directory=str(self._directory),
                detail="the directory does not exist yet",
            )
            return False
        if not self._locked:
            self._lock.acquire()
            self._locked = True
            sockets.sweep(self._directory)
        if self._mine is not None and sockets.is_mine(self._path):
            self._mine = sockets.identify(self._path)  # its owner, mode or label was changed
            return True
        sockets.check_free(self._path)
        hidden = sockets.hidden_name(self._directory)
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self._plugin, server)
        try:
            server.add_insecure_port(f"unix:{hidden}")
            await server.start()
            hidden.rename(self._path)
        except FileNotFoundError:  # wiped in between by a kubelet that starts: another one, then
            await server.stop(grace=None)
            return False
        except (OSError, RuntimeError) as error:
            await server.stop(grace=None)
            raise SocketError(
                f"cannot listen on {self._path}: {error}; the directory must be writable"
            ) from error
        self._mine = sockets.identify(self._path)
        self._servers.append(server)
        self._log.info("serving", socket=str(self._path))
        if sockets.identify(self._kubelet_path) is None:
            self._say("waiting for the kubelet", socket=str(self._kubelet_path))
        return True

    def _start_attempt(self) -> None:
        kubelet = sockets.identify(self._kubelet_path)
        if kubelet != self._told:
            self._failures = 0  # a new kubelet that is not listening yet is asked again soon
        self._told = kubelet
        self._attempt = asyncio.create_task(self._register(), name="register")

    async def _register(self) -> None:
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._kubelet_path}", options=_OPTIONS) as channel:
                request = translate.register_request(self._resource, self._path.name, self._plugin.options)
                await rpc.RegistrationStub(channel).Register(request, timeout=_REGISTER_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._failures += 1
            self._say("registration failed", code=error.code().name, detail=error.details())
        else:
            self._failures = 0
            self._said = ""
            self._log.info("registered", resource=self._resource, socket=str(self._path))
        finally:
            self._idle_since = time.monotonic()
            self._alarm.ring()

    async def _end(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        sockets.remove_if_same(self._path, self._mine)
        await self._plugin.close()
        await asyncio.gather(*(server.stop(grace=_GRACE_SECONDS) for server in self._servers))
        self._servers.clear()
        self._lock.release()

    def _say(self, event: str, **fields: object) -> None:
        """Logs what may repeat many times a second once, until something else is said."""
        said = f"{event} {fields}"
        if said != self._said:
            self._said = said
            self._log.warning(event, **fields)
