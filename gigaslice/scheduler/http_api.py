"""What the service answers over HTTP: the four verbs of an extender, two probes, metrics.

All but a binding and the metrics are answered at once, from memory. `http_front` carries it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from gigaslice.errors import InputError
from gigaslice.scheduler.binding import Binder
from gigaslice.scheduler.election import Election
from gigaslice.scheduler.http_front import PLAIN, HttpReply, Work
from gigaslice.scheduler.metrics import CONTENT_TYPE, SchedulerMetrics
from gigaslice.scheduler.placer import Placer
from gigaslice.scheduler.protocol import BindRequest, PodRequest, PreemptRequest, encode, scores_reply

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

    def routes(self) -> dict[tuple[bytes, bytes], Work]:
        """Returns what answers, by method and path."""
        return {
            (b"POST", b"/scheduler/filter"): self._verb("filter", self._filter),
            (b"POST", b"/scheduler/prioritize"): self._verb("prioritize", self._prioritize),
            (b"POST", b"/scheduler/preempt"): self._verb("preempt", self._preempt),
            (b"POST", b"/scheduler/bind"): self._bind,
            (b"GET", b"/healthz"): lambda _: _text(200, "ok"),
            (b"GET", b"/readyz"): self._readyz,
            (b"GET", b"/metrics"): self._show_metrics,
        }

    def _verb(self, verb: str, work: Callable[[bytes], object]) -> Work:
        def decide(body: bytes) -> HttpReply:
            begun = self._clock()
            try:
                return HttpReply(200, encode(work(body)))
            except InputError as error:
                return _text(400, str(error))
            finally:
                self._metrics.took(verb, self._clock() - begun)

        async def decide_later(body: bytes) -> HttpReply:
            reason = await self._refusal()
            return decide(body) if reason is None else _text(503, reason)

        def handle(body: bytes) -> HttpReply | Awaitable[HttpReply]:
            reason = self._unready()
            if reason is not None:
                return _text(503, reason)
            return decide(body) if self._election is None or self._election.decides() else decide_later(body)

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
        found = self._placer.filter(request.pod, request.names, now)
        if self._best and len(found.names) > 1:
            ranked = self._placer.prioritize(request.pod, found.names, now)
            if ranked:  # not a pod that asks for nothing of ours
                return request.filter_reply([ranked[0][0]], {}, {})
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name, refusal in found.refused.items():
            (unresolvable if refusal.permanent else failed)[name] = refusal.text
        if not found.names:
            self._metrics.refused({one.reason for one in found.refused.values()})
        return request.filter_reply(found.names, failed, unresolvable)

    def _prioritize(self, body: bytes) -> object:
        request = PodRequest.decode(body)
        return scores_reply(self._placer.prioritize(request.pod, request.names, self._clock()))

    def _preempt(self, body: bytes) -> object:
        request = PreemptRequest.decode(body)
        return request.reply(self._placer.preempt(request.pod, request.victims, self._clock()))

    async def _bind(self, body: bytes) -> HttpReply:
        reason = await self._refusal()
        if reason is not None:
            return _text(503, reason)
        begun = self._clock()
        try:
            return HttpReply(200, encode({"Error": await self._binder.bind(BindRequest.decode(body))}))
        except InputError as error:
            return _text(400, str(error))
        finally:
            self._metrics.took("bind", self._clock() - begun)

    def _readyz(self, _: bytes) -> HttpReply:
        reason = self._unready()
        return _text(200, "ok") if reason is None else _text(503, reason)

    async def _show_metrics(self, _: bytes) -> HttpReply:
        render = self._metrics.prepare()
        return HttpReply(200, await asyncio.to_thread(render), CONTENT_TYPE)


def _text(status: int, text: str) -> HttpReply:
    return HttpReply(status, f"{text}\n".encode(), PLAIN)
