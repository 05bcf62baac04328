# SPDX-License-Identifier: Apache-2.0
"""Pods that cannot have their claims as they name them, as far as that is certain before they are stored. Pure.

A container has one quota, and so the devices of ours of one claim. The kubelet asks a node for each claim once, so a
pod whose claims were prepared for others before starts without a call; then only its programs are refused. So what
admission can tell, it tells. It does not guess: a request counts where all that it can be given are devices of ours by
the name of their class. A class of somebody else's that leads to our devices too is left to the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gigaslice.core.claims.consumers import two_claims_sentence
from gigaslice.core.claims.names import DRIVER
from gigaslice.core.kube.fields import object_at, objects_at
from gigaslice.core.model import ClaimUse
from gigaslice.roles.webhook.admission_pod import AdmissionPod, NamedClaim

__all__ = ["claims_together", "claims_twice", "our_requests"]


def claims_together(admission: AdmissionPod) -> tuple[NamedClaim, ...]:
    """Returns the claims of a pod that one of its containers has together with others."""
    named = {name for uses in _uses(admission, admission.claims) if len(uses) > 1 for name in uses}
    return tuple(claim for claim in admission.claims if claim.name in named)


def our_requests(spec: Mapping[str, Any]) -> frozenset[str]:
    """Returns the requests in a claim's spec that are for devices of ours, whatever alternative is allocated."""
    ours = set()
    for request in objects_at(object_at(spec, "devices"), "requests"):
        alternatives = objects_at(request, "firstAvailable") or [object_at(request, "exactly")]
        name = request.get("name")
        if isinstance(name, str) and all(_is_ours(alternative) for alternative in alternatives):
            ours.add(name)
    return frozenset(ours)


def claims_twice(admission: AdmissionPod, ours: Mapping[str, frozenset[str]]) -> list[str]:
    """Returns a sentence for each container that has devices of ours of two claims.

    Args:
        admission: The pod.
        ours: Requests for devices of ours of its claims, by what the pod calls these.
    """
    certain = [claim for claim in admission.claims if ours.get(claim.name)]
    sentences = []
    for container, uses in zip(admission.pod.containers, _uses(admission, certain), strict=True):
        names = [
            name
            for name, requests in uses.items()
            if any(not request or request in ours[name] for request in requests)
        ]
        if len(names) > 1:
            sentences.append(two_claims_sentence(container.name, names))
    return sentences


def _uses(admission: AdmissionPod, claims: Iterable[NamedClaim]) -> list[dict[str, list[str]]]:
    """For each container, its requests of these claims by what the pod calls them; one object counts once."""
    first: dict[str, str] = {}
    by_object: dict[str, str] = {}
    for claim in claims:
        first[claim.name] = by_object.setdefault(claim.claim, claim.name) if claim.claim else claim.name
    return [_of_container(container.claims, first) for container in admission.pod.containers]


def _of_container(claims: Iterable[ClaimUse], first: Mapping[str, str]) -> dict[str, list[str]]:
    uses: dict[str, list[str]] = {}
    for use in claims:
        if use.name in first:
            uses.setdefault(first[use.name], []).append(use.request)
    return uses


def _is_ours(request: Mapping[str, Any]) -> bool:
    name = request.get("deviceClassName")
    return isinstance(name, str) and (name == DRIVER or name.endswith(f".{DRIVER}"))
