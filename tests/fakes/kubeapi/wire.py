# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 of the stand-ins on asyncio: requests are read whole, answers are written whole or in chunks."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.fakes.kubeapi.answers import Request

_PIECE = 777
"""Bytes of a chunk: lines and chunks do not end together, as those of a real server need not."""


async def read_request(reader: asyncio.StreamReader) -> Request:
    """The next request of a connection.

    Raises:
        asyncio.IncompleteReadError: The client has closed it.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {key.lower(): value.strip() for key, _, value in (one.partition(":") for one in rest if one)}
    length = int(headers.get("content-length", 0))
    body = json.loads(await reader.readexactly(length)) if length else None
    url = urlsplit(target)
    return Request(
        method, target, url.path, dict(parse_qsl(url.query, keep_blank_values=True)), headers, body
    )


async def send(writer: asyncio.StreamWriter, status: int, document: Any, headers: str = "") -> None:
    """A whole answer; HEADERS: lines of it that end with CRLF."""
    content = json.dumps(document).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()


async def begin_chunks(writer: asyncio.StreamWriter) -> None:
    """The head of an answer that is sent line by line."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    await writer.drain()


async def send_line(writer: asyncio.StreamWriter, document: Any) -> None:
    """One line of such an answer, in as many chunks as it takes."""
    await send_chunks(writer, json.dumps(document).encode() + b"\n")


async def send_chunks(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Bytes of such an answer."""
    pieces = [content[start : start + _PIECE] for start in range(0, len(content), _PIECE)]
    writer.write(b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces))
    await writer.drain()


async def end_chunks(writer: asyncio.StreamWriter) -> None:
    """The proper end of such an answer; the connection goes on."""
    writer.write(b"0\r\n\r\n")
    await writer.drain()
