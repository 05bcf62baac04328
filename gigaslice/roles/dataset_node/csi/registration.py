# SPDX-License-Identifier: Apache-2.0
"""Serves the driver to the kubelet, and makes it known: two sockets below the kubelet's directory, no sidecar.

The kubelet watches its directory plugins_registry, connects to every socket that appears there, asks for the driver's
name and socket, and says how that went. It does so again after each start of its own. The sockets are made anew when
they are gone or are no longer ours, as after the kubelet's directory was emptied, and a while after the kubelet has
refused them.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc

from gigaslice.core.errors import SocketError
from gigaslice.core.model import DATASET_DRIVER
from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.csi.driver import IdentityServicer, NodeServicer
from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2_grpc as csi_rpc
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.pb import pluginregistration_v1_pb2 as api
from gigaslice.runtime.pb import pluginregistration_v1_pb2_grpc as rpc
from gigaslice.runtime.time_limit import set_within

__all__ = ["CsiServer"]

_CHECK_SECONDS = 5.0
_REFUSED_SECONDS = 10.0
_GRACE_SECONDS = 2.0
_SUN_PATH_MAX = 107
_VERSIONS = ("1.0.0",)


class _Registration(rpc.RegistrationServicer):
    """What the kubelet asks of the socket in plugins_registry."""

    def __init__(self, endpoint: Path) -> None:
        self.endpoint = endpoint
        self.registered = False
        self.refused = asyncio.Event()
        self._log = get_logger("csi")

    async def GetInfo(self, request: api.InfoRequest, context: Any) -> api.PluginInfo:  # noqa: N802
        """Name and socket of the driver."""
        del request, context
        return api.PluginInfo(
            type="CSIPlugin",
            name=DATASET_DRIVER,
            endpoint=str(self.endpoint),
            supported_versions=_VERSIONS,
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: api.RegistrationStatus, context: Any
    ) -> api.RegistrationStatusResponse:
        """Notes what has become of it."""
        del context
        self.registered = request.plugin_registered
        if request.plugin_registered:
            self._log.info("registered", driver=DATASET_DRIVER)
        else:
            self._log.error("registration refused", driver=DATASET_DRIVER, detail=plain(request.error))
            self.refused.set()
        return api.RegistrationStatusResponse()


class CsiServer:
    """The two sockets.

    Args:
        identity: Answers.
        node: Answers.
        kubelet: The kubelet's directory.
    """

    def __init__(
        self, identity: IdentityServicer, node: NodeServicer, kubelet: Path, *, check: float = _CHECK_SECONDS
    ) -> None:
        self._identity = identity
        self._node = node
        self.endpoint = kubelet / "plugins" / DATASET_DRIVER / "csi.sock"
        self.registry = kubelet / "plugins_registry" / f"{DATASET_DRIVER}-reg.sock"
        self._registration = _Registration(self.endpoint)
        self._check = check
        self._log = get_logger("csi")

    @property
    def registered(self) -> bool:
        """Whether the kubelet has accepted the driver."""
        return self._registration.registered

    async def run(self) -> None:
        """Serves until cancelled; calls under way are given two seconds then."""
        for path in (self.endpoint, self.registry):
            if len(os.fsencode(path)) > _SUN_PATH_MAX:
                raise SocketError(f"{path} is longer than the {_SUN_PATH_MAX} bytes of a socket's name")
        while True:
            try:
                await self._serve()
            except OSError as error:
                self._log.error("no socket for the kubelet", detail=f"{error.filename}: {error.strerror}")
                await asyncio.sleep(self._check)

    async def _serve(self) -> None:
        """Serves until a socket is gone, or the kubelet has refused it for a while."""
        driver, registrar = grpc.aio.server(), grpc.aio.server()
        csi_rpc.add_IdentityServicer_to_server(self._identity, driver)
        csi_rpc.add_NodeServicer_to_server(self._node, driver)
        rpc.add_RegistrationServicer_to_server(self._registration, registrar)
        self._registration.registered = False
        self._registration.refused.clear()
        ours: dict[Path, tuple[int, int]] = {}
        try:
            # The driver's own socket first: the kubelet calls it as soon as it has seen the other.
            for server, path in ((driver, self.endpoint), (registrar, self.registry)):
                ours[path] = await self._listen(server, path)
            self._log.info("serving", socket=str(self.endpoint))
            while all(_identity(path) == number for path, number in ours.items()):
                if await set_within(self._registration.refused, self._check):
                    await asyncio.sleep(_REFUSED_SECONDS)
                    return
            self._log.warning("sockets made anew: they were removed or replaced")
        finally:
            for path, number in reversed(ours.items()):
                if _identity(path) == number:
                    path.unlink(missing_ok=True)
            await asyncio.gather(*(server.stop(_GRACE_SECONDS) for server in (registrar, driver)))

    async def _listen(self, server: grpc.aio.Server, path: Path) -> tuple[int, int]:
        """Listens elsewhere and renames: the socket appears at PATH only when it answers.

        Elsewhere is the driver's directory: in the registry the kubelet would log that a file has vanished.
        """
        for directory in (path.parent, self.endpoint.parent):
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        fresh = self.endpoint.parent / f".{path.name[-8:]}"
        fresh.unlink(missing_ok=True)
        try:
            server.add_insecure_port(f"unix:{fresh}")
            fresh.chmod(0o600)
            await server.start()
        except RuntimeError as error:
            raise OSError(0, str(error), str(fresh)) from error
        fresh.replace(path)
        identity = _identity(path)
        if identity is None:
            raise OSError(0, "removed as soon as it was made", str(path))
        return identity


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
