# SPDX-License-Identifier: Apache-2.0
"""Objects as real components write them: recorded ones, and those that our own encoders make."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from agent.deviceplugin.messages import container_response
from agent.providers.container_edits import ContainerEdits, Mount
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.claims.templates import ClaimTemplate, ContainerClaim, encode_templates
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.dataset.listing import Entry, EntryKind, Listing
from gigaslice.core.dataset.objects import CachedDataset, DatasetNode, DatasetUse
from gigaslice.core.deviceplugin.origin import Owner
from gigaslice.core.model import DATASET_DRIVER, AnnotationRights, Occupant, Share
from tests.fakes.clusters import inventory_gpu
from tests.fakes.gpus import pairs_topology
from tests.fakes.kubeapi import node_document, pod_document
from tests.fakes.kubeapi.device_documents import device_document, slice_document
from tests.fakes.kubeapi.replay import FOLDER
from tests.fakes.nodes import allocation, uuid
from vcuda import contract

GIB = 1 << 30
Document = dict[str, Any]
MEMORY, WHOLE, CLASS = "gigaslice.io/vgpu-memory", "gigaslice.io/gpu", "gpuclass.gigaslice.io/nvidia.h100"


AGENT_METRICS = "".join(
    f'gigaslice_container_memory_{what}_bytes{{node="n",gpu_uuid="GPU-1",namespace="a",pod="p",container="c"}} 3e+09\n'
    for what in ("limit", "used", "undeclared")
)
AGENT_POD: Document = {
    "metadata": {"name": "gigaslice-x", "namespace": "gigaslice"},
    "spec": {"nodeName": "n", "containers": [{"ports": [{"name": "metrics", "containerPort": 9445}]}]},
    "status": {"phase": "Running", "podIP": "10.0.0.7"},
}


def _inside(value: Any) -> Iterator[Document]:
    if isinstance(value, dict):
        yield value
        value = value.values()
    if not isinstance(value, str | int | float | bool | None):
        for one in value:
            yield from _inside(one)


@lru_cache
def _recorded() -> tuple[Document, ...]:
    lines = [line for path in sorted(FOLDER.glob("*.jsonl")) for line in path.read_text().splitlines()[1:]]
    return tuple(one for line in lines for one in _inside(json.loads(line)))


def recorded(*keys: str, kind: str = "", most: int = 8) -> tuple[Document, ...]:
    """The largest recorded objects that have all KEYS, and are of that KIND."""
    found = {
        json.dumps(one, sort_keys=True): one
        for one in _recorded()
        if all(key in one for key in keys) and (not kind or one.get("kind") == kind)
    }
    assert found, (keys, kind)
    return tuple(found[text] for text in sorted(found, key=len, reverse=True)[:most])


def inventory(size: int = 4, held: bool = True, model: str = "NVIDIA H100 80GB HBM3") -> NodeInventory:
    """A node of GPUs with links, properties, one that is unhealthy, and pods that the agent has placed."""
    gpus = tuple(
        inventory_gpu(
            "n", n, 80, uuid=uuid(n), model=model, memory_bytes=80 * GIB, host_bytes=(16 * GIB) * (n == 1),
            numa_node=n // 2, pci_bus_id=f"0000:0{n}:00.0",
            unhealthy="Xid 79: fallen off the bus" if n == 3 else "",
            properties={"driver": "580.65", "rack": "r7"},
        )
        for n in range(size)
    )  # fmt: skip
    occupants = (Occupant("uid-1", (Share(uuid(0), 8, 10), Share(uuid(1), 4))),) if held else ()
    recorded = {"uid-1": (uuid(0),), "uid-2": ()} if held else {}
    topology = pairs_topology(size, sockets=size, nvlinks=lambda i, j: 12 * (i != j and i // 2 == j // 2))
    return NodeInventory(
        gpus, topology, occupants, rights=AnnotationRights.CHECKED, exclusive=recorded, lent=recorded
    )


def assignment() -> str:
    """Of two containers."""
    return Assignment(
        {"c0": (Share(uuid(0), 8), Share(uuid(1), 8, 30)), "i0": (Share(uuid(0), 80, 100),)}
    ).encode()


VOLUMES: tuple[dict[str, str], ...] = (
    {"dataset": "coco, other/imagenet", "check": "listing", "csi.storage.k8s.io/pod.name": "p"},
    {"source": "s3://bucket/prefix", "options": "endpoint=http://minio:9000,region=eu", "mode": "cache"},
    {"source.a": "nfs://server/export", "options.a": "vers=4.2,nconnect=8", "source.b": "https://host/data"},
    {"source": "rclone:remote:path", "mode": "cache", "check": "listing"},
)
OPTIONS: tuple[dict[str, str], ...] = (
    {
        "gigaslice.io/memory": "4GiB,4",
        "gigaslice.io/cores.c0": "30",
        "gigaslice.io/gpu-type": "H100,A100",
        "team": "a",
    },
    {"gigaslice.io/exclusive": "true", "gigaslice.io/gpus": "2", "gigaslice.io/split": "whole-first"},
    {
        "gigaslice.io/oversubscribe": "true",
        "gigaslice.io/priority": "guaranteed",
        "gigaslice.io/same-gpu": "true",
    },
    {
        "gigaslice.io/gpu-uuid": uuid(0),
        "gigaslice.io/elastic": "16GiB",
        "gigaslice.io/cores-policy": "elastic",
    },
    {
        "nvidia.com/nouse-gputype": "T4",
        "gigaslice.io/time-slicing": "false",
        "gigaslice.io/exclude-gpu-uuid": uuid(1),
    },
)


def pods() -> tuple[Document, ...]:
    """Pods: recorded ones, and with everything of ours."""
    bound = pod_document(
        "bound",
        {MEMORY: 16, "cpu": 2},
        {CLASS: 1, MEMORY: 8},
        init=({MEMORY: 80},),
        sidecars=({MEMORY: 1},),
        annotations={**OPTIONS[0], ASSIGNMENT: assignment()},
        uid="6e1b5c1e-0000-4000-8000-000000000001",
        controlled=True,
    )
    bound["metadata"] |= {"resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    waiting = pod_document("waits", {WHOLE: 2}, annotations=OPTIONS[1], uid="u2")
    waiting["spec"] |= {
        "priority": 1000,
        "schedulerName": "gigaslice",
        "volumes": [
            {
                "name": f"v{number}",
                "csi": {
                    "driver": DATASET_DRIVER,
                    "volumeAttributes": attributes,
                    "nodePublishSecretRef": {"name": "s"},
                },
            }
            for number, attributes in enumerate(VOLUMES)
        ],
    }
    waiting["spec"]["containers"][0]["volumeMounts"] = [{"name": "v0", "mountPath": "/data"}]
    del waiting["spec"]["nodeName"]
    waiting["status"] |= {
        "nominatedNodeName": "n-0",
        "conditions": [{"type": "PodScheduled", "status": "False"}],
    }
    return (bound, waiting, *recorded("metadata", "spec", "status", kind="Pod", most=4))


CLAIM: Document = {
    "metadata": {
        "namespace": "team", "name": "vgpu", "uid": "u-1", "annotations": {"gigaslice.io/follows-pod": "true"},
    },
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu.gigaslice.io"}}]}},
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": "gpu", "driver": "gigaslice.io", "pool": "node-a", "device": "gpu-1",
                        "shareID": "s", "consumedCapacity": {"memory": "8Gi", "cores": "30"},
                    },
                ],
                "config": [
                    {
                        "requests": ["gpu"], "source": "FromClaim",
                        "opaque": {
                            "driver": "gigaslice.io",
                            "parameters": {"apiVersion": "config.gigaslice.io/v1alpha1", "kind": "VGPU"},
                        },
                    },
                ],
            },
        },
        "reservedFor": [{"resource": "pods", "name": "train", "uid": "p-1"}],
    },
}  # fmt: skip
"""A claim as the API server has it when it is prepared."""


def slices() -> tuple[Document, ...]:
    """A node's slice, as its agent finds it at the server."""
    document = slice_document(device_document(), device_document("gpu-1", 80), node="node-a", generation=3)
    return ({**document, "metadata": {**document["metadata"], "uid": "u", "resourceVersion": "7"}},)


