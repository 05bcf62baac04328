# SPDX-License-Identifier: Apache-2.0
"""Which nodes a dataset is fetched to ahead of its pods, and the pod that has it fetched on one of them. Pure.

A pod that mounts the dataset and ends at once is all that a prefetch is. The kubelet hands over the Secret that the pod
names, the dataset service takes its listing with those credentials, and admission, quotas and taints hold as for every
pod: nothing in the cluster needs a right that it does not have. The pod asks for no GPU, so that its volume is
published when the data are there, and no sooner. A kubelet mounts volumes before it makes a sandbox and pulls images,
so anything that comes after that tells that the data are there, a failed pull included.

Nodes are chosen by rendezvous hashing: each dataset has an order of all nodes of its own. So a dataset goes to the same
nodes again, a node that comes or goes changes at most one place, and many datasets are spread evenly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gigaslice.core.dataset.objects import DRIVER
from gigaslice.core.kube.fields import object_at, objects_at, strings_at, text_at

__all__ = [
    "IMAGE",
    "MANAGED_BY",
    "MANAGER",
    "RUN_LABEL",
    "NodeCandidate",
    "NodeJudgement",
    "PrefetchPod",
    "PrefetchState",
    "choose",
    "judge",
    "judge_all",
    "pod_manifest",
    "ranked",
]

IMAGE = "registry.k8s.io/pause:3.10"
"""The default image: small, for every architecture, on many nodes already, and `/pause -v` ends at once."""

MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "gigaslice-prefetch"
"""The label of every pod of a prefetch."""
RUN_LABEL = "gigaslice.io/prefetch-run"
"""The label that says of which run it is."""

_GPU_TAINT = "nvidia.com/gpu"
_HARMLESS_UID = 65534
_SMALL = {"cpu": "10m", "memory": "16Mi"}  # limits too: quotas may demand them
_BEFORE_VOLUMES = ("", "ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True)
class NodeCandidate:
    """A node as far as a prefetch is concerned.

    Attributes:
        name: Its name.
        ready: The node is Ready.
        schedulable: It is not cordoned.
        driver: Its dataset service has registered.
        holds: It has the dataset already, or is fetching it.
    """

    name: str
    ready: bool = True
    schedulable: bool = True
    driver: bool = True
    holds: bool = False

    @property
    def problem(self) -> str:
        """Why it cannot be chosen; empty where it can."""
        if not self.ready:
            return "it is not Ready"
        if not self.schedulable:
            return f"it is cordoned; kubectl uncordon {self.name}"
        if not self.driver:
            return f"it has no dataset service ({DRIVER} is not registered there)"
        return ""


def ranked(key: str, nodes: Iterable[str]) -> list[str]:
    """The nodes in the order that KEY has: a node's place depends on no other node but those before it."""
    return sorted(nodes, key=lambda node: (_weight(key, node), node), reverse=True)


def choose(key: str, nodes: Sequence[NodeCandidate], count: int | None = None) -> tuple[str, ...]:
    """The nodes that get the dataset KEY: those that have it first, then by the order of the key.

    Args:
        key: What names the dataset.
        nodes: Those that are possible; what has a problem is left out.
        count: How many; None for all.
    """
    holders = {node.name for node in nodes if node.holds}
    order = ranked(key, (node.name for node in nodes if not node.problem))
    order.sort(key=lambda name: name not in holders)
    return tuple(order if count is None else order[:count])


