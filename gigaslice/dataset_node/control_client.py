"""The client of the dataset service's sockets, for commands. Blocking; every failure is an error of this program."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gigaslice.dataset_node.lines import MOST_LINE_BYTES
from gigaslice.errors import ControlError, MissingError
from gigaslice.kube.json_text import read_json
from gigaslice.runtime.files import remedy

__all__ = ["ask", "conversation"]

_SECONDS = 30.0


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The one answer to a request. Raises MissingError and ControlError."""
    for answer in conversation(path, request):
        return answer
    raise ControlError(f"the dataset service on {path} has ended without an answer; see its log")


def conversation(path: Path, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The answers to a request, as they come.

    Raises:
        MissingError: No service listens, or there is no permission.
        ControlError: The service refuses, or does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                while line := lines.readline(MOST_LINE_BYTES):
                    answer = read_json(line)
                    if not isinstance(answer, dict):
                        raise ControlError(f"{path} is not the socket of a dataset service")
                    yield answer
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise MissingError(
                f"no dataset service listens on {path}; is one running on this node? Name its directory"
            ) from error
        except TimeoutError as error:
            raise ControlError(
                f"the dataset service on {path} has not answered for {_SECONDS:g} s"
            ) from error
        except OSError as error:
            raise MissingError(f"{path}: {error.strerror}; {remedy(error)}") from error
        except ValueError as error:
            raise ControlError(f"{path} is not the socket of a dataset service") from error
