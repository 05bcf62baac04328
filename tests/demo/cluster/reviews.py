# SPDX-License-Identifier: Apache-2.0
"""Asks the webhook about a pod, as an API server asks."""

from __future__ import annotations

import base64
import json
import ssl

import jsonpatch
from aiohttp import ClientSession

from tests.demo.cluster.control_plane import NAMESPACE, WEBHOOK, Document, Refused

__all__ = ["reviewed"]

_HOST = f"{WEBHOOK}.{NAMESPACE}.svc"


async def reviewed(session: ClientSession, port: int, path: str, hook: Document, pod: Document) -> Document:
    """The pod as the webhook answers it.

    Args:
        session: Asks.
        port: Of the webhook, on loopback.
        path: "mutate" or "validate".
        hook: The webhook in its configuration, with the authority that the controller has written there.
        pod: The pod that is created.

    Raises:
        Refused: The webhook refuses it.
    """
    authority = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": pod["metadata"]["name"],
            "operation": "CREATE",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": pod["metadata"]["namespace"],
            "object": pod,
        },
    }
    url = f"https://127.0.0.1:{port}/{path}"
    context = ssl.create_default_context(cadata=authority)
    async with session.post(url, json=body, ssl=context, server_hostname=_HOST) as reply:
        answer = (await reply.json())["response"]
    if not answer["allowed"]:
        raise Refused(answer["status"]["message"])
    if patch := answer.get("patch"):
        changed: Document = jsonpatch.apply_patch(pod, json.loads(base64.b64decode(patch)))
        return changed
    return pod