def _weight(key: str, node: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for text in (key, node):
        data = text.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class PrefetchPod:
    """What the pods of one prefetch have in common.

    Attributes:
        namespace: Of the pods, and of the Secret.
        attributes: The volume's attributes: `dataset` or `source`, and the options.
        run: Names this run.
        seconds: After which the kubelet ends the pod, whatever becomes of it.
        secret: The Secret that the kubelet hands over; empty for none.
        image: Whatever ends, or fails to start: see above.
        tolerated: Keys of taints that are tolerated besides that of GPU nodes.
    """

    namespace: str
    attributes: Mapping[str, str]
    run: str
    seconds: int
    secret: str = ""
    image: str = IMAGE
    tolerated: tuple[str, ...] = ()

    def name(self, node: str) -> str:
        """Of the pod for NODE: the same in every manifest of the run."""
        part = hashlib.blake2b(node.encode(), digest_size=5).hexdigest()
        return f"gigaslice-prefetch-{self.run}-{part}"


def pod_manifest(pod: PrefetchPod, node: str) -> dict[str, Any]:
    """The pod for NODE. It goes through the scheduler, so that a taint or a full node holds it back and says so."""
    csi: dict[str, Any] = {"driver": DRIVER, "readOnly": True, "volumeAttributes": dict(pod.attributes)}
    if pod.secret:
        csi["nodePublishSecretRef"] = {"name": pod.secret}
    on_node = {"key": "metadata.name", "operator": "In", "values": [node]}
    container = {
        "name": "prefetch",
        "image": pod.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/pause", "-v"],
        "resources": {"requests": dict(_SMALL), "limits": dict(_SMALL)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name(node),
            "namespace": pod.namespace,
            "labels": {MANAGED_BY: MANAGER, RUN_LABEL: pod.run},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": pod.seconds,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _HARMLESS_UID,
                "runAsGroup": _HARMLESS_UID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchFields": [on_node]}]
                    }
                }
            },
            "tolerations": [{"key": key, "operator": "Exists"} for key in (_GPU_TAINT, *pod.tolerated)],
            "containers": [container],
            "volumes": [{"name": "data", "csi": csi}],
        },
    }


class PrefetchState(Enum):
    """What has become of a pod."""

    WAITING = "waiting"
    DONE = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class NodeJudgement:
    """What has become of the pod for a node. text: what it waits for, or why it failed, where its status says so."""

    node: str
    state: PrefetchState
    text: str


def judge_all(document: Mapping[str, Any]) -> tuple[NodeJudgement, ...]:
    """Reads a pod, or a list of pods; those that are of no prefetch are left out."""
    pods = objects_at(document, "items") or [document]
    judged = []
    for pod in pods:
        metadata = object_at(pod, "metadata")
        if text_at(object_at(metadata, "labels"), MANAGED_BY) == MANAGER:
            judged.append(NodeJudgement(_node_of(pod) or text_at(metadata, "name"), *judge(pod)))
    return tuple(sorted(judged, key=lambda judgement: judgement.node))


def _node_of(pod: Mapping[str, Any]) -> str:
    """The node that a pod of a prefetch is for; empty where it names none."""
    affinity = object_at(object_at(object_at(pod, "spec"), "affinity"), "nodeAffinity")
    required = object_at(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    for term in objects_at(required, "nodeSelectorTerms"):
        for field in objects_at(term, "matchFields"):
            return ",".join(strings_at(field, "values"))
    return ""


def judge(document: Mapping[str, Any]) -> tuple[PrefetchState, str]:
    """Reads whether the data are on the node of a pod; returns that and why, as in `NodeJudgement`."""
    status = object_at(document, "status")
    conditions = {
        str(condition.get("type")): condition
        for condition in objects_at(status, "conditions")
        if condition.get("status") is not None
    }
    phase, reason = status.get("phase"), text_at(status, "reason")
    if phase == "Succeeded" or _holds(conditions, "PodReadyToStartContainers"):
        return PrefetchState.DONE, ""
    if phase == "Failed" and reason:  # the kubelet's verdict on the pod, such as Evicted; not its container's
        return PrefetchState.FAILED, f"the pod failed: {reason}: {text_at(status, 'message')}".rstrip(": ")
    if any(map(_after_volumes, objects_at(status, "containerStatuses"))):
        return PrefetchState.DONE, ""
    if phase == "Failed":
        return PrefetchState.FAILED, "the pod failed"
    if object_at(document, "metadata").get("deletionTimestamp"):
        return PrefetchState.FAILED, "its pod is being deleted"
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return PrefetchState.WAITING, f"not scheduled: {text_at(scheduled, 'message')}".rstrip(": ")
    return PrefetchState.WAITING, ""


def _after_volumes(container: Mapping[str, Any]) -> bool:
    """Whether a container's state is one that comes after the pod's volumes are mounted."""
    state = object_at(container, "state")
    waiting = state.get("waiting")
    if isinstance(waiting, dict):
        return text_at(waiting, "reason") not in _BEFORE_VOLUMES
    ended = state.get("terminated")
    if isinstance(ended, dict):  # of a container that was lost, nothing tells whether it ever ran
        return ended.get("reason") != "ContainerStatusUnknown"
    return "running" in state


def _holds(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"
