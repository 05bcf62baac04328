# SPDX-License-Identifier: Apache-2.0
"""Checks what an agent of this configuration would be allowed and told by the API server, as its own account."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Literal

from agent.apiserver import find_access
from agent.apiserver.node_client import node_client
from agent.apiserver.node_trial import REMEDY, UnboundedError, check_bounds
from agent.config import Config
from agent.roles.claim_parts import claims_may_come
from gigaslice.core.errors import GigasliceError
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.kube.fields import object_at
from gigaslice.core.model import Pod
from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.client import NOT_FOUND, ApiFailure, KubeClient, object_path
from vcuda.doctor import Finding

__all__ = ["check_api"]

_MAX_LIST_BYTES = 64 << 20  # an API server may leave the limit out of account
_EVICT = ("create", "pods/eviction")
_PUBLISH = ("patch", "nodes")
_RIGHTS = (("watch", "pods"), ("create", "events"), ("patch", "events"), _EVICT)
_CLAIMS, _SLICES = "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io"
_CLAIM_RIGHTS = (
    ("get", _CLAIMS),
    *((verb, _SLICES) for verb in ("list", "create", "update", "delete")),
)
_WAKES = "apply deploy/claims.yaml, or the chart with node.api=dra"
_MISSED_LITTLE = ("events",)  # without writing these, pods are served all the same


def check_api(config: Config) -> Iterator[Finding]:
    """What the API server lets the agent of CONFIG do; it is asked as the agent would ask it."""
    if config.kube_api == "off":
        yield Finding("ok", "API server", "not to be asked (--kube-api=off)")
        return
    try:
        access, whence = find_access(
            config.kubeconfig, config.kubernetes_service, variable=config.kubeconfig_variable
        )
    except GigasliceError as error:
        yield Finding("fail", "API server", str(error))
        return
    if access is None:
        remedy = "annotations are not read and pods get no events; --kubeconfig names credentials"
        yield Finding("warn", "API server", whence, remedy)
        return
    if not config.node_name:
        yield Finding("warn", "API server", f"{access}, {whence}", "name this node with --node-name")
        return
    yield from asyncio.run(_ask(access, config, f"{access}, {whence}, node {config.node_name}"))


async def _ask(access: Access, config: Config, where: str) -> list[Finding]:
    async with node_client(access) as client:
        answer = await _ask_api(client, config, where)
        if answer.level == "fail":
            return [answer]
        claims = [await _ask_for_claims(client, config.node_name)] if claims_may_come(config) else []
        return [answer, *claims, await _try_publishing(client, config.node_name)]


async def _ask_api(client: KubeClient, config: Config, where: str) -> Finding:
    """Asks what the agent would ask: without a right of its own it goes on with less, and says so only in its log."""
    query = {"fieldSelector": f"spec.nodeName={config.node_name}", "limit": "1", "resourceVersion": "0"}
    try:
        await client.request("GET", object_path("api", "v1", "pods"), query, most=_MAX_LIST_BYTES)
        rights = (*_RIGHTS, *(_CLAIM_RIGHTS if claims_may_come(config) else ()))
        missing = [right for right in rights if not await _allowed(client, right)]
    except ApiFailure as failure:
        return _not_listed(failure, where)
    if config.overuse == "report":
        missing = [right for right in missing if right is not _EVICT]
    if missing:
        names = ", ".join(f"{verb} {resource}" for verb, resource in missing)
        level: Literal["warn", "fail"] = (
            "warn" if all(right[1] in _MISSED_LITTLE for right in missing) else "fail"
        )
        remedy = (
            "apply daemonset.yaml's ClusterRole"
            if missing != [_EVICT]
            else (
                f"--overuse={config.overuse} needs it: apply deploy/eviction.yaml, or set the chart's rbac.evict"
            )
        )
        return Finding(level, "API server", f"{where}: the agent may not {names}", remedy)
    return Finding("ok", "API server", f"{where}; it lets us in")


async def _ask_for_claims(client: KubeClient, node: str) -> Finding:
    """Whether the cluster has claims to devices at all, lets pods be woken that wait with one, and who waits now."""
    subject = "claims"
    try:
        await client.request(
            "GET", object_path("apis", "resource.k8s.io", "v1", "resourceslices"), {"limit": "1"}
        )
        pods = await _pods(client, node)
        wakes = await _allowed(client, ("patch", "pods"))
        if wakes and pods:
            await check_bounds(client, "namespaces", pods[0].namespace, "pods", pods[0].name)
    except UnboundedError as error:
        text = f"{error}: so it wakes no pod, and memory that becomes free may idle for 90 seconds"
        return Finding("warn", subject, text, _WAKES)
    except ApiFailure as failure:
        if failure.status == NOT_FOUND:
            text = "the cluster has no resource.k8s.io/v1"
            remedy = "claims need Kubernetes 1.34, and their sharing 1.36; serve device plugins (--api=device-plugin)"
            return Finding("fail", subject, text, remedy)
        return Finding("warn", subject, str(failure), "see the API server's log")
    if not wakes:
        text = "the agent may not annotate pods: memory that becomes free may idle for 90 seconds"
        return Finding("warn", subject, text, _WAKES)
    waiting = sorted(
        f"{pod} ({'Terminating' if pod.ending else 'Pending'})"
        for pod in pods
        if pod.claims and (pod.ending or pod.phase == "Pending")
    )
    if waiting:
        remedy = (
            "kubectl describe tells why each; one that is to be deleted waits for the kubelet and this agent"
        )
        return Finding("warn", subject, f"pods of this node wait with claims: {', '.join(waiting)}", remedy)
    return Finding("ok", subject, "the cluster has them, and no pod of this node waits with one")


async def _pods(client: KubeClient, node: str) -> list[Pod]:
    """The pods of a node; those that make no sense are left out."""
    query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}
    answer = await client.request("GET", object_path("api", "v1", "pods"), query, most=_MAX_LIST_BYTES)
    pods = []
    for document in answer.document().get("items") or ():
        with contextlib.suppress(ValueError):
            pods.append(parse_pod(document))
    return pods


def _not_listed(failure: ApiFailure, where: str) -> Finding:
    text, remedy = f"does not list pods; {where}: {failure}", "see the API server's log"
    if not failure.status:
        text, remedy = f"not reached: {failure}", "check the address, the network and the credentials"
    elif failure.status == 401:
        text = f"does not accept the credentials; {where}: {failure}"
        remedy = "the token or certificate is old or of another cluster: make it anew, or the pod where it is mounted"
    elif failure.status == 403:
        text = f"the agent may not list pods; {where}: {failure}"
        remedy = (
            "apply the ClusterRole and ClusterRoleBinding of daemonset.yaml, or of the chart with rbac.create"
        )
    return Finding("fail", "API server", text, remedy)


async def _try_publishing(client: KubeClient, node: str) -> Finding:
    """Tries what the agent tries before it writes what its node has."""
    try:
        if not await _allowed(client, _PUBLISH):
            remedy = "where those are used, apply deploy/node-policy.yaml (Kubernetes 1.30)"
            text = "it may not patch its node: classes, the scheduler, explain, top and nodes do not see its GPUs"
            return Finding("warn", "publishing", text, remedy)
        await check_bounds(client, "nodes", node)
    except UnboundedError as error:
        return Finding("fail", "publishing", f"withheld: {error}", REMEDY)
    except ApiFailure as error:
        return Finding("warn", "publishing", str(error), "the agent publishes nothing until it is answered")
    return Finding("ok", "publishing", f"the API server keeps the agent to its own annotations of {node}")


async def _allowed(client: KubeClient, right: tuple[str, str]) -> bool:
    """Whether the API server would let us; True where it does not say: then the agent will see."""
    verb, (resource, _, part) = right[0], right[1].partition("/")
    name, _, group = resource.partition(".")
    attributes = {"verb": verb, "resource": name, "group": group, **({"subresource": part} if part else {})}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = object_path("apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews")
    try:
        review = await client.post(path, body)
    except ApiFailure as failure:
        if not failure.status:
            raise
        return True
    return object_at(review, "status").get("allowed") is not False
