# SPDX-License-Identifier: Apache-2.0
"""What this version writes where another one reads it: state directories, quotas, texts, objects.

The fixtures of a release are made by this, and the test of the way back has today's files made by it for a release's
own reader. So all that a field can say is said here once: a field that is new goes into it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import vcuda as vcuda_package
from agent.config import Config
from agent.control.messages import GpuLimits, ResizeAnswer
from agent.health.conditions import Condition, GpuHealth
from agent.health.health_files import Cordon, GpuRecord, Report, change_cordons, write_report
from agent.persistence.store import Store
from agent.roles.records import CODEC
from agent.telemetry import metrics
from gigaslice.core.allocation.consumer import Consumer, ContainerRef
from gigaslice.core.allocation.table import Allocation, AllocationOptions, Hold, LiveLimit
from gigaslice.core.claims.origin import ClaimDevice, ClaimOrigin
from gigaslice.core.dataset.objects import parse_dataset, parse_dataset_node
from gigaslice.core.dataset.request import ATTRIBUTES
from gigaslice.core.deviceplugin.origin import Owner
from gigaslice.core.kube.reasons import REASONS
from gigaslice.core.limits.driver_limit_messages import (
    ApplyRequest,
    ContainerLimits,
    GpuSupport,
    PodLimits,
    SupportAnswer,
)
from gigaslice.core.model.annotations import ANNOTATIONS
from gigaslice.core.model.options import PREFIX
from gigaslice.roles.controller import metrics as controller_metrics
from gigaslice.roles.controller.class_objects import ClassFigures, plan_class_status
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.controller.dataset_statuses import WatchedDataset, dataset_status
from gigaslice.roles.controller.gpu_objects import PodOnGpu, ReportingNode, plan_node
from gigaslice.roles.controller.object_plan import stored
from gigaslice.roles.dataset_node import metrics as dataset_metrics
from gigaslice.roles.dataset_node.events import EVENTS as DATASET_EVENTS
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.dataset_node.store import (
    Budget,
    DatasetMetadata,
    DatasetStore,
    DiskSpace,
    Volume,
    VolumeRecord,
    VolumeSource,
    digest_of,
)
from gigaslice.roles.dataset_node.store.documents import write_document
from gigaslice.roles.dataset_node.store.state_paths import StatePaths
from gigaslice.roles.driver_limits.settings import DriverLimitSettings
from gigaslice.roles.scheduler import metrics as scheduler_metrics
from gigaslice.roles.scheduler.settings import SchedulerSettings
from gigaslice.runtime.local_protocol import encode, versioned
from gigaslice.runtime.settings import Settings, table
from gigaslice_cli import frame
from tests.fakes.mounts import MemoryMounts
from tests.fakes.nodes import GIB, allocation, uuid, whole_allocation
from tests.native.running import MIB, Place
from tests.unit.decoding import seeds
from tests.unit.docs.tables import subcommands
from vcuda import GpuLimit, contexts, set_memory_limit, set_undeclared
from vcuda import cli as vcuda_cli
from vcuda.quotas import create_in, open_named

LIBRARY = b"\x7fELF as far as this goes"
MACHINE = (
    "GPU-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f",
    "GPU-d487fb0d-4afb-4eef-a6ab-ec838678d356",
)  # of two-24g
KEYS = ("ab" * 32, "cd" * 32)


def allocations(library: str) -> list[Allocation]:
    """Of every kind: by device IDs and by claims, and with everything that a record can say."""
    ref = ContainerRef("team", "train", "main")
    owner = Owner("6e1b5c1e-0000-4000-8000-000000000001", *_names(ref), init=True)
    options = AllocationOptions(
        cores=30, exclusive=True, elastic=True, max_slices=16, parts=(8, 4), cores_elastic=True, priority="guaranteed"
    )  # fmt: skip
    lending = allocation(
        1, (0, range(8)), lent=frozenset({f"{uuid(0)}/6", f"{uuid(0)}/7"}), owner=owner, container=ref
    )
    resized = allocation(
        2, (0, range(8, 16)), (1, range(4)), policy=options, assigned=True, supersedes=(f"{1:032x}",),
        limits=(LiveLimit(uuid(0), 12 * GIB), LiveLimit(uuid(1), None, 50)), resizes=3,
        container=ContainerRef("team", "serve", "c0"),
    )  # fmt: skip
    unknown = allocation(3, (1, range(4, 6)), suspects=("team/a", "team/b"), undecided=True, waiting=True)
    lent = allocation(4, (1, range(8, 12)), policy=AllocationOptions(oversubscribe=True, time_slicing=False))
    lent = replace(lent, holds=tuple(replace(hold, physical_bytes=3 * GIB) for hold in lent.holds))
    over = allocation(5, (1, range(12, 14)), ended=True, forgotten=True, foreign=True)
    whole = whole_allocation(6, 2, container=ContainerRef("team", "whole", "c"))
    named = (lending, resized, unknown, lent, over, whole, claimed(7), claimed(8, follows_annotations=True))
    return [replace(one, library=library) for one in named]


def _names(ref: ContainerRef) -> tuple[str, str, str]:
    return ref.namespace, ref.pod, ref.container


def claimed(number: int, **more: Any) -> Allocation:
    """An allocation for a claim of two requests, used by two containers."""
    gpu = uuid(3)
    origin = ClaimOrigin(
        namespace="team", claim=f"shared-{number}", uid=f"claim-{number}", requests=("a", "b/large"),
        devices=(
            ClaimDevice("a", "node-a", "gpu-3", "7f2c9d34-0000-4000-8000-00000000000a", gpu),
            ClaimDevice("b/large", "node-a", "gpu-3", "7f2c9d34-0000-4000-8000-00000000000b", gpu),
        ),
        consumers=(
            Consumer(ContainerRef("team", "p", "main"), "uid-p", init=False),
            Consumer(ContainerRef("team", "q", "begin"), "uid-q", init=True),
        ),
        boot_id="2c48913c-b29f-11e7-9350-020968147796",
        **more,
    )  # fmt: skip
    hold = Hold(gpu, 6 * GIB + 512 * MIB, GIB, cores=20, counted_bytes=4 * GIB)
    return Allocation(f"{number:032x}", number, 1700000000.5, (hold,), "l", origin)


def node_state(path: Path, *, claims: bool = True) -> None:
    """A node agent's state directory. CLAIMS: with allocations for claims, which have a version of their own."""
    source = path.with_name("library.so")
    source.write_bytes(LIBRARY)
    store = Store(path, source, codec=CODEC)
    store.open()
    for one in allocations(store.library):
        if claims or not isinstance(one.origin, ClaimOrigin):
            store.commit(store.table.with_allocation(one), [one])
            store.write_owner(one)
    page = path / "allocations" / f"{2:032x}" / "limits"
    set_memory_limit(page, uuid(0), 10 * GIB)
    set_undeclared(page, uuid(1), 5 * MIB)
    store.close()
    change_cordons(path, lambda before: {**before, uuid(1): Cordon("to be replaced", 1700000000.0)})
    sick = GpuHealth((Condition("xid-79", "fallen off the bus"),), 1.0, 2.0, 1, 0.5, 3)
    record = GpuRecord(uuid(3), 3, "NVIDIA L4", 24, healthy=False, cordoned=False, detail="Xid 79", since=1.0)
    write_report(path, Report("2c48913c-b29f-11e7-9350-020968147796", (record,), {uuid(3): sick}))