def claim_templates() -> tuple[Document, ...]:
    """A template of a pod's one line."""
    template = ClaimTemplate((ContainerClaim(parts=(8, 4)),))
    metadata = {"namespace": "team", "name": template.name, "uid": "u", "resourceVersion": "7"}
    return ({"metadata": metadata, "spec": template.spec()},)


def claims_of_pods() -> tuple[str, ...]:
    """The annotations by which pods say what their templates were."""
    templates = (ClaimTemplate((ContainerClaim(parts=(8,)),)), ClaimTemplate((ContainerClaim(parts=(1, 2)),)))
    return (encode_templates(templates[:1]), encode_templates(templates))


NAMESPACE: Document = {"metadata": {"name": "team", "labels": {"gigaslice.io/api": "dra", "a": "b"}}}
CLAIM_SPEC: Document = {
    "devices": {
        "requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "vgpu.gigaslice.io"}},
            {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "vgpu.gigaslice.io"}]},
        ]
    }
}
QUOTA: Document = {
    "metadata": {"namespace": "team", "name": "gpus"},
    "spec": {"hard": {"requests.gigaslice.io/vgpu-memory": "64", "pods": "7"}},
}


def nodes() -> tuple[Document, ...]:
    """Nodes: recorded ones, and with the inventory of an agent."""
    return tuple(
        node_document(
            f"n-{number}",
            text,
            schedulable=not number,
            uid=f"u-{number}",
            resourceVersion="9",
            labels={"kubernetes.io/hostname": f"n-{number}"},
        )
        for number, text in enumerate(inventories())
    ) + recorded("metadata", "status", kind="Node", most=2)


