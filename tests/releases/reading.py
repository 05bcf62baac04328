# SPDX-License-Identifier: Apache-2.0
"""What this version reads in the files and texts of another: `python -m tests.releases.reading KIND PATH` prints it.

A release keeps a copy of this file with its code, and so this is run by the code of every release. What is printed is
said in names that stay, whatever the code calls it: a test compares two versions by it. So a key that is here once is
never renamed, and a fact that a later version adds gets a new one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Facts = dict[str, Any]


def node_state(path: Path) -> Facts:
    """A node agent's state directory, opened as an agent opens it: files are mended, and may be written."""
    from agent.health.health_files import read_cordons, read_report
    from agent.persistence.store import Store
    from agent.roles.records import CODEC

    library = path.with_name("library.so")
    library.write_bytes(b"not a library, as no container starts here")
    store = Store(path, library, codec=CODEC)
    store.open()
    try:
        report = read_report(path)
        return {
            "allocations": {one.id: _allocation(store, one) for one in store.table.allocations},
            "next": store.table.next_number,
            "cordons": {gpu: cordon.reason for gpu, cordon in read_cordons(path).items()},
            "health": {} if report is None else {gpu.uuid: [gpu.healthy, gpu.detail] for gpu in report.gpus},
        }
    finally:
        store.close()


def _allocation(store: Any, one: Any) -> Facts:
    from gigaslice.core.claims.origin import claim_of

    claim = claim_of(one)
    page = store.dirs.path(one.id) / "limits"
    return {
        "number": one.number,
        "created": one.created,
        "library": one.library,
        "holds": {
            hold.gpu: [hold.memory_bytes, hold.slice_bytes, hold.physical_bytes, hold.cores, hold.lent_bytes]
            for hold in one.holds
        },
        "quota": dict(one.quota()),
        "cores": {gpu: one.cores_of(gpu) for gpu in one.quota()},
        "options": {
            "exclusive": one.policy.exclusive,
            "elastic": one.policy.elastic,
            "most": one.policy.max_slices,
            "oversubscribe": one.policy.oversubscribe,
            "time slicing": one.policy.time_slicing,
            "parts": list(one.policy.parts),
            "cores": [one.policy.cores, one.policy.cores_elastic, one.policy.priority],
        },
        "flags": sorted(name for name in ("whole", "waiting", "ended", "assigned") if getattr(one, name)),
        "resizes": one.resizes,
        "consumers": [[str(consumer.ref), consumer.uid, consumer.init] for consumer in one.consumers],
        "origin": _device_ids(one) if claim is None else _claim(claim),
        "page": limits_page(page) if page.exists() else None,
        "ledger": _ledger(store.reading(one.id)),
    }


def _device_ids(one: Any) -> Facts:
    from gigaslice.core.deviceplugin.origin import plugin

    origin = plugin(one)
    return {
        "devices": {tokens.gpu: sorted(tokens.device_ids) for tokens in origin.tokens},
        "lent": sorted(origin.lent),
        "supersedes": sorted(origin.supersedes),
        "suspects": None if origin.suspects is None else sorted(origin.suspects),
        "listed": origin.container is not None,
        "flags": sorted(name for name in ("forgotten", "foreign", "undecided") if getattr(origin, name)),
    }


def _claim(origin: Any) -> Facts:
    return {
        "claim": [origin.namespace, origin.claim, origin.uid],
        "requests": list(origin.requests),
        "devices": [[one.request, one.pool, one.device, one.share_id, one.gpu] for one in origin.devices],
        "boot": origin.boot_id,
        "follows": origin.follows_annotations,
    }


def _ledger(reading: Any) -> Facts:
    return {"peak": dict(reading.peak), "problem": reading.problem}


def limits_page(path: Path) -> Facts:
    """A limits page."""
    import vcuda

    page = vcuda.read_limits(path)
    return {
        "id": page.allocation_id.hex(),
        "changes": page.changes,
        "gpus": {
            gpu.uuid: [
                gpu.memory_bytes, gpu.cores_percent, gpu.undeclared_bytes, gpu.physical_bytes, gpu.compute_policy
            ]
            for gpu in page.gpus
        },
    }  # fmt: skip


