# SPDX-License-Identifier: Apache-2.0
"""What programs of one node say to each other over unix sockets: JSON, one object a line. The words, and who asks.

    control.sock   in the agent's state directory: `gigaslice resize`, for root
    control.sock   in the dataset service's state directory: `gigaslice dataset ps` and `evict`, for root
    wait.sock      of the dataset service: `gigaslice dataset wait`, which may be any pod's; it can only ask for data
    gate.sock      of the dataset service: the node agent, which keeps its connection (`local_sockets.LineConnection`)

No HTTP and no gRPC: both sides are on one machine, and the node agent must stay small. A request is an object, one key
of which says what is asked for. An answer with "error" is a refusal in one sentence for people; "mistake" beside it
says that the request itself makes no sense. A line has at most `MOST_LINE_BYTES`.

Two programs of a node may be of different versions: agent and dataset service are updated one after the other, and so
is a command on the node's own disk. Who asks says its "version". A request without one is of version 1, as agents sent
it before there was a number. Fields that are not known are ignored, so a field may be added at any time. The number
rises only where an older server would do something wrong, and such a server refuses the request and says so.

Up to 0.1 `gigaslice resize` and the agent spoke gRPC on control.sock. Neither side understands the other across that
change, and nothing is done then: the newer command says what to use instead, and the older one is hung up on at once
and reports that no agent answers.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gigaslice.core.errors import ConfigError, ControlError, MissingError
from gigaslice.core.kube.json_text import read_json
from gigaslice.core.text import plain
from gigaslice.runtime.files import remedy

__all__ = [
    "MOST_LINE_BYTES",
    "NOT_A_MESSAGE",
    "VERSION",
    "ask",
    "conversation",
    "decode",
    "encode",
    "versioned",
]

VERSION = 1
MOST_LINE_BYTES = 1 << 20
NOT_A_MESSAGE = f"what was sent is not a line of at most {MOST_LINE_BYTES} bytes with a JSON object in it"
_SECONDS = 30.0


def encode(message: Mapping[str, Any]) -> bytes:
    """MESSAGE as a line."""
    return json.dumps(message).encode() + b"\n"


def versioned(request: Mapping[str, Any]) -> dict[str, Any]:
    """REQUEST as who asks sends it."""
    return {"version": VERSION, **request}


def decode(line: bytes) -> dict[str, Any] | None:
    """The object that LINE is; None for everything else, also where the end of the line is missing."""
    try:
        document = read_json(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return document if isinstance(document, dict) and document else None


def ask(path: Path, server: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The one answer of SERVER to a request. Raises MissingError, ControlError, and ConfigError for a mistake in it."""
    for answer in conversation(path, server, request):
        if "error" in answer:
            sentence = plain(str(answer["error"]))
            raise ConfigError([sentence]) if answer.get("mistake") is True else ControlError(sentence)
        return answer
    raise ControlError(f"the {server} on {path} has ended without an answer; see its log")


def conversation(path: Path, server: str, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The answers of SERVER to a request, as they come. Blocking.

    Raises:
        MissingError: It does not listen, or there is no permission.
        ControlError: It does not answer, or speaks something else.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(encode(versioned(request)))
            with connection.makefile("rb") as lines:
                while line := lines.readline(MOST_LINE_BYTES):
                    answer = decode(line)
                    if answer is None:
                        raise _other_protocol(path, server)
                    yield answer
        except FileNotFoundError as error:
            raise MissingError(
                f"no {server} listens on {path}; is one running on this node? Name its directory"
            ) from error
        except ConnectionRefusedError as error:
            raise MissingError(f"no {server} answers on {path}; is it running?") from error
        except TimeoutError as error:
            raise ControlError(f"the {server} on {path} has not answered for {_SECONDS:g} s") from error
        except OSError as error:
            raise MissingError(f"{path}: {error.strerror or error}; {remedy(error)}") from error


def _other_protocol(path: Path, server: str) -> ControlError:
    return ControlError(
        f"what listens on {path} speaks something else than this command; use the command of the {server}'s own version"
    )
