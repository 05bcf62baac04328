# SPDX-License-Identifier: Apache-2.0
"""Which containers use a claim, which of its requests have one quota, and what cannot be. Pure.

A container has one limits page and one ledger: they are mounted at fixed paths. So the requests that a container has
together are one quota. The kubelet asks for a claim once, and every later pod gets the first answer; what was decided
for the first pod stays, and a later pod that does not fit it is told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gigaslice.core.allocation.consumer import Consumer, ContainerRef
from gigaslice.core.model import ContainerKind, Pod, PodContainer

__all__ = ["claim_consumers", "claim_groups", "misuse", "pods_by_claim", "two_claims_sentence"]


def pods_by_claim(pods: Iterable[Pod]) -> dict[tuple[str, str], list[Pod]]:
    """Returns the pods that have each claim, by the claim's namespace and name."""
    having: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        for name in dict.fromkeys(own.claim for own in pod.claims if own.claim):
            having.setdefault((pod.namespace, name), []).append(pod)
    return having


def claim_groups(requests: Sequence[str], pods: Iterable[Pod], claim: str) -> tuple[tuple[str, ...], ...]:
    """Divides the requests of a claim into those that have one quota.

    Args:
        requests: All requests of the claim, in its order.
        pods: The pods that use it.
        claim: Its name.

    Returns:
        Groups in the order of their first requests: what one container has together is in one group. Without a pod, all
        of them are one, as they are for a container that names the claim alone.
    """
    group_of = {request: {request} for request in requests}
    uses = [requests_of(named, requests) for pod in pods for _, named in pod.users_of(claim)]
    for together in uses or [tuple(requests)]:
        merged = set[str]().union(*(group_of[request] for request in together))
        group_of.update(dict.fromkeys(merged, merged))
    groups: list[tuple[str, ...]] = []
    for request in requests:
        group = tuple(other for other in requests if other in group_of[request])
        if group not in groups:
            groups.append(group)
    return tuple(groups)


def claim_consumers(
    requests: Sequence[str], pods: Iterable[Pod], claim: str, all_requests: Sequence[str]
) -> tuple[Consumer, ...]:
    """Returns the containers that use some requests of a claim, in the order of their names.

    Args:
        requests: The requests.
        pods: The pods that may use it.
        claim: The claim's name.
        all_requests: All requests of the claim.
    """
    return tuple(
        sorted(
            (
                Consumer(
                    ContainerRef(pod.namespace, pod.name, container.name),
                    pod.uid,
                    init=container.kind is ContainerKind.INIT,
                )
                for pod in pods
                for container, named in pod.users_of(claim)
                if set(requests_of(named, all_requests)) & set(requests)
            ),
            key=lambda consumer: (consumer.ref, consumer.uid),
        )
    )


def requests_of(named: frozenset[str], requests: Sequence[str]) -> tuple[str, ...]:
    """Returns the requests that a container has which names some of them, or none and so has all."""
    return tuple(request for request in requests if not named or request in named)


def misuse(pod: Pod, claim: str, groups: Iterable[Sequence[str]], other_claims: Iterable[str]) -> str | None:
    """Returns why a pod cannot use a claim as it does, in a sentence; None where it can.

    Args:
        pod: The pod.
        claim: The claim's name.
        groups: The requests of the claim that have one quota each.
        other_claims: Names of further claims of the pod whose devices are ours.
    """
    everything = [request for group in groups for request in group]
    others = {name: _names(pod.users_of(name)) for name in other_claims if name != claim}
    for container, named in pod.users_of(claim):
        mine = set(requests_of(named, everything))
        twice = sorted(name for name, users in others.items() if container.name in users)
        if twice:
            return two_claims_sentence(container.name, [claim, *twice])
        for group in groups:
            own = [request for request in group if request in mine]
            missing = [request for request in group if request not in mine]
            if own and missing:
                return (
                    f"container {container.name} has only {' and '.join(own)} of claim {claim}, and another container "
                    f"has {' and '.join(missing)} with it as one quota; name the same requests in both, or none"
                )
    return None


def two_claims_sentence(container: str, claims: Iterable[str]) -> str:
    """Returns why a container cannot have devices of ours of several claims, and what to write instead."""
    return (
        f"container {container} has GPU memory of {' and '.join(claims)}, and a container can have that of one claim; "
        "put the requests into one claim, or give them to different containers"
    )


def _names(users: Iterable[tuple[PodContainer, frozenset[str]]]) -> set[str]:
    return {container.name for container, _ in users}