def quotas(base: Path, machine: Path) -> None:
    """A user's quotas: of `vcuda run`, with two programs that have used it, and a named one. MACHINE: the driver's."""
    base.mkdir()
    machine.mkdir()
    gpus = [GpuLimit(gpu, (8 + 4 * n) * GIB, cores_percent=30 * n) for n, gpu in enumerate(MACHINE)]
    made = create_in(base, gpus, ["python3", "train.py"]).rename(base / "run-1-0a")
    place = Place(machine, settings={"VCUDA_DIR": str(made)})
    with place.client() as first, place.client() as second:
        first.ready()
        second.ready(1)
        assert first.do("alloc a", 1 * GIB).code == 0
        assert second.do("alloc b", 3 * GIB).code == 0
        assert second.do("alloc c", 100 * GIB).code == 2
    open_named(base / "quota-eval", [GpuLimit(MACHINE[0], 4 * GIB, physical_bytes=2 * GIB)])
    contexts.keep(base, "580.65.06", {MACHINE[0]: 400 * MIB})


def dataset_state(path: Path) -> None:
    """A dataset service's state directory: a complete dataset, one that is being fetched, two volumes."""
    store = DatasetStore(
        path,
        MemoryMounts(),
        budget=Budget(keep_free=0.0),
        quotas={},
        unpack=None,
        pod_is_there=lambda _: True,
        disk=lambda: DiskSpace(1 << 20, 1 << 20),
        clock=lambda: 1700000000.0,
    )
    store.open()
    part = store.begin_fetch(
        DatasetMetadata(
            KEYS[0],
            100,
            "s3://bucket/coco, endpoint=http://minio:9000",
            3,
            77,
            "ef" * 32,
            requested="s3://bucket/coco",
        )
    )
    part.image.write_bytes(bytes(range(100)))
    store.complete(part, digest_of(part.image))
    store.begin_fetch(DatasetMetadata(KEYS[1], 8192, "https://host/data/", 1, 5000, "01" * 32))
    store.close()
    target = "/var/lib/kubelet/pods/{}/volumes/kubernetes.io~csi/data/mount"
    shown = (
        VolumeSource(key=KEYS[0], directory="coco", name="coco"),
        VolumeSource(path="/mnt/nfs", directory="n"),
    )
    for name, sources in (("csi-a", shown), ("csi-b", ())):
        volume = Volume(name, target.format(f"uid-{name}"), f"uid-{name}", "team", f"pod-{name}")
        write_document(StatePaths(path).records / f"{name}.json", VolumeRecord(volume, sources, 1700000000.0))


