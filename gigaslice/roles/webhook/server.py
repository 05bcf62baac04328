# SPDX-License-Identifier: Apache-2.0
"""The two endpoints that the API server posts pods to, for an aiohttp application of the controller.

A question is answered from memory, without a call to anything else, but for pods with claims (`claim_admission`).
Before the facts are there the answer is 503: what that means for the pod is the failurePolicy's to say, and that is
`Fail` only for pods that ask for ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from gigaslice.core.text import plain
from gigaslice.roles.webhook.claim_admission import ClaimAdmission
from gigaslice.roles.webhook.facts import AdmissionFacts
from gigaslice.roles.webhook.reviews import (
    PodReview,
    ReviewAnswer,
    ReviewError,
    answer_mutate,
    answer_validate,
    read_review,
    write_review,
)

__all__ = ["MUTATE_PATH", "VALIDATE_PATH", "routes"]

MUTATE_PATH = "/mutate"
VALIDATE_PATH = "/validate"


def routes(
    facts: Callable[[], AdmissionFacts],
    count: Callable[[str, bool], None] = lambda path, allowed: None,
    claims: ClaimAdmission | None = None,
) -> list[web.RouteDef]:
    """Returns the endpoints.

    Args:
        facts: What is known of the cluster now.
        count: Called after every answer with the path and whether the pod was allowed.
        claims: Answers where pods may have claims; None: none has.
    """

    def endpoint(
        path: str, decide: Callable[[PodReview, AdmissionFacts], Awaitable[ReviewAnswer]]
    ) -> web.RouteDef:
        async def handle(request: web.Request) -> web.Response:
            current = facts()
            if not current.synced:
                return web.Response(status=503, text="the cluster's state is not read yet; try again")
            try:
                review = read_review(orjson.loads(await _body(request)))
            except (ReviewError, ValueError) as error:
                return web.Response(status=400, text=str(error))
            answer = await decide(review, current)
            count(path, not answer.message)
            body = orjson.dumps(write_review(review.uid, answer))
            return web.Response(body=body, content_type="application/json")

        return web.post(path, handle)

    async def mutate(review: PodReview, current: AdmissionFacts) -> ReviewAnswer:
        return ReviewAnswer() if review.pod is None else answer_mutate(review.pod, current)

    async def validate(review: PodReview, current: AdmissionFacts) -> ReviewAnswer:
        return ReviewAnswer() if review.pod is None else answer_validate(review.pod, current)

    if claims is not None:
        return [endpoint(MUTATE_PATH, claims.mutate), endpoint(VALIDATE_PATH, claims.validate)]
    return [endpoint(MUTATE_PATH, mutate), endpoint(VALIDATE_PATH, validate)]


async def _body(request: web.Request) -> bytes:
    """The whole body. Raises ValueError for one that no API server sends."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise ValueError(f"Content-Encoding {plain(encoding)[:40]} is not read; send the JSON as it is")
    return await request.read()
