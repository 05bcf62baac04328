# SPDX-License-Identifier: Apache-2.0
"""What the service answers over HTTP: the four verbs of an extender, two probes, metrics.

All but a binding and the metrics are answered at once, from memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from gigaslice.core.errors import InputError
from gigaslice.roles.scheduler.binding import Binder
from gigaslice.roles.scheduler.election import Election
from gigaslice.roles.scheduler.metrics import CONTENT_TYPE, SchedulerMetrics
from gigaslice.roles.scheduler.placer import Placer
from gigaslice.roles.scheduler.protocol import BindRequest, PodRequest, PreemptRequest, encode, scores_reply

__all__ = ["HttpApi"]


class HttpApi:
    """Answers kube-scheduler.

    Args:
        placer: Decides.
        binder: Writes bindings.
        metrics: Counts.
        unready: Why the service cannot decide now; None when it can.
        best: Whether filter names the best of the nodes that fit, instead of all.
        election: Whether this service decides, where there may be several.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        placer: Placer,
        binder: Binder,
        metrics: SchedulerMetrics,
        unready: Callable[[], str | None],
        *,
        best: bool = True,
        election: Election | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._placer = placer
        self._binder = binder
        self._metrics = metrics
        self._unready = unready
        self._best = best
        self._election = election
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Returns what answers, by method and path."""
        return [
            web.post("/scheduler/filter", self._verb("filter", self._filter)),
            web.post("/scheduler/prioritize", self._verb("prioritize", self._prioritize)),
            web.post("/scheduler/preempt", self._verb("preempt", self._preempt)),
            web.post("/scheduler/bind", self._bind),
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._show_metrics),
        ]

    def _verb(
        self, verb: str, decide: Callable[[bytes], object]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            body = await request.read()
            reason = self._unready()
            if reason is None and self._election is not None and not self._election.decides():
                reason = await self._refusal()
            if reason is not None:
                return _text(503, reason)
            begun = self._clock()
            try:
                return _json(decide(body))
            except InputError as error:
                return _text(400, str(error))
            finally:
                self._metrics.took(verb, self._clock() - begun)

        return handle

    async def _refusal(self) -> str | None:
        """Why kube-scheduler is not answered now; waits a moment for this service to take over."""
        reason = self._unready()
        if reason is None and self._election is not None:
            reason = await self._election.refusal()
        return reason

    def _filter(self, body: bytes) -> object:
        request = PodRequest.decode(body)
        now = self._clock()
        result = self._placer.filter(request.pod, request.names, now)
        if self._best and len(result.names) > 1:
            ranked = self._placer.prioritize(request.pod, result.names, now)
            if ranked:  # not a pod that asks for nothing of ours
                return request.filter_reply([ranked[0][0]], {}, {})
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name, refusal in result.refused.items():
            (unresolvable if refusal.permanent else failed)[name] = refusal.text
        if not result.names:
            self._metrics.refused({refusal.reason for refusal in result.refused.values()})
        return request.filter_reply(result.names, failed, unresolvable)

    def _prioritize(self, body: bytes) -> object:
        request = PodRequest.decode(body)
        return scores_reply(self._placer.prioritize(request.pod, request.names, self._clock()))

    def _preempt(self, body: bytes) -> object:
        request = PreemptRequest.decode(body)
        return request.reply(self._placer.preempt(request.pod, request.victims, self._clock()))

    async def _bind(self, request: web.Request) -> web.Response:
        body = await request.read()
        reason = await self._refusal()
        if reason is not None:
            return _text(503, reason)
        begun = self._clock()
        try:
            return _json({"Error": await self._binder.bind(BindRequest.decode(body))})
        except InputError as error:
            return _text(400, str(error))
        finally:
            self._metrics.took("bind", self._clock() - begun)

    async def _healthz(self, _: web.Request) -> web.Response:
        return _text(200, "ok")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._unready()
        return _text(200, "ok") if reason is None else _text(503, reason)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        body = await asyncio.to_thread(self._metrics.prepare())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _json(document: object) -> web.Response:
    return web.Response(body=encode(document), content_type="application/json")


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
