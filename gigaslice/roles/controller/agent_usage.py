# SPDX-License-Identifier: Apache-2.0
"""What pods use of their GPUs, asked from the agents' metrics for the page, and only while somebody looks at it.

No object of the API server has the use of memory, which changes all the time (docs/adr/0083). The agents have it as
metrics, so they are asked: those whose pods stand in the controller's own namespace, where no tenant makes pods. All of
it is bounded. A pass asks a part of the agents, a few at a time, each with seconds to answer and a largest answer; the
next pass goes on where the last one ended. Where nobody has asked for the page for a while, nobody is asked.

An agent is believed about its own node alone. What it does not answer is not measured; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

from gigaslice.core.kube.fields import object_at, objects_at, text_at
from gigaslice.core.views.usage import NodeUsage, read_usage
from gigaslice.kubeapi.client import ApiFailure, KubeClient
from gigaslice.runtime.files import read_file
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of

__all__ = ["AgentUsage", "metrics_address"]

_SELECTOR = {"labelSelector": "app.kubernetes.io/component=node", "limit": "200"}
_PORT = "metrics"
_PASS_SECONDS = 15.0  # from the begin of a pass to that of the next
_LIST_SECONDS = 60.0  # for which a list of agents is good
_WANTED_SECONDS = 60.0  # after the last time that the page was asked for
_KEPT_SECONDS = 300.0  # for which an answer counts
_AT_ONCE, _PER_PASS, _PER_NODE = 16, 256, 2
_ANSWER = ClientTimeout(total=3.0)
_MOST_BYTES, _PIECE_BYTES = 4 << 20, 64 << 10
_MOST_TOKEN = 4096


@dataclass(frozen=True, slots=True)
class _Answer:
    usage: NodeUsage
    at: float


class AgentUsage:
    """The agents' answers.

    Args:
        client: The API server, which has the addresses of the agents' pods.
        namespace: Where these are.
        token_file: Has the token that the agents' metrics ask for; None: they ask for none.
        clock: Gives seconds that only grow.
        pass_seconds: From the begin of a pass to that of the next.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        token_file: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        pass_seconds: float = _PASS_SECONDS,
    ) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._token_file = token_file
        self._clock = clock
        self._pass_seconds = pass_seconds
        self._answers: dict[str, _Answer] = {}
        self._agents: list[tuple[str, tuple[str, ...]]] = []
        self._next = 0
        self._listed = self._wanted = float("-inf")
        self._asked = asyncio.Event()
        self._problems: dict[str, tuple[str, str]] = {}
        self._once = LogOnce()
        self._log = get_logger("usage")
        self.revision = 0
        """Grows with every pass that had an answer."""

    def want(self) -> None:
        """Notes that somebody asks for the page."""
        self._wanted = self._clock()
        self._asked.set()

    def nodes(self) -> Mapping[str, NodeUsage]:
        """What is known now, by node."""
        oldest = self._clock() - _KEPT_SECONDS
        return {node: answer.usage for node, answer in self._answers.items() if answer.at >= oldest}

    async def run(self) -> None:
        """Works until cancelled."""
        async with ClientSession(timeout=_ANSWER, auto_decompress=False) as session:
            while True:
                await self._asked.wait()
                self._asked.clear()
                while self._clock() - self._wanted < _WANTED_SECONDS:
                    begun = self._clock()
                    await self._pass(session)
                    await asyncio.sleep(max(0.0, self._pass_seconds - (self._clock() - begun)))

    async def _pass(self, session: ClientSession) -> None:
        now = self._clock()
        try:
            if now - self._listed >= _LIST_SECONDS or not self._agents:
                self._agents = await self._list()
                self._listed = now
            headers = self._headers()
        except (ApiFailure, OSError) as error:
            if self._once.new("agents", str(error)):
                self._log.warning("use of GPU memory not asked for", detail=str(error))
            return
        self._once.over("agents")
        there = {node for node, _ in self._agents}
        self._answers = {node: answer for node, answer in self._answers.items() if node in there}
        limit = asyncio.Semaphore(_AT_ONCE)

        async def ask(node: str, urls: Sequence[str]) -> None:
            async with limit:
                for url in urls:
                    usage = await self._ask(session, node, url, headers)
                    if usage is not None:
                        self._answers[node] = _Answer(usage, self._clock())
                        return
            self._answers.pop(node, None)

        self._problems = {}
        await all_of(*(ask(node, urls) for node, urls in self._turn()))
        self._log_problems()
        self.revision += 1

    def _log_problems(self) -> None:
        """Writes one line about the agents that did not answer in this pass, unless they failed the same way before."""
        kinds = sorted({kind for kind, _ in self._problems.values()})
        if not kinds:
            self._once.over("answers")
        elif self._once.new("answers", " ".join(kinds)):
            node, (_, detail) = min(self._problems.items())
            self._log.warning(
                "use of GPU memory not answered", nodes=len(self._problems), node=node, detail=detail
            )

    def _turn(self) -> list[tuple[str, tuple[str, ...]]]:
        """Those that are asked in this pass: of many, the next ones after those of the last."""
        count = min(_PER_PASS, len(self._agents))
        turn = [self._agents[(self._next + number) % len(self._agents)] for number in range(count)]
        self._next = (self._next + count) % max(1, len(self._agents))
        return turn

    async def _list(self) -> list[tuple[str, tuple[str, ...]]]:
        """Nodes, and the addresses of their agents; beside one that serves there may be its successor.

        Raises:
            ApiFailure: They cannot be read.
        """
        agents: dict[str, tuple[str, ...]] = {}
        query = dict(_SELECTOR)
        while True:
            page = await self._client.get(self._path, query)
            for document in objects_at(page, "items"):
                node = text_at(object_at(document, "spec"), "nodeName")
                address = metrics_address(document)
                if node and address:
                    agents[node] = (*agents.get(node, ()), address)[:_PER_NODE]
            following = text_at(object_at(page, "metadata"), "continue")
            if not following:
                return sorted(agents.items())
            query["continue"] = following

    def _headers(self) -> dict[str, str]:
        """Those of each question. Raises OSError."""
        if self._token_file is None:
            return {}
        token = read_file(self._token_file, _MOST_TOKEN).strip().decode("ascii", "replace")
        return {"Authorization": f"Bearer {token}"}

    async def _ask(
        self, session: ClientSession, node: str, url: str, headers: Mapping[str, str]
    ) -> NodeUsage | None:
        """The use on one node; None where its agent does not say it."""
        try:
            async with session.get(url, headers=headers, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise ValueError(f"status {answer.status}")
                body = bytearray()
                async for chunk in answer.content.iter_chunked(_PIECE_BYTES):
                    body += chunk
                    if len(body) > _MOST_BYTES:
                        raise ValueError(f"more than {_MOST_BYTES} bytes")
                return read_usage(body.decode("utf-8", "replace"))
        except (ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
            kind = type(error).__name__
            self._problems[node] = kind, str(error) or kind
            return None


def metrics_address(pod: Mapping[str, Any]) -> str:
    """The URL of the metrics of an agent's pod; empty where it has none, or is not running."""
    status = object_at(pod, "status")
    if text_at(status, "phase") != "Running" or object_at(pod, "metadata").get("deletionTimestamp"):
        return ""
    try:
        address = ip_address(text_at(status, "podIP"))
    except ValueError:
        return ""
    for container in objects_at(object_at(pod, "spec"), "containers"):
        for port in objects_at(container, "ports"):
            number = port.get("containerPort")
            if port.get("name") == _PORT and isinstance(number, int) and 0 < number < 65536:
                return f"http://{f'[{address}]' if address.version == 6 else address}:{number}/metrics"
    return ""
