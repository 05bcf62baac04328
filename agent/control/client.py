"""The client of the control socket, for commands. Every failure becomes one of the agent's own errors."""

from __future__ import annotations

import os
from pathlib import Path

import grpc

from agent.control.pb import control_v1_pb2 as api
from agent.control.pb import control_v1_pb2_grpc as rpc
from agent.control.server import socket_path
from gigaslice.errors import ConfigError, ControlError, MissingError
from gigaslice.runtime.files import remedy

__all__ = ["resize"]

_SECONDS = 30.0


def resize(state_dir: Path, request: api.ResizeRequest) -> api.ResizeResponse:
    """Requests a change of limits from the agent of STATE_DIR. Raises MissingError, ConfigError or ControlError."""
    path = socket_path(state_dir)
    _check(path)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        try:
            return rpc.ControlStub(channel).Resize(request, timeout=_SECONDS)
        except grpc.RpcError as error:
            raise _translated(error, path) from error


def _check(path: Path) -> None:
    try:
        path.stat()
    except FileNotFoundError as error:
        raise MissingError(f"no agent listens on {path}; name its --state-dir, or start it") from error
    except OSError as error:
        raise MissingError(f"{path}: {error.strerror}; {remedy(error)}") from error
    if not os.access(path, os.R_OK | os.W_OK):
        raise MissingError(f"no permission for {path}; run as root")


def _translated(error: grpc.RpcError, path: Path) -> Exception:
    if not isinstance(error, grpc.Call):
        return ControlError(f"{path}: {error}")
    detail = " ".join((error.details() or "").split())
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return MissingError(f"no agent answers on {path}; is it running? ({detail})")
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return ConfigError([detail])
    if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INTERNAL):
        return ControlError(detail)
    return ControlError(f"{path}: {error.code().name}: {detail}")
