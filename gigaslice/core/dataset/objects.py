# SPDX-License-Identifier: Apache-2.0
"""The API objects of datasets as values: `Dataset`, which a user writes, and `DatasetNode`, which a node writes. Pure.

A Dataset gives a source a name in a namespace, so that pods need not repeat it. A DatasetNode says what the cache of a
node has. It is no annotation of the Node: every change of a Node wakes all schedulers and kubelets, and annotations end
at 256 KiB. Its one writer is the dataset service of that node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from gigaslice.core.dataset.affinity import HeldDataset, NodeDatasets
from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.core.kube.fields import object_at, objects_at, strings_at, text_at
from gigaslice.core.text import plain

__all__ = [
    "CHECKS",
    "DATASETS",
    "DATASET_NODES",
    "DRIVER",
    "GROUP",
    "MOST_REQUESTED",
    "VERSION",
    "CachedDataset",
    "DatasetNode",
    "DatasetObject",
    "DatasetUse",
    "may_be_named",
    "parse_dataset",
    "parse_dataset_node",
]

GROUP = "gigaslice.io"
VERSION = "v1alpha1"
DATASETS = "datasets"
DATASET_NODES = "datasetnodes"
DRIVER = "dataset.gigaslice.io"
"""The name of the CSI driver, as pods write it."""

CHECKS = ("listing", "pinned", "never")
"""How a pod's request is compared with the copy on the node. listing: the source is listed with the pod's credentials.
pinned: the same, and it must be the version of `digest`. never: any complete copy. The last two for Dataset objects
only, and in namespaces that the service was told to trust a copy on the node is given without a listing."""

MOST_REQUESTED = 8
"""Texts by which pods may have got a copy, that are shown."""

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_MOST_SHOWN = 2000  # datasets of one DatasetNode: etcd takes 1.5 MiB


@dataclass(frozen=True, slots=True)
class DatasetObject:
    """A `Dataset`.

    Attributes:
        namespace: Its namespace.
        name: Its name: what pods write as `dataset`.
        uid: Its UID.
        source: Where it comes from.
        check: See `CHECKS`.
        digest: Of the listing of the pinned version, 64 hexadecimal digits.
        allowed: Other namespaces whose pods may name it; "*": all.
    """

    namespace: str
    name: str
    uid: str
    source: SourceSpec
    check: str = "listing"
    digest: str = ""
    allowed: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def allows(self, namespace: str) -> bool:
        """Whether pods of a namespace may name it."""
        return _names(self.namespace, self.allowed, namespace)


@dataclass(frozen=True, slots=True)
class DatasetUse:
    """A Dataset by whose name pods have got a copy. name: "namespace/name". pods: those that have it now."""

    name: str
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CachedDataset:
    """One dataset in the cache of a node.

    Attributes:
        key: See `gigaslice.core.dataset.source_spec.dataset_key`.
        source: Its canonical source.
        digest: Of its listing.
        bytes: Of the image.
        state: "Ready" or "Fetching".
        fetched: Bytes that have arrived.
        in_use: Pods on the node have it.
        last_used: Unix time of the end of the last use.
        pods: The pods that have it, as "namespace/name".
        uses: The Datasets by which it was got. A Dataset's status tells of no other copies: who writes one must not
            learn by it what other tenants have.
        requested: The sources as pods or Datasets have written them, where those are others: a Secret may say more
            about where the data are, such as the endpoint, and that is a part of `source`.
    """

    key: str
    source: str
    digest: str
    bytes: int
    state: str = "Ready"
    fetched: int = 0
    in_use: bool = False
    last_used: float = 0.0
    pods: tuple[str, ...] = ()
    uses: tuple[DatasetUse, ...] = ()
    requested: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All sources that it may be asked for by."""
        return (self.source, *(source for source in self.requested if source != self.source))

    def used_by(self, name: str) -> DatasetUse | None:
        """The use by the Dataset NAME; None where there is none."""
        return next((use for use in self.uses if use.name == name), None)


@dataclass(frozen=True, slots=True)
class DatasetNode:
    """What the dataset service of one node says.

    free: bytes that a new dataset finds without deleting another. renewed: Unix time of the service when it was
    written; 0: a service of an older version does not tell. See `gigaslice.core.dataset.renewals`.
    """

    node: str
    budget: int = 0
    free: int = 0
    datasets: tuple[CachedDataset, ...] = ()
    renewed: float = 0.0

    def document(self) -> dict[str, Any]:
        """The object for the API. Of too many datasets the longest unused are left out."""
        shown = sorted(
            self.datasets, key=lambda dataset: (not dataset.in_use, -dataset.last_used, dataset.key)
        )[:_MOST_SHOWN]
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "DatasetNode",
            "metadata": {"name": self.node},
            "status": {
                "budgetBytes": self.budget,
                "freeBytes": self.free,
                **({"renewTime": _time_text(self.renewed)} if self.renewed else {}),
                "datasets": [
                    _cached_document(dataset) for dataset in sorted(shown, key=lambda dataset: dataset.key)
                ],
            },
        }

    def for_scheduling(self) -> NodeDatasets:
        """The same for the affinity score."""
        held = (
            HeldDataset(
                name, dataset.digest, dataset.bytes, dataset.in_use, fetching=dataset.state != "Ready"
            )
            for dataset in self.datasets
            for name in dataset.names
        )
        return NodeDatasets(tuple(held), self.free)


