# SPDX-License-Identifier: Apache-2.0
"""Answers as a recorded API server did: the lines of a transcript, played over real HTTP.

    async with Replay(transcript("api-watch-pods")) as server: ...

Each request gets the next recorded answer to the same method and path, a watch the next recorded watch. A request that
was not recorded gets 404. Nothing is waited for between the chunks of a watch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from gigaslice.kubeapi.access import Access
from tests.fakes.connections import Connections
from tests.fakes.kubeapi import wire
from tests.fakes.kubeapi.answers import Request

FOLDER = Path(__file__).parents[2] / "fixtures" / "transcripts"
Line = dict[str, Any]


def transcript(name: str) -> list[Line]:
    """The lines of a recorded conversation, without its heading."""
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file][1:]


class Replay:
    """The server. `requests`: method, target and body of what came; `connections`: how many were made."""

    def __init__(self, lines: Iterable[Line], only: Callable[[Line], bool] = lambda line: True) -> None:
        lines = list(lines)
        self.requests: list[tuple[str, str, Any]] = []
        self.connections = 0
        self._connections = Connections(self._serve)
        self.at_end: str = "open"  # what becomes of a watch that has no more recorded: "open", "end" or "cut"
        self._answers: dict[tuple[str, str, bool], list[Line]] = {}
        self._streams: dict[str, list[Line]] = {}
        self._documents: dict[str, Line] = {}
        for line in lines:
            if "method" in line and only(line):
                watch = "watch" in parse_qs(line.get("query", ""))
                self._answers.setdefault((line["method"], line["path"], watch), []).append(line)
            elif "event" in line:
                self._streams.setdefault(line["stream"], []).append(line["event"])
            elif "reply" in line and "stream" in line:
                self._documents[line["stream"]] = line["reply"]

    async def __aenter__(self) -> Replay:
        self.access = Access("127.0.0.1", self._connections.listen(), tls=False, token="a token")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.end()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            request = await wire.read_request(reader)
            self.requests.append((request.method, request.target, request.body))
            if not await self._answer(request, writer):
                break

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        answers = self._answers.get((request.method, request.path, "watch" in request.query), [])
        if not answers:
            document = {"kind": "Status", "code": 404, "message": "not recorded", "reason": "NotFound"}
            await wire.send(writer, 404, document)
            return True
        line = answers.pop(0)
        if line["status"] != 200 or "stream" not in line or line.get("reply_transfer_encoding") != "chunked":
            found = line["reply"] if "reply" in line else self._documents.get(line.get("stream", ""))
            pause = line.get("reply_retry_after")
            await wire.send(writer, line["status"], found, f"Retry-After: {pause}\r\n" if pause else "")
            return True
        await wire.begin_chunks(writer)
        for event in self._streams.get(line["stream"], []):
            await wire.send_line(writer, event)
        at_end = "end" if line.get("ends") else self.at_end
        if at_end == "open":
            await asyncio.sleep(3600)
        if at_end == "end":
            await wire.end_chunks(writer)
            return True
        return False