def texts() -> dict[str, list[str]]:
    """Annotations, messages and objects, by what they are."""
    change = {
        "namespace": "team",
        "pod": "serve",
        "container": "c0",
        "gpu": uuid(0),
        "memory": 12 * GIB,
        "cores": 50,
    }
    by_id = {"allocation": "0" * 31 + "2", "memory": 4 * GIB}
    resized = ResizeAnswer("team/serve/c0", (GpuLimits(uuid(0), 8 * GIB, 12 * GIB, 30, 50, 7 * GIB),))
    uid = "2c48913c-b29f-11e7-9350-020968147796"
    limits = ApplyRequest(
        (PodLimits(uid, {uuid(0): 8 * GIB}),), (ContainerLimits(uid, "ab" * 32, {uuid(0): 4 * GIB}),)
    )
    support = SupportAnswer(
        "dmem", "", "615.21", {uuid(0): GpuSupport(24 * GIB, True), uuid(1): GpuSupport(GIB)}
    )
    return {
        "inventory": list(seeds.inventories()),
        "assignment": [seeds.assignment()],
        "claim templates": list(seeds.claims_of_pods()),
        "options": [json.dumps(given) for given in seeds.OPTIONS],
        "resize": [encode(versioned({"resize": asked})).decode() for asked in (change, by_id)],
        "resized": [json.dumps(asdict(resized))],
        "driver limits": [json.dumps(limits.encode())],
        "driver support": [json.dumps(support.encode())],
        **{
            kind: [json.dumps(one) for one in found]
            for kind, found in objects().items()
            if kind != "ExtendedResource"
        },
    }


def objects() -> dict[str, list[dict[str, Any]]]:
    """Objects of our kinds as users and the roles write them; each of ours with its status."""
    cached = parse_dataset_node(seeds.dataset_nodes()[0])
    watched = WatchedDataset("team", stored(seeds.DATASETS[0]), parse_dataset(seeds.DATASETS[0]))
    return {
        "ResourceClass": [_with_status(one) for one in seeds.CLASSES],
        "Dataset": [{**seeds.DATASETS[0], "status": dataset_status(watched, [cached])}, *seeds.DATASETS[1:]],
        "DatasetNode": list(seeds.dataset_nodes()),
        "ExtendedResource": _gpus(),
    }


def _with_status(document: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in document.items() if key != "status"}
    (write,) = plan_class_status(stored(plain), ClassFigures(8, 3, ("n-0",)), now="2026-01-01T00:00:00Z")
    return {**plain, "status": write.body["status"]}


def _gpus() -> list[dict[str, Any]]:
    """The objects of a node's GPUs, which the controller writes in two steps: itself, then its status."""
    holders = {uuid(0): (PodOnGpu("u", "team", "train", 8, 30, running=True),)}
    node = ReportingNode("n-0", "uid-n-0", seeds.inventory(), holders=holders)
    made: dict[str, dict[str, Any]] = {write.name: dict(write.body) for write in plan_node(node, {})}
    present = {
        name: stored({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "1"}})
        for name, body in made.items()
    }
    statuses = {write.name: write.body["status"] for write in plan_node(node, present)}
    return [{**body, "status": statuses[name]} for name, body in made.items()]


def names() -> dict[str, list[str]]:
    """The names that people have written into their own files: settings, commands, metrics, events, annotations."""
    vcuda = vcuda_cli.make_parser()
    ours = frame.make_parser()
    return {
        **{f"settings of {role}": sorted(one.flag for one in table(of)) for role, of in SETTINGS.items()},
        **{f"metrics of {role}": sorted(row.name for row in rows) for role, rows in METRICS.items()},
        **{
            f"options of {program} {name}": sorted(
                word for action in parser._actions for word in action.option_strings if word.startswith("--")
            )
            for program, top in (("vcuda", vcuda), ("gigaslice", ours))
            for name, parser in subcommands(top).items()
        },
        "events": sorted({row.name for row in (*REASONS, *DATASET_EVENTS)}),
        "annotations": sorted(name for row in ANNOTATIONS for name in (PREFIX + row.name, *row.aliases)),
        "attributes of volumes": sorted(ATTRIBUTES),
        "exports of the package vcuda": sorted(vcuda_package.__all__),
    }


SETTINGS: dict[str, type[Settings]] = {
    "node": Config,
    "scheduler": SchedulerSettings,
    "controller": ControllerConfig,
    "dataset": DatasetSettings,
    "driver-limits": DriverLimitSettings,
}
METRICS = {
    "node": metrics.METRICS,
    "scheduler": scheduler_metrics.METRICS,
    "controller": controller_metrics.METRICS,
    "dataset": dataset_metrics.METRICS,
}