def parse_dataset(document: Mapping[str, Any]) -> DatasetObject:
    """Reads a `Dataset`.

    Raises:
        RequestError: What the schema of the API cannot refuse, such as a source that is none, with what to write.
    """
    metadata, spec = object_at(document, "metadata"), object_at(document, "spec")
    namespace, name, uid = (text_at(metadata, field) for field in ("namespace", "name", "uid"))
    if not namespace or not name:
        raise RequestError("a Dataset needs a name and a namespace")
    who = f"Dataset {namespace}/{name}"
    try:
        source = SourceSpec.parse(text_at(spec, "source"), _texts(spec, "options"))
    except RequestError as error:
        raise RequestError(f"{who}: {error}") from None
    check = text_at(spec, "check") or "listing"
    if check not in CHECKS:
        raise RequestError(
            f'{who}: check is "{plain(check)[:80]}"; write {", ".join(CHECKS[:-1])} or {CHECKS[-1]}'
        )
    digest = _digest(who, spec, "digest")
    if check == "pinned" and not digest:
        raise RequestError(
            f"{who}: check: pinned needs the digest of the version; it is in the object's status"
        )
    return DatasetObject(
        namespace,
        name,
        uid,
        source,
        check,
        digest,
        frozenset(strings_at(spec, "allowedNamespaces")),
    )


def may_be_named(document: Mapping[str, Any], home: str, namespace: str) -> bool:
    """Whether pods of NAMESPACE may name a `Dataset` of the namespace HOME, be it valid or not.

    Its mistakes are a secret of its namespace as much as its contents.
    """
    allowed = strings_at(object_at(document, "spec"), "allowedNamespaces")
    return _names(home, allowed, namespace)


def _names(home: str, allowed: Collection[str], namespace: str) -> bool:
    return namespace == home or namespace in allowed or "*" in allowed


def parse_dataset_node(document: Mapping[str, Any]) -> DatasetNode:
    """Reads a `DatasetNode`. Entries that cannot be understood are left out. Raises ValueError for what is none."""
    name = text_at(object_at(document, "metadata"), "name")
    if not name:
        raise ValueError("a DatasetNode has no name")
    status = object_at(document, "status")
    entries = status.get("datasets")
    datasets = tuple(_cached(entry) for entry in (entries if isinstance(entries, list) else ()))
    budget, free = _whole(status, "budgetBytes"), _whole(status, "freeBytes")
    renewed = _unix_time(text_at(status, "renewTime"))
    return DatasetNode(
        name, budget, free, tuple(dataset for dataset in datasets if dataset is not None), renewed
    )


def _cached(entry: object) -> CachedDataset | None:
    if not isinstance(entry, dict):
        return None
    key, source = text_at(entry, "key"), text_at(entry, "source")
    if not key or not source:
        return None
    return CachedDataset(
        key,
        source,
        text_at(entry, "digest"),
        _whole(entry, "bytes"),
        text_at(entry, "state") or "Ready",
        _whole(entry, "fetchedBytes"),
        entry.get("inUse") is True,
        float(_whole(entry, "lastUsed")),
        strings_at(entry, "pods"),
        tuple(_use(use) for use in objects_at(entry, "uses")),
        strings_at(entry, "requestedSources")[:MOST_REQUESTED],
    )


def _use(entry: Mapping[str, Any]) -> DatasetUse:
    return DatasetUse(text_at(entry, "name"), strings_at(entry, "pods"))


def _cached_document(dataset: CachedDataset) -> dict[str, Any]:
    return {
        "key": dataset.key,
        "source": dataset.source,
        "digest": dataset.digest,
        "bytes": dataset.bytes,
        "state": dataset.state,
        "fetchedBytes": dataset.fetched,
        "inUse": dataset.in_use,
        "lastUsed": int(dataset.last_used),
        "pods": list(dataset.pods),
        "uses": [{"name": use.name, "pods": list(use.pods)} for use in dataset.uses],
        **({"requestedSources": list(dataset.requested)} if dataset.requested else {}),
    }


def _digest(who: str, spec: Mapping[str, Any], field_name: str) -> str:
    digest = text_at(spec, field_name).lower()
    if digest and (len(digest) != 64 or not set(digest) <= set("0123456789abcdef")):
        raise RequestError(f"{who}: {field_name} has 64 hexadecimal digits")
    return digest


def _time_text(unix: float) -> str:
    return datetime.fromtimestamp(unix, timezone.utc).strftime(_TIME)


def _unix_time(text: str) -> float:
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _texts(document: Mapping[str, Any], key: str) -> dict[str, str]:
    return {name: value for name, value in object_at(document, key).items() if isinstance(value, str)}


def _whole(document: Mapping[str, Any], key: str) -> int:
    number = document.get(key)
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else 0
