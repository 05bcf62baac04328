# SPDX-License-Identifier: Apache-2.0
"""Whether an installation does what its users need: nodes offer GPUs, the scheduler works, the webhook answers.

Asks the API server, and the webhook by its Service as the API server does; reads and changes nothing. The pod of
`helm test` runs it with rights of its own, and whoever has a kubeconfig can. Each question stands alone, and what may
not be read is said and not guessed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.commands.installation import PARTS
from gigaslice.cluster_commands.cluster import listed
from gigaslice.core.claims.names import DRIVER
from gigaslice.core.cluster.inventory import InventoryFormatError, InventoryGpu, NodeInventory
from gigaslice.core.kube.fields import object_at, objects_at, text_at
from gigaslice.core.text import plain
from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.client import NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.kubeapi.cluster_objects import NODES_PATH, node_facts
from gigaslice.runtime.time_limit import within
from vcuda.doctor import Finding

__all__ = ["offer_of", "read_findings", "service_access", "unready_reason"]

_LABEL = "app.kubernetes.io/name=gigaslice"
_COMPONENT = "app.kubernetes.io/component"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_COUNT = re.compile(r"[0-9]{1,15}")
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 1.0
_REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "gigaslice-doctor",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "dryRun": True,
        "namespace": "default",
        "userInfo": {"username": "gigaslice-doctor"},
        "object": {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "gigaslice-doctor", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "c"}]},
        },
    },
}
"""A question that the webhook answers without looking anything up: a pod that asks for nothing of ours."""


@dataclass(slots=True)
class _Pods:
    """Pods of one part: names of those that are ready, and of the others with why."""

    ready: list[str] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)


async def read_findings(
    client: KubeClient, namespace: str, parts: Collection[str], resource: str, inside: bool
) -> list[Finding]:
    """The answer to each question.

    Args:
        client: Of the API server.
        namespace: Where the pods of the installation are.
        parts: Of PARTS, those that must be there; none: those that are found.
        resource: By which slices are requested where agents publish nothing, which is before Kubernetes 1.30.
        inside: Whether this runs in a pod of the cluster, where names of Services lead somewhere.
    """
    findings: list[Finding] = []
    questions = (
        _check_pods(client, namespace, parts),
        _check_nodes(client, resource),
        _check_leases(client, namespace, parts),
        _check_webhooks(client, namespace, parts, inside),
    )
    for question in questions:
        try:
            findings += [finding async for finding in question]
        except ApiFailure as error:
            findings.append(Finding("fail", "API server", plain(str(error)), "see that the user may read it"))
    return findings


async def _check_pods(client: KubeClient, namespace: str, parts: Collection[str]) -> AsyncIterator[Finding]:
    by_part: dict[str, _Pods] = {part: _Pods() for part in parts if part != "webhook"}
    async for document in _pods(client, namespace):
        name = text_at(object_at(document, "metadata"), "name")
        pods = by_part.setdefault(_part_of(document), _Pods())
        why = unready_reason(document)
        if why:
            pods.others[name] = why
        else:
            pods.ready.append(name)
    if not by_part:
        yield Finding(
            "fail",
            "pods",
            f"none of gigaslice in the namespace {plain(namespace)}",
            "name its namespace, as in --cluster=gpu",
        )
    for part, pods in sorted(by_part.items(), key=lambda row: PARTS.index(row[0])):
        yield _pods_finding(part, pods, namespace)


async def _pods(client: KubeClient, namespace: str) -> AsyncIterator[Mapping[str, Any]]:
    """The pods of our parts, without those that are ending."""
    path = object_path("api", "v1", "namespaces", namespace, "pods")
    async for document in listed(client, path, {"labelSelector": _LABEL}):
        if _part_of(document) in PARTS and not object_at(document, "metadata").get("deletionTimestamp"):
            yield document


def _part_of(pod: Mapping[str, Any]) -> str:
    return text_at(object_at(object_at(pod, "metadata"), "labels"), _COMPONENT)


def _pods_finding(part: str, pods: _Pods, namespace: str) -> Finding:
    count = len(pods.ready)
    text = "1 pod is ready" if count == 1 else f"{count} pods are ready"
    if not pods.others:
        if count:
            return Finding("ok", part, text)
        return Finding("fail", part, "there is no pod of it", f"kubectl -n {namespace} get pods,daemonsets")
    name, why = min(pods.others.items())
    # Of many agents one may just be replaced; a scheduler of which no replica is ready decides nothing.
    return Finding(
        "warn" if count else "fail",
        part,
        plain(f"{text}, {len(pods.others)} not, such as {name}: {why}"),
        plain(f"kubectl -n {namespace} describe pod {name}"),
    )


def unready_reason(pod: Mapping[str, Any]) -> str:
    """Why POD is not ready; empty where it is."""
    status = object_at(pod, "status")
    for condition in objects_at(status, "conditions"):
        if condition.get("type") == "Ready":
            return "" if condition.get("status") == "True" else (text_at(condition, "message") or "not ready")
    return text_at(status, "phase") or "not started"


async def _check_nodes(client: KubeClient, resource: str) -> AsyncIterator[Finding]:
    """Whether what agents publish is what the kubelet offers."""
    slices = await _nodes_with_slices(client)
    offered, missing, without = Counter[str](), dict[str, str](), 0
    async for document in listed(client, NODES_PATH, {}):
        try:
            node, gpus, counts = offer_of(document, resource)
        except (ValueError, InventoryFormatError) as error:
            name = text_at(object_at(document, "metadata"), "name")
            yield Finding("fail", "nodes", plain(f"{name}: {error}"), "see the log of the agent there")
            continue
        if any(counts.values()):
            offered.update(counts)
        elif not gpus:
            without += 1
        elif node in slices:
            offered["GPUs by claims"] += len(gpus)
        elif not all(gpu.unhealthy for gpu in gpus):
            missing[node] = min(gpu.resource for gpu in gpus)
    for name, wanted in sorted(missing.items())[:5]:
        yield Finding(
            "fail",
            "nodes",
            plain(f"{name}: its agent shows GPUs, and the kubelet offers no {wanted}"),
            "see the logs of the agent and of the kubelet there",
        )
    if offered:
        texts = [f"{count} {name}" for name, count in sorted(offered.items()) if count]
        text = plain("the nodes offer " + ", ".join(texts))
        yield Finding("ok", "nodes", text + (f"; {without} nodes have no GPU of ours" if without else ""))
    elif not missing:
        yield Finding(
            "fail",
            "nodes",
            plain(f"no node offers {resource}, and no agent shows a GPU"),
            "the agents' logs and gigaslice_waiting_for_gpus say why",
        )


def offer_of(node: Mapping[str, Any], resource: str) -> tuple[str, tuple[InventoryGpu, ...], dict[str, int]]:
    """Of a Node: its name, the GPUs that its agent shows, and what the kubelet offers of each resource of theirs.

    RESOURCE: the one that is looked for where the agent shows none.

    Raises:
        ValueError: It is no Node.
        InventoryFormatError: What its agent shows cannot be read.
    """
    facts = node_facts(node)
    gpus = NodeInventory.decode(facts.inventory_text).gpus if facts.inventory_text else ()
    allocatable = object_at(object_at(node, "status"), "allocatable")
    counts = {
        name: int(text)
        for name in {gpu.resource for gpu in gpus} or {resource}
        if _COUNT.fullmatch(text := str(allocatable.get(name)))
    }
    return facts.name, gpus, counts


async def _nodes_with_slices(client: KubeClient) -> set[str]:
    """Nodes that offer GPUs by claims. None where the API or the right is missing: then they have none of ours."""
    try:
        return {
            text_at(object_at(document, "spec"), "nodeName")
            async for document in listed(client, _SLICES, {"fieldSelector": f"spec.driver={DRIVER}"})
        }
    except ApiFailure as error:
        if error.status in (NOT_FOUND, 403):
            return set()
        raise


async def _check_leases(client: KubeClient, namespace: str, parts: Collection[str]) -> AsyncIterator[Finding]:
    """Whether somebody works: the lease of a part is renewed while we look.

    The extender's own lease is left out: it is taken when there is a pod to bind, and lies unused in between.
    """
    wanted = {"controller": "-controller"} if "controller" in parts else {}
    async for pod in _pods(client, namespace):
        part = _part_of(pod)
        names = {text_at(container, "name") for container in objects_at(object_at(pod, "spec"), "containers")}
        if part == "controller":
            wanted[part] = "-controller"
        elif part == "scheduler" and "kube-scheduler" in names:
            wanted["kube-scheduler"] = "-scheduler"
    path = object_path("apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases")
    leases = [lease async for lease in listed(client, path, {})]
    for part, ending in wanted.items():
        named = [lease for lease in leases if text_at(object_at(lease, "metadata"), "name").endswith(ending)]
        if not named:
            yield Finding("fail", part, "no replica has taken its lease", f"see the log of the {part}")
        for lease in named:
            yield await _renewal(client, path, part, lease)


async def _renewal(client: KubeClient, path: str, part: str, lease: Mapping[str, Any]) -> Finding:
    spec, name = object_at(lease, "spec"), text_at(object_at(lease, "metadata"), "name")
    holder, seen = text_at(spec, "holderIdentity"), text_at(spec, "renewTime")
    duration = spec.get("leaseDurationSeconds")
    seconds = min(duration, 60) if isinstance(duration, int) else 15
    until = time.monotonic() + seconds
    while holder and time.monotonic() < until:
        await asyncio.sleep(_POLL_SECONDS)
        now = object_at(await client.get(f"{path}/{name}"), "spec")
        if text_at(now, "renewTime") != seen:
            return Finding("ok", part, plain(f"{text_at(now, 'holderIdentity')} has the lease and renews it"))
    text = (
        f"{holder} has the lease and has not renewed it for {seconds} seconds"
        if holder
        else "nobody has the lease"
    )
    return Finding("fail", part, plain(text), f"see the log of the {part}")


async def _check_webhooks(
    client: KubeClient, namespace: str, parts: Collection[str], inside: bool
) -> AsyncIterator[Finding]:
    asked: list[Mapping[str, Any]] = []  # several entries of a configuration are one webhook
    async for document in listed(client, _WEBHOOKS, {"labelSelector": _LABEL}):
        for hook in objects_at(document, "webhooks"):
            settings = object_at(hook, "clientConfig")
            service = object_at(settings, "service")
            if text_at(service, "namespace") == namespace and settings not in asked:
                asked.append(settings)
                yield await _check_webhook(settings, service, inside)
    if not asked and "webhook" in parts:
        yield Finding("fail", "webhook", "there is no configuration of it", "install it again: helm upgrade")


async def _check_webhook(settings: Mapping[str, Any], service: Mapping[str, Any], inside: bool) -> Finding:
    try:
        authority = base64.b64decode(text_at(settings, "caBundle"), validate=True)
    except binascii.Error:
        authority = b""
    if not authority:
        text = "the API server has no authority for its certificate"
        return Finding("fail", "webhook", text, "the controller writes it: see its log")
    access = service_access(service, authority)
    name = access.server_name
    if not await _resolves(access):
        if inside:
            text = f"the name {name} leads nowhere in this pod"
            return Finding("fail", "webhook", text, "see the cluster's DNS; the API server may not need it")
        remedy = "helm test asks it"
        return Finding("warn", "webhook", f"not asked: {name} is a name inside the cluster only", remedy)
    try:
        async with KubeClient(access, "gigaslice-doctor", answer=_ANSWER_SECONDS) as webhook:
            answer = await webhook.post(text_at(service, "path") or "/", _REVIEW)
    except ApiFailure as error:
        return Finding(
            "fail", "webhook", plain(str(error)), "see the log of the controller and network policies"
        )
    response = object_at(answer, "response")
    if response.get("uid") != "gigaslice-doctor" or response.get("allowed") is not True:
        text = f"{name} does not allow a pod that asks for nothing"
        return Finding("fail", "webhook", plain(text), "see the log of the controller")
    return Finding("ok", "webhook", f"{name} answers, by a certificate that the API server trusts")


def service_access(service: Mapping[str, Any], authority: bytes) -> Access:
    """The way to a Service that the API server takes, too."""
    port = service.get("port")
    name = f"{text_at(service, 'name')}.{text_at(service, 'namespace')}.svc"
    return Access(name, port if isinstance(port, int) else 443, ca_data=authority, server_name=name)


async def _resolves(access: Access) -> bool:
    looking = asyncio.get_running_loop().getaddrinfo(access.host, access.port)
    try:
        await within(looking, _ANSWER_SECONDS)
    except (socket.gaierror, asyncio.TimeoutError):
        return False
    return True
