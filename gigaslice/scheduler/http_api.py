"""The service's HTTP side: the four verbs of an extender, two probes, metrics.

kube-scheduler keeps a few connections open and sends one request after the other on them; each reply leaves with one
send, since a head and a body apart would wait for each other's acknowledgement, 40 ms per call. Requests are read
whole: ten kilobytes with names of nodes, megabytes with whole nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from gigaslice.errors import InputError
from gigaslice.scheduler.binding import Binder
from gigaslice.scheduler.metrics import CONTENT_TYPE, SchedulerMetrics
from gigaslice.scheduler.placer import Placer
from gigaslice.scheduler.protocol import BindRequest, PodRequest, PreemptRequest, encode, scores_reply

__all__ = ["HttpApi"]

_MOST_BYTES = 512 << 20  # five thousand whole nodes
_JSON = "application/json"


class HttpApi:
    """Answers kube-scheduler.

    Args:
        placer: Decides.
        binder: Writes bindings.
        metrics: Counts.
        unready: Why the service cannot decide now; None when it can.
        refusal: Why another replica decides, or none; None where this one does. Asked for each call of kube-scheduler.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        placer: Placer,
        binder: Binder,
        metrics: SchedulerMetrics,
        unready: Callable[[], str | None],
        *,
        refusal: Callable[[], Awaitable[str | None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._placer = placer
        self._binder = binder
        self._metrics = metrics
        self._unready = unready
        self._refusal = refusal
        self._clock = clock

    def application(self) -> web.Application:
        """Returns the application, to be served."""
        app = web.Application(client_max_size=_MOST_BYTES)
        for verb, work in (
            ("filter", self._filter),
            ("prioritize", self._prioritize),
            ("preempt", self._preempt),
            ("bind", self._bind),
        ):
            app.router.add_post(f"/scheduler/{verb}", self._verb(verb, work))
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._show_metrics)
        return app

    def _verb(
        self, verb: str, work: Callable[[bytes], Awaitable[object]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            reason = self._unready()
            if reason is None and self._refusal is not None:
                reason = await self._refusal()
            if reason is not None:
                return _text(503, reason)
            body = await request.read()
            begun = self._clock()
            try:
                reply = await work(body)
            except InputError as error:
                return _text(400, str(error))
            finally:
                self._metrics.took(verb, self._clock() - begun)
            return web.Response(body=encode(reply), content_type=_JSON)

        return handle

    async def _filter(self, body: bytes) -> object:
        request = PodRequest.decode(body)
        found = self._placer.filter(request.pod, request.names, self._clock())
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name, refusal in found.refused.items():
            (unresolvable if refusal.permanent else failed)[name] = refusal.text
        if not found.names:
            self._metrics.refused({one.reason for one in found.refused.values()})
        return request.filter_reply(found.names, failed, unresolvable)

    async def _prioritize(self, body: bytes) -> object:
        request = PodRequest.decode(body)
        return scores_reply(self._placer.prioritize(request.pod, request.names, self._clock()))

    async def _preempt(self, body: bytes) -> object:
        request = PreemptRequest.decode(body)
        return request.reply(self._placer.preempt(request.pod, request.victims, self._clock()))

    async def _bind(self, body: bytes) -> object:
        return {"Error": await self._binder.bind(BindRequest.decode(body))}

    async def _healthz(self, _: web.Request) -> web.Response:
        return _text(200, "ok")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._unready()
        return _text(200, "ok") if reason is None else _text(503, reason)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        render = self._metrics.prepare()
        return web.Response(body=await asyncio.to_thread(render), headers={"Content-Type": CONTENT_TYPE})


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
