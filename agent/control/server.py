"""The control socket: a gRPC service for root of this node, beside the state that it changes.

The socket gets its name only when the server answers on it and its permissions are set. It replaces one that a killed
agent left: the agent that holds the lock of the state directory owns it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc

from agent.control.pb import control_v1_pb2 as api
from agent.control.pb import control_v1_pb2_grpc as rpc
from agent.limits.manager import LimitChange, LimitsManager, ResizeOutcome
from agent.persistence.store import Store
from gigaslice.errors import GigasliceError
from gigaslice.limits.live_limits import ResizeRefusal
from gigaslice.runtime.logs import get_logger
from gigaslice.text import plain

__all__ = ["SOCKET", "ControlServer"]

SOCKET = "control.sock"
_FRESH = ".control"
_SUN_PATH_MAX = 107
_GRACE_SECONDS = 1.0


class ControlServer(rpc.ControlServicer):
    """Serves MANAGER's operations on control.sock in STORE's directory."""

    def __init__(self, store: Store, manager: LimitsManager) -> None:
        self._store = store
        self._manager = manager
        self._path = store.state_dir / SOCKET
        self._log = get_logger("control")

    async def run(self) -> None:
        """Works until cancelled. Without a socket the agent goes on; only the commands that need it do not work."""
        server = grpc.aio.server()
        rpc.add_ControlServicer_to_server(self, server)
        fresh = self._path.with_name(_FRESH)
        try:
            if len(os.fsencode(self._path)) > _SUN_PATH_MAX:
                raise OSError(0, f"the path is longer than the {_SUN_PATH_MAX} bytes of a socket's name")
            fresh.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{fresh}")
            fresh.chmod(0o600)
            await server.start()
            fresh.rename(self._path)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._log.error("no control socket", path=str(self._path), detail=reason)
            await server.stop(grace=None)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await server.stop(grace=None)  # without this its finalizer logs an error
            raise
        try:
            await asyncio.Event().wait()
        finally:
            self._path.unlink(missing_ok=True)
            await server.stop(_GRACE_SECONDS)

    async def Resize(self, request: api.ResizeRequest, context: Any) -> api.ResizeResponse:  # noqa: N802
        """Changes limits of a running container; answers when the change is on the disk."""
        change = LimitChange(
            namespace=request.namespace or "default",
            pod=request.pod,
            container=request.container,
            gpu=request.gpu,
            memory=request.memory_bytes if request.HasField("memory_bytes") else None,
            cores=request.cores if request.HasField("cores") else None,
        )
        try:
            outcome = self._manager.resize(change)
            await asyncio.to_thread(self._store.sync)
        except GigasliceError as error:
            self._log.error("resize failed", detail=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, plain(str(error)))
            raise
        if isinstance(outcome, ResizeRefusal):
            self._log.info("resize refused", pod=f"{change.namespace}/{change.pod}", detail=outcome.detail)
            code = (
                grpc.StatusCode.INVALID_ARGUMENT if outcome.mistake else grpc.StatusCode.FAILED_PRECONDITION
            )
            await context.abort(code, plain(outcome.detail))
            raise AssertionError("abort returns")
        return _answer(outcome)


def _answer(outcome: ResizeOutcome) -> api.ResizeResponse:
    before, after = outcome.before, outcome.after
    return api.ResizeResponse(
        container=after.name,
        limits=[
            api.Limit(
                gpu=gpu,
                memory_before=before.quota()[gpu],
                memory_after=size,
                cores_before=before.cores_of(gpu),
                cores_after=after.cores_of(gpu),
                used=outcome.used.get(gpu, 0),
            )
            for gpu, size in after.quota().items()
        ],
    )


def socket_path(state_dir: Path) -> Path:
    """The socket of the agent with STATE_DIR."""
    return state_dir / SOCKET
