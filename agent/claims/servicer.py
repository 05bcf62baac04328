# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of claims: its calls, each translated from either version of the API, answered, and translated
back.

A call is about all claims of one pod and is answered for each of them; the kubelet takes a claim that is missing in
the answer for an error of the driver. So an exception becomes an error text of every claim of its call. It never
becomes an error of the call: the kubelet would not say in the pod's event which claim it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from agent.claims.messages import ClaimName, ClaimService, PrepareAnswer, PreparedDevice
from agent.kubelet.pb import dra_v1_pb2, dra_v1beta1_pb2
from agent.link import CallContext, OfferedMethod
from agent.telemetry.counters import Counters
from gigaslice.core.errors import GigasliceError
from gigaslice.core.text import plain
from gigaslice.runtime.logs import get_logger

__all__ = ["ClaimServicer"]

_API: dict[str, ModuleType] = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
_UNANSWERED = "the node agent has no answer for this claim; please report it"


class ClaimServicer:
    """Answers the kubelet by what a service does. Calls may be counted."""

    def __init__(self, service: ClaimService, counters: Counters | None = None) -> None:
        self._service = service
        self._counters = counters or Counters()
        self._log = get_logger("claims")

    @property
    def methods(self) -> dict[str, OfferedMethod]:
        """What answers the kubelet's calls. A claim that was prepared may be prepared again, so any call may be."""
        methods = {}
        for version, api in _API.items():
            calls = _VersionCalls(self, api)
            methods[f"{version}.NodePrepareResources"] = OfferedMethod(
                api.NodePrepareResourcesRequest, calls.prepare, repeatable=True
            )
            methods[f"{version}.NodeUnprepareResources"] = OfferedMethod(
                api.NodeUnprepareResourcesRequest, calls.unprepare, repeatable=True
            )
        return methods

    async def prepare(self, claims: tuple[ClaimName, ...], remaining: float | None) -> list[PrepareAnswer]:
        """Prepares claims. Returns an answer for each of them."""
        begun = time.perf_counter()
        try:
            answers: Mapping[str, PrepareAnswer] = await self._service.prepare(claims, remaining)
        except Exception as error:  # noqa: BLE001  (one call, not the agent)
            failed = PrepareAnswer(error=self._failed("prepare", claims, error))
            answers = dict.fromkeys((claim.uid for claim in claims), failed)
        finally:
            self._counters.claim_calls["prepare"].observe(time.perf_counter() - begun)
        unanswered = PrepareAnswer(error=_UNANSWERED)
        listed = [answers.get(claim.uid, unanswered) for claim in claims]
        self._counters.claim_errors["prepare"] += sum(bool(answer.error) for answer in listed)
        return listed

    async def unprepare(self, claims: tuple[ClaimName, ...]) -> list[str]:
        """Unprepares claims. Returns for each why not, or an empty text."""
        begun = time.perf_counter()
        try:
            errors: Mapping[str, str] = await self._service.unprepare(claims)
        except Exception as error:  # noqa: BLE001  (one call, not the agent)
            errors = dict.fromkeys((claim.uid for claim in claims), self._failed("unprepare", claims, error))
        finally:
            self._counters.claim_calls["unprepare"].observe(time.perf_counter() - begun)
        listed = [errors.get(claim.uid, _UNANSWERED) for claim in claims]
        self._counters.claim_errors["unprepare"] += sum(map(bool, listed))
        return listed

    def _failed(self, operation: str, claims: Iterable[ClaimName], error: Exception) -> str:
        names = ", ".join(map(str, claims))
        if isinstance(error, GigasliceError):
            self._log.error("claims failed", operation=operation, claims=names, detail=str(error))
            return plain(str(error))
        self._log.exception("claims failed", operation=operation, claims=names)
        return plain(f"{type(error).__name__}: {error}")


class _VersionCalls:
    """The calls in one version of the API."""

    def __init__(self, servicer: ClaimServicer, api: ModuleType) -> None:
        self._servicer = servicer
        self._api = api
        self._has_shares = "share_id" in api.Device.DESCRIPTOR.fields_by_name

    async def prepare(self, request: Any, context: CallContext) -> Any:
        claims = _names(request)
        answers = await self._servicer.prepare(claims, context.time_remaining())
        response = self._api.NodePrepareResourcesResponse()
        for claim, answer in zip(claims, answers, strict=True):
            entry = response.claims[claim.uid]
            entry.error = answer.error or ""
            if not answer.error:
                entry.devices.extend(map(self._device, answer.devices))
        return response

    async def unprepare(self, request: Any, context: CallContext) -> Any:
        del context
        claims = _names(request)
        response = self._api.NodeUnprepareResourcesResponse()
        for claim, error in zip(claims, await self._servicer.unprepare(claims), strict=True):
            response.claims[claim.uid].error = error
        return response

    def _device(self, device: PreparedDevice) -> Any:
        message = self._api.Device(
            request_names=device.requests,
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi,
        )
        if device.share_id and self._has_shares:
            message.share_id = device.share_id
        return message


def _names(request: Any) -> tuple[ClaimName, ...]:
    return tuple(ClaimName(claim.namespace, claim.name, claim.uid) for claim in request.claims)
