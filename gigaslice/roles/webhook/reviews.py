# SPDX-License-Identifier: Apache-2.0
"""AdmissionReview of admission.k8s.io/v1: a question about one pod in, the answer out. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gigaslice.core.errors import InputError
from gigaslice.core.kube.pod_fields import FieldError, text_in
from gigaslice.core.text import plain
from gigaslice.roles.webhook.admission_pod import AdmissionPod, read_admission_pod
from gigaslice.roles.webhook.complete import completion_patch
from gigaslice.roles.webhook.facts import AdmissionFacts
from gigaslice.roles.webhook.mistakes import findings

__all__ = [
    "PodReview",
    "ReviewAnswer",
    "ReviewError",
    "answer_mutate",
    "answer_validate",
    "read_review",
    "refusal",
    "write_review",
]

_API = "admission.k8s.io/v1"
_LONGEST_MESSAGE = 4000
_LONGEST_WARNING = 250  # the API server cuts what is longer in sum than 4096
_MOST_WARNINGS = 10
_LONGEST_UID = 128
_OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")


class ReviewError(InputError):
    """What was posted is no question about a pod."""


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """What the API server is told. message: why the pod is refused; empty where it is not. passing: it may be taken
    when it is sent again.
    """

    message: str = ""
    warnings: tuple[str, ...] = ()
    patch: tuple[Mapping[str, Any], ...] = field(default=())
    passing: bool = False


@dataclass(frozen=True, slots=True)
class PodReview:
    """A question.

    Attributes:
        uid: To be sent back.
        pod: The pod that is about to be made; None where none is made.
        namespace: Of the pod.
        dry_run: Whether nothing may be changed for it.
    """

    uid: str
    pod: AdmissionPod | None
    namespace: str = ""
    dry_run: bool = False


def read_review(document: object) -> PodReview:
    """Reads a question of the API server.

    Only the creation of a pod is decided about. A pod that there is already must stay changeable whatever it says, and
    what it asks for cannot be changed.

    Raises:
        ReviewError: The document is none, or is about something other than a pod.
    """
    request = document.get("request") if isinstance(document, dict) else None
    uid = request.get("uid") if isinstance(request, dict) else None
    if not isinstance(request, dict) or not isinstance(uid, str) or not 0 < len(uid) <= _LONGEST_UID:
        raise ReviewError("no AdmissionReview with a request and its uid in it")
    kind, operation = request.get("kind"), request.get("operation")
    if not isinstance(kind, dict) or kind.get("kind") != "Pod" or kind.get("group", "") != "":
        raise ReviewError("this webhook is for the creation of pods")
    if operation not in _OPERATIONS:
        raise ReviewError(f"request.operation must be one of {', '.join(_OPERATIONS)}")
    if operation != "CREATE":
        return PodReview(uid, None)
    pod = request.get("object")
    if not isinstance(pod, dict):
        raise ReviewError("request.object must be the pod")
    try:
        admission = read_admission_pod(pod)
        namespace = text_in(request, "namespace", "request.") or admission.pod.namespace
        return PodReview(uid, admission, namespace, dry_run=request.get("dryRun") is True)
    except FieldError as error:
        raise ReviewError(f"request.object: {plain(str(error))}") from error


def write_review(uid: str, answer: ReviewAnswer) -> dict[str, Any]:
    """Returns the AdmissionReview that carries an answer."""
    response: dict[str, Any] = {"uid": uid, "allowed": not answer.message}
    if answer.message:
        code, reason = (503, "ServiceUnavailable") if answer.passing else (422, "Invalid")
        response["status"] = {"code": code, "reason": reason, "message": answer.message[:_LONGEST_MESSAGE]}
    elif answer.patch:
        text = json.dumps(answer.patch, separators=(",", ":")).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(text).decode()}
    if answer.warnings:
        response["warnings"] = [warning[:_LONGEST_WARNING] for warning in answer.warnings[:_MOST_WARNINGS]]
    return {"apiVersion": _API, "kind": "AdmissionReview", "response": response}


def answer_mutate(admission: AdmissionPod, facts: AdmissionFacts) -> ReviewAnswer:
    """Completes a pod, or refuses it for what no completion mends; warnings are left to the second question."""
    checked = findings(admission, facts, completed=False)
    if checked.mistakes:
        return refusal(checked.mistakes)
    return ReviewAnswer(patch=tuple(completion_patch(admission, facts)))


def answer_validate(admission: AdmissionPod, facts: AdmissionFacts) -> ReviewAnswer:
    """Checks a pod as it is going to be stored, after everything that changes pods."""
    checked = findings(admission, facts, completed=True)
    return ReviewAnswer(_sentence(checked.mistakes), tuple(map(plain, dict.fromkeys(checked.warnings))))


def refusal(mistakes: Iterable[str], *, passing: bool = False) -> ReviewAnswer:
    """Returns the answer to a pod with these mistakes; it is taken where there is none."""
    return ReviewAnswer(_sentence(mistakes), passing=passing)


def _sentence(mistakes: Iterable[str]) -> str:
    return "; ".join(map(plain, dict.fromkeys(mistakes)))
