"""AdmissionReview of admission.k8s.io/v1: a question about one pod in, the answer out. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gigaslice.errors import InputError
from gigaslice.text import plain
from gigaslice.webhook.complete import patch_of
from gigaslice.webhook.facts import AdmissionFacts
from gigaslice.webhook.mistakes import findings

__all__ = ["ReviewAnswer", "ReviewError", "answer_mutate", "answer_validate", "read_review", "write_review"]

_API = "admission.k8s.io/v1"
_LONGEST_MESSAGE = 4000
_LONGEST_WARNING = 250  # the API server cuts what is longer in sum than 4096
_MOST_WARNINGS = 10


class ReviewError(InputError):
    """What was posted is no question about a pod."""


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """What the API server is told. message: why the pod is refused; empty where it is not."""

    message: str = ""
    warnings: tuple[str, ...] = ()
    patch: tuple[Mapping[str, Any], ...] = field(default=())


def read_review(document: object) -> tuple[str, Mapping[str, Any]]:
    """Returns the UID of the question and the pod that it is about.

    Raises:
        ReviewError: It is none.
    """
    request = document.get("request") if isinstance(document, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise ReviewError("no AdmissionReview with a request in it")
    kind, pod = request.get("kind"), request.get("object")
    if not isinstance(kind, dict) or kind.get("kind") != "Pod" or not isinstance(pod, dict):
        raise ReviewError("this webhook is for the creation of pods")
    return request["uid"], pod


def write_review(uid: str, answer: ReviewAnswer) -> dict[str, Any]:
    """Returns the AdmissionReview that carries an answer."""
    response: dict[str, Any] = {"uid": uid, "allowed": not answer.message}
    if answer.message:
        response["status"] = {"code": 422, "reason": "Invalid", "message": answer.message[:_LONGEST_MESSAGE]}
    elif answer.patch:
        text = json.dumps(answer.patch, separators=(",", ":")).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(text).decode()}
    if answer.warnings:
        response["warnings"] = [one[:_LONGEST_WARNING] for one in answer.warnings[:_MOST_WARNINGS]]
    return {"apiVersion": _API, "kind": "AdmissionReview", "response": response}


def answer_mutate(pod: Mapping[str, Any], facts: AdmissionFacts) -> ReviewAnswer:
    """Completes a pod, or refuses it for what no completion mends; warnings are left to the second question."""
    found = findings(pod, facts, completed=False)
    if found.mistakes:
        return ReviewAnswer(_sentence(found.mistakes))
    return ReviewAnswer(patch=tuple(patch_of(pod, facts)))


def answer_validate(pod: Mapping[str, Any], facts: AdmissionFacts) -> ReviewAnswer:
    """Checks a pod as it is going to be stored, after everything that changes pods."""
    found = findings(pod, facts, completed=True)
    return ReviewAnswer(_sentence(found.mistakes), tuple(map(plain, dict.fromkeys(found.warnings))))


def _sentence(mistakes: list[str]) -> str:
    return "; ".join(map(plain, dict.fromkeys(mistakes)))
