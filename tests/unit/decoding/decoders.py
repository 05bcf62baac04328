# SPDX-License-Identifier: Apache-2.0
"""Every decoder of what others write, by the roles that have it.

A decoder returns a value or raises its documented errors. Its row says which functions of the source it covers:
`test_no_decoder_is_missing` finds functions that no row covers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.claims.stored_slice import StoredSlice
from agent.commands.cluster_checks import offer_of, service_access, unready_reason
from agent.control.messages import ResizeAnswer
from agent.control.server import decode_change
from agent.health import health_files
from agent.kubelet import kubelet_checkpoint
from agent.limits import driver_limit_report
from agent.persistence import codec
from agent.roles.records import CODEC
from gigaslice.core.claims.resource_claim import ResourceClaim
from gigaslice.core.claims.templates import decode_templates
from gigaslice.core.classes.amounts import amount_of
from gigaslice.core.classes.resource_class import parse_resource_class
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import ClusterUnits, PodDemand
from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.offered_units import offered_units
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.dataset.endpoint import ServerAddress, ServerUrl
from gigaslice.core.dataset.listing import Limits, Listing
from gigaslice.core.dataset.objects import may_be_named, parse_dataset, parse_dataset_node
from gigaslice.core.dataset.pack_manifest import PackManifest
from gigaslice.core.dataset.prefetch import judge_all
from gigaslice.core.dataset.request import parse_attributes
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.core.deviceplugin.device_id import parse_device_id, whole_gpu_device_id
from gigaslice.core.errors import CheckpointError, GigasliceError, InputError, SizeError, StateError
from gigaslice.core.kube.decode import parse_pod, unread_pod
from gigaslice.core.kube.fields import object_at, objects_at
from gigaslice.core.kube.quantity import parse_quantity
from gigaslice.core.limits.driver_limit_messages import (
    ApplyAnswer,
    ApplyRequest,
    SupportAnswer,
    WatchAnswer,
    WatchRequest,
)
from gigaslice.core.model.annotation_rights import AnnotationRights
from gigaslice.core.model.annotations import parse_options
from gigaslice.core.model.options import SliceUnit
from gigaslice.core.rewrite.gpu_request import RewriteSettings
from gigaslice.core.rewrite.manifest_text import rewrite_text
from gigaslice.core.text import whole_characters
from gigaslice.core.units import parse_bytes
from gigaslice.core.views.collect import picture
from gigaslice.core.views.usage import read_usage
from gigaslice.kubeapi import informer, lease
from gigaslice.kubeapi.client import ApiFailure, KubeAnswer, KubeClient
from gigaslice.kubeapi.cluster_objects import gpu_pod, node_facts, unread_gpu_pod
from gigaslice.kubeapi.documents import WHOLE, read_document
from gigaslice.roles.controller import claim_templates, cluster_feed, dataset_statuses, namespace_feed
from gigaslice.roles.controller.agent_usage import metrics_address
from gigaslice.roles.controller.class_objects import ClassFigures, plan_class_status, quota_classes
from gigaslice.roles.controller.object_plan import stored
from gigaslice.roles.controller.object_table import ObjectTable
from gigaslice.roles.dataset_node.mounts.table import parse_mountinfo
from gigaslice.roles.dataset_node.sources import rclone
from gigaslice.roles.dataset_node.sources.web_index import index_entries
from gigaslice.roles.dataset_node.start_gate import StartGate
from gigaslice.roles.dataset_node.store import documents
from gigaslice.roles.scheduler.datasets import DatasetIndex
from gigaslice.roles.scheduler.placer import Placer
from gigaslice.roles.scheduler.protocol import BindRequest, PodRequest, PreemptRequest
from gigaslice.roles.webhook.claim_conflicts import our_requests
from gigaslice.roles.webhook.namespace_rules import parse_quota
from gigaslice.roles.webhook.reviews import read_review
from gigaslice.runtime import local_protocol
from tests.fakes.kubeapi.reading import after_events, documents_of, listed
from tests.fakes.packs import MANIFEST
from tests.unit.decoding import seeds

__all__ = ["DECODERS", "EXEMPT", "Decoder"]

Call = Callable[[Any, Path], Any]
AGENT, SCHEDULER, CONTROLLER, DATASET, CLI = "node", "scheduler", "controller", "dataset", "commands"
LIMITS = "driver-limits"
CLUSTER = (SCHEDULER, CONTROLLER)
_UNIT = SliceUnit(1 << 30, parse_bytes)
_MESSAGES = "gigaslice.core.limits.driver_limit_messages"
_GPU = "GPU-00000000-0000-4000-8000-000000000001"
_POD_LIMITS = {"uid": "2c48913c-b29f-11e7-9350-020968147796", "gpus": {_GPU: 1 << 33}}


@dataclass(frozen=True)
class Decoder:
    """One decoder.

    Attributes:
        name: For people.
        roles: Those that have it.
        call: The decoder, of a damaged seed and an empty directory.
        seeds: Makes what is damaged: documents, texts by name, text or bytes.
        errors: What it may raise.
        covers: The functions that it is or calls, as "module:name".
        share: How many objects it gets, against others.
    """

    name: str
    roles: tuple[str, ...]
    call: Call
    seeds: Callable[[], tuple[Any, ...]]
    errors: tuple[type[Exception], ...] = ()
    covers: tuple[str, ...] = field(default=())
    share: float = 1.0


def _document(parse: Callable[[Any], Any]) -> Call:
    """A parser of documents that a reader of JSON has made."""
    return lambda document, _: parse(read_document(json.dumps(document).encode()))


def _plain(parse: Callable[[Any], Any]) -> Call:
    return lambda given, _: parse(given)


def _whole(parse: Callable[[Any], Any]) -> Call:
    """A parser of texts of whole characters, as gRPC and readers of JSON give them."""

    def call(given: Any, _: Path) -> Any:
        if isinstance(given, str):
            return parse(whole_characters(given))
        return parse({whole_characters(key): whole_characters(value) for key, value in given.items()})

    return call


def _class_table(document: Any) -> Any:
    packed = ObjectTable("resourceclasses", lambda one: str(one.spec.get("nodeName", ""))).parse(document)
    return (packed, packed.unpack())


def _status_of(document: Any) -> Any:
    present = stored(document)
    return plan_class_status(present, ClassFigures(8, 3, ("n-0",)), now="2026-01-01T00:00:00Z")


def _dataset_status(document: Any) -> Any:
    (node,) = (parse_dataset_node(one) for one in seeds.dataset_nodes())
    return dataset_statuses.dataset_status(dataset_statuses._parse(document), [node])


def _in_cluster(document: Any) -> Any:
    """A cluster that has a damaged node, pod or class beside good ones, asked everything that roles ask it."""
    placer = Placer(ClusterState(), 1.0)
    state = placer.state
    given = {"Node": node_facts, "Pod": gpu_pod, "Class": parse_resource_class}
    puts = {"Node": placer.put_node, "Pod": placer.put_pod, "Class": placer.put_class}
    for one in objects_at(document, "objects"):
        kind, what = one.get("as"), one.get("object")
        if isinstance(kind, str) and kind in given and isinstance(what, dict):
            try:
                value = given[kind](what)
            except (ValueError, GigasliceError):
                value = unread_gpu_pod(what) if kind == "Pod" else None
            if value is not None:
                puts[kind](value, 0.0)
    state.units = offered_units(filter(None, map(state.hardware, state.nodes)))
    waits = parse_pod(seeds.pods()[1])
    demand = state.demand_of(waits)
    if isinstance(demand, PodDemand):
        for name in state.filter(demand, state.nodes)[0]:
            state.choose(demand, name)
        state.report(demand)
    found = placer.filter(waits, [*state.nodes, "n-9"], 0.0)
    placer.prioritize(waits, found.names, 0.0)
    return picture(state, [waits])


def _cluster_seeds() -> tuple[Any, ...]:
    rows = [("Node", seeds.nodes()[:3]), ("Pod", seeds.pods()[:2]), ("Class", seeds.CLASSES)]
    objects = [{"as": kind, "object": one} for kind, found in rows for one in found]
    bound = json.loads(json.dumps(objects[3]))
    bound["object"]["spec"]["nodeName"] = "n-0"
    return ({"objects": [*objects, bound]},)


def _dataset_index(document: Any) -> Any:
    index = DatasetIndex()
    for key, parse, put in (
        ("node", parse_dataset_node, lambda one: index.put_node(one, 0.0, 1.7e9)),
        ("dataset", parse_dataset, index.put_object),
    ):
        put(parse(object_at(document, key)))
    asked = index.requested(gpu_pod(seeds.pods()[1]))  # type: ignore[arg-type]
    return (asked, index.shares(asked or (), 0.0))


def _installation(document: Any) -> Any:
    service = object_at(object_at(document, "clientConfig"), "service")
    return (
        unready_reason(document),
        service_access(service, b"x"),
        offer_of(document, "gigaslice.io/vgpu-memory"),
    )


def _lease(document: Any) -> Any:
    leader = lease.Leader(KubeClient.__new__(KubeClient), "ns", "name", "me", lambda leads: None)
    leader._note(document)
    free = leader._free()
    leader._inherit()
    return (free, leader.holder, leader._renewal(), leader.inherited.name)


def _watch_line(line: Any) -> Any:
    found = informer.Informer(
        KubeClient.__new__(KubeClient),
        "/x",
        gpu_pod,
        lambda one: None,
        lambda one: None,
        unread=unread_gpu_pod,
    )
    for document in documents_of(WHOLE.watch(), line + b"\n"):
        found._apply(document)
    return found.values


def _list_page(body: Any) -> Any:
    found = informer.Informer(
        KubeClient.__new__(KubeClient), "/x", node_facts, lambda one: None, lambda one: None
    )
    values: Any = {}
    reader = WHOLE.page()
    found._add(documents_of(reader, body), values)
    return (informer._list_state(reader.envelope), [one.value for one in values.values()])


def _failure(body: Any) -> Any:
    return str(KubeAnswer(409, body).failure("write"))


def _gate(message: Any) -> Any:
    said: list[Any] = []

    async def answer(document: dict[str, Any]) -> None:
        said.append(document)

    work = StartGate(Path("/nowhere"))._serve(message, answer)
    try:
        work.send(None)
    except StopIteration:
        return said
    raise AssertionError("it waits")


def _file(read: Callable[[Path], Any], name: str) -> Call:
    def call(raw: Any, folder: Path) -> Any:
        (folder / name).write_bytes(raw)
        return read(folder)

    return call


def _sealed(read: Callable[[bytes], Any]) -> Call:
    """Of what is inside of a checkpoint: its envelope, which tells damage of the disk, is made good."""

    def call(state: Any, _: Path) -> Any:
        return read(codec.sealed(state))

    return call


def _record(kind: str, read: Callable[[Path], Any]) -> Call:
    def call(body: Any, folder: Path) -> Any:
        text = {"version": 1, "check": documents._checksum(body), "body": body}
        (folder / kind).write_text(json.dumps(text))
        return read(folder / kind)

    return call


def _records() -> tuple[Any, ...]:
    volume = {"id": "v", "target": "/t", "pod_uid": "u", "namespace": "n", "pod": "p"}
    return ({"volume": volume, "pieces": [{"directory": "", "key": "ab" * 32}], "created": 1.5},)


DECODERS: tuple[Decoder, ...] = (
    # --- objects of the API, as the cluster's roles and the commands read them ---
    Decoder("node", (*CLUSTER, CLI), _document(node_facts), seeds.nodes, (ValueError,), (
        "gigaslice.kubeapi.cluster_objects:node_facts",
    ), 1.5),
    Decoder("node of the controller", (CONTROLLER,), _document(lambda one: (
        (found := cluster_feed._parse_node(one)), found.hardware, found.problem,
    )), seeds.nodes, (ValueError,), ("gigaslice.roles.controller.cluster_feed:_parse_node",)),
    Decoder("pod", (AGENT, *CLUSTER, DATASET, CLI), _document(parse_pod), seeds.pods, (ValueError,), (
        "gigaslice.core.kube.decode:parse_pod", "gigaslice.roles.controller.cluster_feed:ClusterFeed._parse_pod",
    ), 1.5),
    Decoder("claim", (AGENT,), _document(ResourceClaim.parse), lambda: (seeds.CLAIM,), (ValueError,), (
        "gigaslice.core.claims.resource_claim:ResourceClaim.parse",
    ), 1.5),
    Decoder("slice", (AGENT,), _document(StoredSlice.parse), seeds.slices, (ValueError,), (
        "agent.claims.stored_slice:StoredSlice.parse", "agent.claims.stored_slice",
    )),
    Decoder("claim template", (CONTROLLER,), _document(claim_templates._parse), seeds.claim_templates, (), (
        "gigaslice.roles.controller.claim_templates:_parse", "gigaslice.roles.controller.claim_templates",
    )),
    Decoder("claims of a pod", (CONTROLLER,), _plain(decode_templates), seeds.claims_of_pods, (ValueError,), (
        "gigaslice.core.claims.templates:decode_templates", "gigaslice.core.claims.templates:ContainerClaim.decode",
    )),
    Decoder("namespace", (CONTROLLER,), _document(namespace_feed._parse_namespace), lambda: (seeds.NAMESPACE,), (
        ValueError,
    ), (
        "gigaslice.roles.controller.namespace_feed:_parse_namespace", "gigaslice.roles.controller.namespace_feed",
        "gigaslice.roles.webhook.namespace_rules:parse_labels", "gigaslice.roles.webhook.namespace_rules",
    ), 0.5),
    Decoder("quota by claims", (CONTROLLER,), _document(lambda one: parse_quota(one, ClusterUnits())), lambda: (
        seeds.QUOTA,
    ), (), ("gigaslice.roles.webhook.namespace_rules:parse_quota",), 0.5),
    Decoder("requests of a claim", (CONTROLLER,), _document(our_requests), lambda: (seeds.CLAIM_SPEC,), (), (
        "gigaslice.roles.webhook.claim_conflicts",
    ), 0.5),
    Decoder("pod with GPUs", (SCHEDULER,), _document(gpu_pod), seeds.pods, (ValueError,), (
        "gigaslice.kubeapi.cluster_objects:gpu_pod",
    )),
    Decoder("pod that cannot be read", (AGENT, *CLUSTER), _document(lambda one: (
        unread_pod(one), unread_gpu_pod(one), unread_gpu_pod(one, parse_pod(seeds.pods()[0])),
    )), seeds.pods, (), (
        "gigaslice.core.kube.decode:unread_pod", "gigaslice.kubeapi.cluster_objects:unread_gpu_pod",
    )),
    Decoder("class", (*CLUSTER, CLI), _document(parse_resource_class), lambda: seeds.CLASSES, (InputError,), (
        "gigaslice.core.classes.resource_class:parse_resource_class", "gigaslice.core.classes.selector:parse_selector",
    ), 1.5),
    Decoder("stored object", (CONTROLLER,), _document(_class_table), lambda: (*seeds.CLASSES, seeds.GPU_OBJECT), (
        ValueError,
    ), (
        "gigaslice.roles.controller.object_plan:stored", "gigaslice.roles.controller.object_table:ObjectTable.parse",
        "gigaslice.roles.controller.object_table:PackedObject.unpack",
        "gigaslice.roles.controller.cluster_feed:ClusterFeed._parse_class",
    )),
    Decoder("status of a class", (CONTROLLER,), _document(_status_of), lambda: seeds.CLASSES, (ValueError,), (
        "gigaslice.roles.controller.class_objects",
    ), 0.5),
    Decoder("quotas", (CONTROLLER,), _document(lambda one: quota_classes([one])), lambda: (
        {"spec": {"hard": {"requests." + seeds.CLASS: "3", "pods": 7}}},
    ), (), ("gigaslice.roles.controller.object_reconciler",), 0.5),
    Decoder("Dataset", (*CLUSTER, DATASET, CLI), _document(lambda one: (
        may_be_named(one, "team", "other"), parse_dataset(one),
    )), lambda: seeds.DATASETS, (InputError,), ("gigaslice.core.dataset.objects:parse_dataset",), 1.5),
    Decoder("Dataset of the controller", (CONTROLLER,), _document(_dataset_status), lambda: seeds.DATASETS, (
        ValueError,
    ), ("gigaslice.roles.controller.dataset_statuses:_parse", "gigaslice.roles.controller.dataset_statuses",)),
    Decoder("DatasetNode", (*CLUSTER, CLI), _document(lambda one: (
        (found := parse_dataset_node(one)), found.document(), found.for_scheduling(),
    )), seeds.dataset_nodes, (ValueError,), ("gigaslice.core.dataset.objects:parse_dataset_node",), 1.5),
    Decoder("datasets of the scheduler", (SCHEDULER,), _document(_dataset_index), lambda: tuple(
        {"node": node, "dataset": one} for node in seeds.dataset_nodes() for one in seeds.DATASETS
    ), (ValueError, InputError), (), 0.5),
    Decoder("cluster", (*CLUSTER, CLI), _document(_in_cluster), _cluster_seeds, (), (), 0.6),
    Decoder("installation", (CLI,), _document(_installation), seeds.installation, (ValueError, GigasliceError), (
        "agent.commands.cluster_checks",
    ), 0.5),
    Decoder("lease", CLUSTER, _document(_lease), seeds.leases, (), ("gigaslice.kubeapi.lease",), 0.5),
    Decoder("pod of a prefetch", (CLI,), _document(judge_all), seeds.prefetch_pods, (), (
        "gigaslice.core.dataset.prefetch", "gigaslice.roles.dataset_node.subcommands.prefetch_nodes",
        "gigaslice.cluster_commands.cluster",
    ), 0.5),
    Decoder("pod of an agent", (CONTROLLER,), _document(metrics_address), lambda: (seeds.AGENT_POD,), (), (
        "gigaslice.roles.controller.agent_usage",
    ), 0.5),
    # --- texts inside of them ---
    Decoder("metrics of an agent", (CONTROLLER,), _plain(read_usage), lambda: (seeds.AGENT_METRICS,), (), (), 0.5),
    Decoder("inventory", (*CLUSTER, CLI), _plain(lambda text: (
        (found := NodeInventory.decode(text)), found.state(), found.encode(),
    )), seeds.inventories, (GigasliceError,), ("gigaslice.core.cluster.inventory:NodeInventory.decode",), 2.0),
    Decoder("assignment", (AGENT, *CLUSTER, CLI), _plain(lambda text: (
        (found := Assignment.decode(text)), found.encode(),
    )), lambda: (seeds.assignment(),), (GigasliceError,), ("gigaslice.core.cluster.assignment:Assignment.decode",)),
    Decoder("annotations", (AGENT, *CLUSTER, CLI), _whole(
        lambda texts: [parse_options(texts, "c0", _UNIT, rights) for rights in AnnotationRights]),
        lambda: seeds.OPTIONS, (), (
        "gigaslice.core.model.annotations:parse_options", "gigaslice.core.model.options:request_options",
        "gigaslice.core.model.options:_flag.read", "gigaslice.core.model.options:_number.read",
        "gigaslice.core.model.options:_word.read", "gigaslice.core.model.options:_words.read",
    )),
    Decoder("volume", (SCHEDULER, DATASET, CLI), _whole(parse_attributes), lambda: seeds.VOLUMES, (InputError,), (
        "gigaslice.core.dataset.request:parse_attributes",
    ), 1.5),
    Decoder("source", (DATASET, *CLUSTER, CLI), _plain(lambda text: (
        (found := SourceSpec.parse(text)), found.canonical, found.server, found.path,
    )), lambda: tuple(
        text for one in (*seeds.VOLUMES, *(one["spec"] for one in seeds.DATASETS)) for key, text in one.items()
        if key.startswith("source")
    ), (InputError,), ("gigaslice.core.dataset.source_spec:SourceSpec.parse",)),
    Decoder("servers", (*CLUSTER, DATASET, CLI), _plain(ServerAddress.parse), lambda: (
        "minio", "minio.example.com:9000", "10.0.0.5:80", "[fd00::5]:9000",
    ), (ValueError,), ("gigaslice.core.dataset.endpoint:ServerAddress.parse",), 0.5),
    Decoder("hosts", (*CLUSTER, DATASET, CLI), _plain(ServerAddress.parse_host), lambda: (
        "minio.example.com", "10.0.0.5", "fd00::5", "[fd00::5]",
    ), (ValueError,), ("gigaslice.core.dataset.endpoint:ServerAddress.parse_host",), 0.5),
    Decoder("endpoints", (*CLUSTER, DATASET, CLI), _plain(ServerUrl.parse), lambda: (
        "http://minio:9000", "https://storage.example.com/base/path", "http://[fd00::5]:9000/",
    ), (ValueError,), ("gigaslice.core.dataset.endpoint:ServerUrl.parse",), 0.5),
    Decoder("sizes", (AGENT, *CLUSTER, CLI), _plain(lambda text: (amount_of(text), parse_bytes(text))), lambda: (
        "8GiB", "11441MiB", "1.5e3", "80Gi",
    ), (SizeError,), ("gigaslice.core.units:parse_bytes", "gigaslice.core.units:_parsed"), 0.5),
    Decoder("quantities", (AGENT, *CLUSTER, DATASET), _plain(parse_quantity), lambda: (
        "8", "1Ki", "12E0", "100m", "-3e2",
    ), (ValueError,), ("gigaslice.core.kube.quantity:parse_quantity",), 0.5),
    Decoder("manifests of other projects", (CLI,), _plain(lambda text: rewrite_text(text, RewriteSettings())), lambda: (
        "spec:\n  containers:\n  - name: a\n    resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 3000}}\n",
        "x: &a\n  nvidia.com/vgpu-mode: mig\n---\nspec: {containers: [{name: b, env: [*a]}], hard: {<<: *a}}\n",
    ), (InputError,), ("gigaslice.core.rewrite.yaml_text:_parsed",), 0.1),
    Decoder("device IDs", (AGENT,), _whole(parse_device_id), lambda: (f"{seeds.uuid(0)}/7",), (GigasliceError,), (
        "gigaslice.core.deviceplugin.device_id:parse_device_id",
    ), 0.5),
    # --- answers and requests as bytes ---
    Decoder("list of pods", (AGENT,), _plain(listed), lambda: seeds.lists(seeds.pods()[:2]), (ValueError, ApiFailure), (
        "gigaslice.kubeapi.informer:_list_state",
    )),
    Decoder("watch of pods", (AGENT,), _plain(lambda line: after_events(line).values), lambda: (
        seeds.changes(seeds.pods())
    ), (ValueError, ApiFailure), ("gigaslice.kubeapi.informer",)),
    Decoder("list of an informer", CLUSTER, _plain(_list_page), lambda: seeds.lists(seeds.nodes()[:2]), (
        ValueError, ApiFailure,
    ), ("gigaslice.kubeapi.documents:_WholePage.end",)),
    Decoder("watch of an informer", CLUSTER, _plain(_watch_line), lambda: seeds.changes(seeds.pods()), (
        ValueError, ApiFailure,
    ), ("gigaslice.kubeapi.documents:_Lines.feed",)),
    Decoder("answer", (*CLUSTER, DATASET, CLI), _plain(lambda body: KubeAnswer(200, body).document()),
        lambda: seeds.lists(seeds.pods()[:1]), (ApiFailure,), (
        "gigaslice.kubeapi.client:KubeAnswer.document", "gigaslice.kubeapi.documents:read_document",
        "gigaslice.core.kube.json_text:read_json",
    )),
    Decoder("refusal", (*CLUSTER, DATASET, CLI), _plain(_failure), lambda: tuple(
        json.dumps(one).encode() for one in seeds.recorded("message", "reason", kind="Status", most=4)
    ), (), ("gigaslice.kubeapi.client:KubeAnswer.failure", "gigaslice.kubeapi.client"), 0.5),
    Decoder("filter", (SCHEDULER,), _plain(lambda body: (
        (found := PodRequest.decode(body)), sorted(found.names), set(found.names),
    )), seeds.filter_requests, (InputError,), (
        "gigaslice.roles.scheduler.protocol:PodRequest.decode", "gigaslice.roles.scheduler.protocol:_loaded",
    ), 1.5),
    Decoder("preempt", (SCHEDULER,), _plain(lambda body: (
        (found := PreemptRequest.decode(body)), found.reply(found.victims),
    )), seeds.preempt_requests, (InputError,), ("gigaslice.roles.scheduler.protocol:PreemptRequest.decode",)),
    Decoder("bind", (SCHEDULER,), _plain(BindRequest.decode), seeds.bind_requests, (InputError,), (
        "gigaslice.roles.scheduler.protocol:BindRequest.decode",
    )),
    Decoder("review", (CONTROLLER,), _document(read_review), seeds.reviews, (InputError,), (
        "gigaslice.roles.webhook.reviews:read_review",
    )),
    # --- the kubelet, and what the agent itself keeps ---
    Decoder("kubelet's checkpoint", (AGENT,), _plain(lambda raw: kubelet_checkpoint.parse(raw, {
        seeds.MEMORY: str, seeds.WHOLE: whole_gpu_device_id,
    })), seeds.kubelet_checkpoints, (), (
        "agent.kubelet.kubelet_checkpoint:parse", "agent.kubelet.kubelet_checkpoint:_entry",
    )),
    Decoder("checkpoint", (AGENT,), _plain(CODEC.decode_table), seeds.checkpoints, (StateError,), (
        "agent.persistence.codec:Codec._opened",
    )),  # few of what is damaged has the right checksum
    Decoder("content of a checkpoint", (AGENT,), _sealed(CODEC.decode_table), lambda: seeds.states()[:1], (
        CheckpointError,
    ), ("agent.persistence.codec:Codec.decode_table",)),
    Decoder("content of an allocation", (AGENT,), _sealed(CODEC.decode_allocation), lambda: seeds.states()[1:], (
        CheckpointError,
    ), ("agent.persistence.codec:Codec.decode_allocation",)),
    Decoder("cordons", (AGENT, CLI), _file(health_files.read_cordons, health_files.CORDON), lambda: (
        b'{"version": 1, "cordons": {"GPU-1": {"reason": "fan", "since": 1.7e9}}}',
    ), (StateError,), ("agent.health.health_files:_read",), 0.5),
    Decoder("report of driver limits", (CLI,), _file(
        driver_limit_report.read_report, driver_limit_report.FILE
    ), lambda: (
        b'{"version": 1, "mode": "auto", "backend": "dmem", "reason": "", "driver": "615.10", "pods": 1, "excess": '
        b'{"GPU-1": 5}, "walls": [{"pod": "a", "gpu": "GPU-1", "wanted": 7, "hard": null, "used": 1, "problem": ""}]}',
    ), (StateError,), ("agent.limits.driver_limit_report:read_report",), 0.5),
    # --- the dataset service ---
    Decoder("manifest of a pack", (DATASET, CLI), _plain(PackManifest.parse), lambda: (
        MANIFEST.text().encode(),
    ), (GigasliceError,), ("gigaslice.core.dataset.pack_manifest:PackManifest.parse",), 1.5),
    Decoder("listing", (DATASET, CLI), _plain(lambda data: Listing.decode(data).digest), lambda: (seeds.LISTING,), (
        GigasliceError,
    ), ("gigaslice.core.dataset.listing:Listing.decode", "gigaslice.core.dataset.listing:_decoded")),
    Decoder("index of a web server", (DATASET, CLI), _plain(lambda raw: [
        (one.path, one.size) for one in index_entries(iter([raw]), "x", Limits())
    ]), lambda: (
        b'{"files": [{"path": "a/b.jpg", "size": 7, "version": "x"}, {"path": "c", "size": 0}], "more": {"a": [1]}}',
    ), (GigasliceError,), ("gigaslice.roles.dataset_node.sources.web_index:_JsonScanner.objects",)),
    Decoder("file of rclone", (DATASET, CLI), _plain(rclone._entry), lambda: (
        b'{"Path":"a/b","Name":"b","Size":7,"MimeType":"","ModTime":"2026-01-01T00:00:00Z","IsDir":false}',
    ), (ValueError, KeyError, TypeError, GigasliceError), ("gigaslice.roles.dataset_node.sources.rclone:_entry",)),
    Decoder("record of a volume", (DATASET,), _record("record", documents.read_record), _records, (
        documents.DocumentError,
    ), ("gigaslice.roles.dataset_node.store.documents:_read",), 0.5),
    Decoder("mounts", (DATASET, AGENT), _plain(lambda raw: [
        os.fsencode(one.point) for one in parse_mountinfo(raw)
    ]), lambda: (
        b"36 35 98:0 /a /mnt\\040x rw,noatime master:1 - ext4 /dev/root rw\n" * 2,
    ), (), ("gigaslice.roles.dataset_node.mounts.table:parse_mountinfo",), 0.5),
    Decoder("word of the agent", (DATASET,), _document(_gate), lambda: (
        {"gatekeeper": {"resources": [seeds.MEMORY]}}, {"id": 7, "ready": "uid", "volumes": ["v"]},
    ), (), ("gigaslice.roles.dataset_node.control",), 0.5),
    Decoder("line of another program", (AGENT, CLI, DATASET), _plain(local_protocol.decode), lambda: (
        b'{"version": 1, "resize": {"pod": "a", "memory": 12}}\n', b'{"id": 7, "ready": true, "detail": "x"}\n',
    ), (), ("gigaslice.runtime.local_protocol:decode",), 0.5),
    Decoder("change of limits", (AGENT,), _document(decode_change), lambda: (
        {"namespace": "n", "pod": "a", "container": "c", "gpu": "GPU-1", "memory": 1 << 33, "cores": 30},
    ), (GigasliceError,), ("agent.control.server:decode_change", "agent.control.server"), 0.5),
    Decoder("answer to it", (CLI,), _document(ResizeAnswer.decode), lambda: (
        {"container": "n/a/c", "limits": [{"gpu": "GPU-1", "memory_before": 1, "memory_after": 2, "used": 0}]},
    ), (), ("agent.control.messages:ResizeAnswer.decode", "agent.control.messages"), 0.5),
    Decoder("wanted driver limits", (LIMITS,), _document(ApplyRequest.decode), lambda: (
        {"pods": [_POD_LIMITS], "containers": [{**_POD_LIMITS, "container": "a1" * 32}]},
    ), (InputError,), (f"{_MESSAGES}:ApplyRequest.decode",), 0.5),
    Decoder("watch of pods' cgroups", (LIMITS,), _document(WatchRequest.decode), lambda: (
        {"sequence": 7, "seconds": 30},
    ), (InputError,), (f"{_MESSAGES}:WatchRequest.decode",), 0.3),
    Decoder("support of driver limits", (AGENT,), _document(SupportAnswer.decode), lambda: (
        {"backend": "misc", "reason": "", "driver": "615.10", "gpus": {_GPU: {"total": 1 << 36, "persistence": None}}},
    ), (InputError,), (f"{_MESSAGES}:SupportAnswer.decode",), 0.3),
    Decoder("driver limits afterwards", (AGENT,), _document(ApplyAnswer.decode), lambda: (
        {"pods": [{"uid": _POD_LIMITS["uid"], "present": True, "problem": "", "gpus": {
            _GPU: {"hard": 1 << 33, "used": None, "problem": ""},
        }, "leaves": [{"container": "a1" * 32, "gpu": _GPU, "hard": 1 << 34, "pids": [7, 8]}]}]},
    ), (InputError,), (f"{_MESSAGES}:ApplyAnswer.decode",), 0.5),
    Decoder("pods that have cgroups", (AGENT,), _document(WatchAnswer.decode), lambda: (
        {"sequence": 7, "uids": [_POD_LIMITS["uid"]]},
    ), (InputError,), (f"{_MESSAGES}:WatchAnswer.decode",), 0.3),
)  # fmt: skip

_OWN = "both ends are processes of one agent, of one version"
_OPERATOR = "a file or flag of the operator: read once, at the start, with every mistake as a line"
_READS = "reads bytes; what they are is decoded by another row"
EXEMPT = {
    "gigaslice.runtime.command_line.parser:CommandParser.parse_known_args": "argparse's own, which it calls",
    "gigaslice.runtime.command_line.parser:CommandParser._parse_known_args": "argparse's own, which it calls",
    # --- readers of bytes ---
    "agent.claims.slices": "the UUIDs of devices, which StoredSlice.parse has read",
    "agent.claims.slice_objects": "what it reads is decoded by StoredSlice.parse; else one UID of a node",
    "gigaslice.roles.webhook.claim_admission": "asks is_genuine of a template, whose row is that of the controller",
    "agent.commands.node_api_checks": "one boolean; whatever is wrong is caught there",
    "gigaslice.roles.dataset_node.subcommands.prefetch_pods:judgements": _READS,
    "gigaslice.core.kube.object_reader:ObjectReader._document": _READS,
    "gigaslice.core.kube.object_reader:ObjectReader._object": _READS,
    # --- another row's parser by another name ---
    "agent.allocation.assignments:decoded": "a cache before Assignment.decode",
    "gigaslice.roles.dataset_node.subcommands.prefetch_nodes:_parsed": "calls the parser that it is given",
    "gigaslice.core.kube.decode": "has rows of its own",
    "gigaslice.kubeapi.cluster_objects": "has rows of its own",
    "gigaslice.roles.controller.cluster_feed": "has rows of its own",
    "gigaslice.roles.controller.object_plan": "has rows of its own",
    "gigaslice.core.dataset.objects": "has rows of its own",
    # --- one program on both ends ---
    "agent.link:Link._received": _OWN,
    "agent.front.front:Front._frame_received": _OWN,
    "agent.front.handover:_received": _OWN,
    "agent.front.claims_offer:ClaimsOffer.load": _OWN,
    "agent.front.claims_offer:ClaimsOffer.of_bytes": _OWN,
    "agent.front.resource_offer:ResourceOffer.load": _OWN,
    "agent.front.resource_offer:ResourceOffer.of_bytes": _OWN,
    # --- files of this node that only root writes, beside those with rows ---
    "agent.persistence.checkpoint:CheckpointFile.load": _READS,
    "agent.persistence.store:Store._load": _READS,
    "agent.persistence.directories:AllocationDirs._read": "what is wrong is caught there: tests/unit/agent/persistence",
    "gigaslice.roles.dataset_node.fetching.bitmap:Bitmap._load": "bits, of which every text is one",
    "gigaslice.roles.dataset_node.tasks.early_requests:EarlyRequests.requests": "caught there: the file is deleted",
    "gigaslice.core.kube.cgroups:parse": "lines of the kernel",
    "agent.inventory.page_faults:parse": "lines of the kernel",
    # --- what the operator gives ---
    "agent.config:load": _OPERATOR,
    "agent.inventory.static:parse_inventory": _OPERATOR,
    "gigaslice.role_settings:load": _OPERATOR,
    "gigaslice.kubeapi.kubeconfig:_document": _OPERATOR,
    "gigaslice.core.model.matrix:parse_topo_matrix": _OPERATOR,
    "gigaslice.roles.dataset_node.sources.object_stores:_gs": "a tenant's Secret: whatever is wrong is caught there",
    # --- protocols with tests of their own ---
    "agent.claims.registration:ClaimRegistration._notified": "what is wrong is caught there: tests/unit/agent/claims",
    "agent.link:Link._answer": "gRPC decodes it: tests/unit/agent/front",
    "agent.front.grpc:unpacked": "frames of gRPC: tests/unit/agent/front",
    "agent.front.hpack:_unpacked": "headers of HTTP/2: tests/unit/agent/front, tests/fuzz",
    "agent.front.hpack:Decoder.decode": "headers of HTTP/2: tests/unit/agent/front, tests/fuzz",
    "gigaslice.roles.dataset_node.sources.checked_proxy:_parse": (
        "heads of HTTP: tests/unit/gigaslice/roles/dataset_node/sources"
    ),
    "gigaslice.core.views.page:PageQuery.parse": "a query of the web page: tests/unit/gigaslice/core/views",
}
"""Functions and modules that read what others write without a row, each with the reason."""