def ledger(path: Path) -> Facts:
    """A ledger."""
    import vcuda

    usage = vcuda.read_ledger(path)
    return {
        "id": usage.allocation_id.hex(),
        "gpus": list(usage.gpu_uuids),
        "peak": dict(usage.peak),
        "processes": [
            [one.name, one.pid_inside, dict(one.used), dict(one.peak), one.refused] for one in usage.processes
        ],
    }  # fmt: skip


def quotas(path: Path) -> Facts:
    """The directory in which a user's quotas of `vcuda run` are, with what contexts cost."""
    from vcuda import contexts
    from vcuda.quotas import find_quotas, read_quota

    return {
        "quotas": {
            found.name: [read_quota(found).kind, read_quota(found).name, limits_page(found / "limits")]
            for found in find_quotas(path)
        },
        "contexts": contexts.measured(path, "580.65.06"),
    }


def texts(path: Path) -> Facts:
    """Annotations and messages, by name: {"inventory": [text, ...], ...}."""
    given: Mapping[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
    return {name: [_TEXTS[name](text) for text in given[name]] for name in given}


def _inventory(text: str) -> Facts:
    from gigaslice.core.cluster.inventory import NodeInventory

    found = NodeInventory.decode(text)
    return {
        "gpus": [
            {
                "uuid": one.gpu.uuid, "index": one.gpu.index, "model": one.gpu.model, "bytes": one.gpu.memory_bytes,
                "slices": one.gpu.slices, "slice": one.gpu.slice_bytes, "host": one.gpu.host_bytes,
                "numa": one.gpu.numa_node, "pci": one.gpu.pci_bus_id, "unhealthy": one.unhealthy, "free": one.free,
                "resource": one.resource, "properties": dict(one.properties),
            }
            for one in found.gpus
        ],
        "levels": [list(map(int, row)) for row in found.topology.levels],
        "nvlinks": [list(row) for row in found.topology.nvlinks],
        "held": {one.name: [[share.gpu, share.slices, share.cores] for share in one.shares] for one in found.held},
        "whole": found.whole_resource,
        "rights": found.rights.value,
        "exclusive": {uid: list(gpus) for uid, gpus in found.exclusive.items()},
        "lent": {uid: list(gpus) for uid, gpus in found.lent.items()},
    }  # fmt: skip


def _assignment(text: str) -> Facts:
    from gigaslice.core.cluster.assignment import Assignment

    containers = Assignment.decode(text).containers
    return {name: [[one.gpu, one.slices, one.cores] for one in containers[name]] for name in containers}


def _templates(text: str) -> list[Any]:
    from gigaslice.core.claims.templates import decode_templates

    return sorted([name, template.spec()] for name, template in decode_templates(text).items())


def _options(text: str) -> Facts:
    from gigaslice.core import units
    from gigaslice.core.model import SliceUnit
    from gigaslice.core.model.annotation_rights import AnnotationRights
    from gigaslice.core.model.annotations import parse_options

    found = parse_options(
        json.loads(text), "c0", SliceUnit(1 << 30, units.parse_bytes), AnnotationRights.CHECKED
    )
    return {
        "gpus": found.gpus, "parts": list(found.parts), "types": list(found.types), "uuids": list(found.uuids),
        "exclusive": found.exclusive, "same": found.same_gpu, "cores": found.cores, "elastic": found.elastic,
        "most": found.max_slices, "oversubscribe": found.oversubscribe, "mistakes": list(found.mistakes),
    }  # fmt: skip


def _resize(text: str) -> Facts:
    from agent.control.server import decode_change
    from gigaslice.runtime.local_protocol import decode

    message = decode(text.encode())
    assert message is not None
    change = decode_change(message["resize"])
    return {
        "container": [change.namespace, change.pod, change.container, change.allocation],
        "gpu": change.gpu,
        "memory": change.memory,
        "cores": change.cores,
    }


def _resized(text: str) -> Facts:
    from agent.control.messages import ResizeAnswer

    found = ResizeAnswer.decode(json.loads(text))
    return {
        "container": found.container,
        "limits": [
            [one.gpu, one.memory_before, one.memory_after, one.cores_before, one.cores_after, one.used]
            for one in found.limits
        ],
    }


def _driver_limits(text: str) -> Facts:
    from gigaslice.core.limits.driver_limit_messages import ApplyRequest

    found = ApplyRequest.decode(json.loads(text)["apply"])
    return {
        "pods": {one.uid: dict(one.gpus) for one in found.pods},
        "containers": [[one.uid, one.container, dict(one.gpus)] for one in found.containers],
    }


def _driver_support(text: str) -> Facts:
    from gigaslice.core.limits.driver_limit_messages import SupportAnswer

    found = SupportAnswer.decode(json.loads(text))
    gpus = {gpu: [one.total, one.persistence] for gpu, one in found.gpus.items()}
    return {"backend": found.backend, "reason": found.reason, "driver": found.driver, "gpus": gpus}


def _class(text: str) -> Facts:
    from gigaslice.core.classes.resource_class import parse_resource_class

    found = parse_resource_class(json.loads(text))
    share = None if found.share is None else [found.share.memory_bytes, found.share.cores]
    asked = {"model": "NVIDIA H100 80GB HBM3", "rack": "r7", "memory": "81920MiB"}
    return {"name": found.name, "share": share, "managed": found.managed, "serves": found.matches(asked)}


def _dataset(text: str) -> Facts:
    from gigaslice.core.dataset.objects import parse_dataset

    found = parse_dataset(json.loads(text))
    return {
        "name": str(found), "source": found.source.canonical, "check": found.check, "digest": found.digest,
        "allowed": sorted(found.allowed),
    }  # fmt: skip


def _dataset_node(text: str) -> Facts:
    from gigaslice.core.dataset.objects import parse_dataset_node

    found = parse_dataset_node(json.loads(text))
    return {
        "node": found.node,
        "budget": [found.budget, found.free],
        "renewed": found.renewed,
        "datasets": sorted([one.key, one.source, one.digest, one.bytes, one.state] for one in found.datasets),
    }


_TEXTS: Mapping[str, Callable[[str], Any]] = {
    "inventory": _inventory,
    "assignment": _assignment,
    "claim templates": _templates,
    "options": _options,
    "resize": _resize,
    "resized": _resized,
    "driver limits": _driver_limits,
    "driver support": _driver_support,
    "ResourceClass": _class,
    "Dataset": _dataset,
    "DatasetNode": _dataset_node,
}


def dataset_state(path: Path) -> Facts:
    """A dataset service's state directory."""
    from gigaslice.roles.dataset_node.store.documents import read_metadata, read_record
    from gigaslice.roles.dataset_node.store.state_paths import StatePaths

    places = StatePaths(path)
    complete = [read_metadata(file) for file in sorted(places.objects.glob("*.json"))]
    partial = [read_metadata(file) for file in sorted(places.partial.glob("*.json"))]
    records = [read_record(file) for file in sorted(places.records.glob("*.json"))]
    return {
        "complete": {one.key: [*_metadata(one), places.image(one.key).stat().st_size] for one in complete},
        "partial": {one.key: _metadata(one) for one in partial},
        "volumes": {
            one.volume.id: [
                [one.volume.target, one.volume.pod_uid, one.volume.namespace, one.volume.pod],
                [[shown.key, shown.path, shown.directory, shown.name] for shown in one.volume_sources],
                one.created,
            ]
            for one in records
        },
    }


def _metadata(one: Any) -> list[Any]:
    return [one.size, one.source, one.files, one.bytes, one.listing, one.created, one.digest, one.requested]


KINDS: Mapping[str, Callable[[Path], Facts]] = {
    "node-state": node_state,
    "limits": limits_page,
    "ledger": ledger,
    "quotas": quotas,
    "texts": texts,
    "dataset-state": dataset_state,
}


def main() -> int:
    """Prints the facts as JSON, in the last line: what is opened may log."""
    kind, path = sys.argv[1:]
    json.dump(KINDS[kind](Path(path)), sys.stdout, sort_keys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