def installation() -> tuple[Document, ...]:
    """Nodes with what the kubelet offers, a pod of an agent, and a webhook."""
    service = {"name": "gigaslice-webhook", "namespace": "gigaslice", "path": "/validate", "port": 443}
    offering = ({**node, "status": {**node["status"], "allocatable": {MEMORY: "32"}}} for node in nodes())
    return (*offering, AGENT_POD, {"clientConfig": {"caBundle": "eA==", "service": service}})


def inventories() -> tuple[str, ...]:
    """Texts of inventories."""
    return (inventory().encode(), inventory(1, held=False, model="Tesla T4").encode(), inventory(8).encode())


CLASSES: tuple[Document, ...] = (
    {
        "metadata": {"name": "nvidia.h100", "uid": "u", "resourceVersion": "1", "generation": 2},
        "spec": {"selector": {"matchLabels": {"model": "NVIDIA H100 80GB HBM3", "rack": "r7"}}},
        "status": {"devices": 8, "conditions": [{"type": "Valid", "status": "True"}]},
    },
    {
        "metadata": {"name": "h100.small", "uid": "u", "resourceVersion": "1", "labels": {"a": "b"}},
        "spec": {
            "selector": {
                "terms": [
                    {"matchExpressions": [{"key": "memory", "operator": "Gt", "values": ["16GiB"]}]},
                    {"matchExpressions": [{"key": "model", "operator": "In", "values": ["A", "B"]}]},
                ]
            },
            "share": {"memory": "8Gi", "cores": 20},
        },
    },
)
GPU_OBJECT: Document = {
    "metadata": {
        "name": "n-0-gpu-0",
        "uid": "u",
        "resourceVersion": "1",
        "labels": {"app.kubernetes.io/managed-by": "gigaslice-controller"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n-0", "uid": "u-0"}],
    },
    "spec": {"nodeName": "n-0", "deviceID": uuid(0), "properties": {"model": "x"}},
    "status": {"phase": "Available", "used": {"slices": 3}},
}
DATASETS: tuple[Document, ...] = tuple(
    {
        "metadata": {
            "name": "coco",
            "namespace": "team",
            "uid": "u",
            "resourceVersion": "1",
            "generation": 3,
        },
        "spec": spec,
        "status": {"phase": "Ready", "digest": "ab" * 32, "observedGeneration": 3},
    }
    for spec in (
        {
            "source": "s3://bucket/coco",
            "options": {"endpoint": "http://minio:9000", "region": "eu"},
            "check": "pinned",
            "digest": "ab" * 32,
            "allowedNamespaces": ["other", "*"],
        },
        {"source": "nfs://server:2049/export/data", "options": {"nconnect": "8"}},
        {"source": "https://host/data/", "options": {"manifest": "index.json", "fetchers": "4"}},
    )
)


def dataset_nodes() -> tuple[Document, ...]:
    """What a dataset service says of its node."""
    uses = (DatasetUse("team/coco", ("team/p",)),)
    cached = CachedDataset(
        "ab" * 32, "s3://b/x", "cd" * 32, GIB, "Ready", 7, True, 1.7e9, ("team/p",), uses, ("s3://b",)
    )
    return (DatasetNode("n-0", 100 * GIB, GIB, (cached,), 1.7e9).document(),)


def leases() -> tuple[Document, ...]:
    """Recorded leases."""
    return recorded("metadata", "spec", kind="Lease", most=4)


def lists(items: tuple[Document, ...]) -> tuple[bytes, ...]:
    """Lists of objects."""
    head = {"kind": "List", "metadata": {"resourceVersion": "12", "continue": "abc"}}
    return (json.dumps({**head, "items": list(items)}).encode(),)


def changes(items: tuple[Document, ...]) -> tuple[bytes, ...]:
    """Lines of a watch."""
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
    known = [{"type": kind, "object": one} for one in items for kind in ("ADDED", "MODIFIED", "DELETED")]
    for one in known:
        one["object"]["metadata"].setdefault("resourceVersion", "7")
    mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    return tuple(json.dumps(one).encode() for one in (*known, mark, gone))


def filter_requests() -> tuple[bytes, ...]:
    """Questions of a kube-scheduler: recorded ones, and with whole nodes."""
    pod = pods()[0]
    mine = [{"Pod": pod, "NodeNames": ["n-0", "n-1"]}, {"Pod": pod, "Nodes": {"items": list(nodes()[:2])}}]
    return tuple(json.dumps(one).encode() for one in (*mine, *recorded("Pod", "NodeNames", most=4)))


def preempt_requests() -> tuple[bytes, ...]:
    """The same about victims."""
    victims = {"n-0": {"Pods": [{"UID": "u"}, {"metadata": {"uid": "v"}}], "NumPDBViolations": 1}}
    mine = [{"Pod": pods()[0], key: victims} for key in ("NodeNameToMetaVictims", "NodeNameToVictims")]
    return tuple(
        json.dumps(one).encode() for one in (*mine, *recorded("Pod", "NodeNameToMetaVictims", most=3))
    )


def bind_requests() -> tuple[bytes, ...]:
    """The same about bindings."""
    return tuple(json.dumps(one).encode() for one in recorded("PodUID", "Node", most=4))


def reviews() -> tuple[Document, ...]:
    """Questions of an API server to the webhook."""
    request = {"uid": "r", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE"}
    return tuple(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {**request, "object": pod},
        }
        for pod in pods()
    )


def prefetch_pods() -> tuple[Document, ...]:
    """Pods as the prefetch follows them."""
    state = {"waiting": {"reason": "ContainerCreating"}}
    found = pods()[0]
    conditions = [{"type": "PodReadyToStartContainers", "status": "False"}]
    found["status"] = {"phase": "Pending", "containerStatuses": [{"state": state}], "conditions": conditions}
    return (found, *pods()[1:])


def kubelet_checkpoints() -> tuple[bytes, ...]:
    """The device manager's file, in its two forms."""
    key = "0a" * 16
    mounts = (Mount(contract.CONTAINER_LIMITS, f"/s/allocations/{key}/limits"),)
    given = ContainerEdits(
        env={"NVIDIA_VISIBLE_DEVICES": uuid(0)}, mounts=mounts, annotations={"gigaslice.io/allocation": key}
    )
    raw = base64.b64encode(container_response(given).SerializeToString()).decode()
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": MEMORY, "AllocResp": raw}
    devices: tuple[Any, ...] = ({"0": [f"{uuid(0)}/1"], "1": []}, [f"{uuid(0)}/1"])
    return tuple(
        json.dumps({"Data": {"PodDeviceEntries": [{**entry, "DeviceIDs": one}] * 2}, "Checksum": 1}).encode()
        for one in devices
    )


def tables() -> tuple[AllocationTable, ...]:
    """Allocation tables of an agent."""
    table = AllocationTable()
    for number in (1, 2):
        owner = Owner("uid", "team", "pod", "c", False) if number == 1 else None
        table = table.with_allocation(
            allocation(
                number,
                (0, range(number * 8, number * 8 + 4)),
                owner=owner,
                container=ContainerRef("t", "p", "c"),
            )
        )
    return (table,)


def checkpoints() -> tuple[bytes, ...]:
    """The same as files."""
    return tuple(map(CODEC.encode_table, tables()))


def allocation_files() -> tuple[bytes, ...]:
    """The same of one allocation each."""
    return tuple(CODEC.encode_allocation(one) for table in tables() for one in table.allocations)


def states() -> tuple[bytes, ...]:
    """What is inside of a checkpoint."""
    return tuple(raw.partition(b'"state":')[2].rstrip()[:-1] for raw in (*checkpoints(), *allocation_files()))


LISTING = Listing.of(
    [
        Entry(b"a/b", EntryKind.FILE, 7, "v1"),
        Entry("ü/\udcff".encode("utf-8", "surrogateescape"), EntryKind.FILE, 0, "v2"),
        Entry(b"l", EntryKind.SYMLINK, target=b"a/b"),
        Entry(b"d", EntryKind.DIRECTORY),
    ]
).encoded()
