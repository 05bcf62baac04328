# SPDX-License-Identifier: Apache-2.0
"""Which nodes have the datasets that a pod asks for, from the objects of the API. Pure: time is an argument.

A pod names a Dataset object or a source; a node says what its cache has by canonical source and listing digest, and by
which other texts pods have got that, whose Secrets say more about where the data are. Which
version a pod will get is known only where its Dataset pins one: else the newest complete version that any node has of
the source counts, as a change of the source is rarer than a pod.

A pod that was just bound will have its datasets fetched on its node, and the node says so some seconds later. Until
then the placement itself counts (`assume`), or the pods of one job, scheduled within a second, would scatter.

A node whose service was switched off says nothing any more. What it last said counts until it is stale
(`gigaslice.core.dataset.renewals`), and again with the first word of a service that comes back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gigaslice.core.dataset.affinity import (
    HeldDataset,
    NodeDatasets,
    RequestedDataset,
    bytes_share,
    normalised,
    paper_score,
)
from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.objects import DatasetNode, DatasetObject
from gigaslice.core.dataset.renewals import Renewals
from gigaslice.core.dataset.request import Mode, parse_attributes
from gigaslice.core.model import DATASET_DRIVER, Pod

__all__ = ["AFFINITIES", "DatasetIndex"]

AFFINITIES = ("bytes", "paper", "off")
_SILENT = NodeDatasets(free=1 << 62)
"""A node that has said nothing yet: what it would have to delete is not known."""
_ASSUMED_SECONDS = (
    120.0  # for a node to say that it fetches a dataset; longer than a full image pull delays the call
)


_STALE_PASS_SECONDS = 10.0  # between two passes over all nodes for those that are stale


class _Assumed(NamedTuple):
    node: str
    requested: tuple[RequestedDataset, ...]
    until: float


@dataclass(frozen=True, slots=True)
class _Version:
    """The newest complete version of a source. last_used: when it was used last, on any node."""

    digest: str
    bytes: int
    last_used: float


class DatasetIndex:
    """The datasets of all nodes.

    Args:
        affinity: One of `AFFINITIES`: which rule scores.
    """

    def __init__(self, affinity: str = "bytes") -> None:
        self.affinity = affinity
        self._objects: dict[str, DatasetObject] = {}
        self._nodes: dict[str, NodeDatasets] = {}
        self._where: defaultdict[str, set[str]] = defaultdict(set)  # nodes by source
        self._versions: dict[str, dict[str, _Version]] = {}  # by source and node
        self._assumed: dict[str, _Assumed] = {}  # by the pod's UID
        self._renewals = Renewals()
        self._stale_pass_at = 0.0

    def __len__(self) -> int:
        return len(self._nodes)

    def put_object(self, dataset: DatasetObject) -> None:
        """Takes a Dataset as it is now."""
        self._objects[str(dataset)] = dataset

    def drop_object(self, dataset: DatasetObject) -> None:
        """Takes a Dataset away."""
        self._objects.pop(str(dataset), None)

    def put_node(self, report: DatasetNode, now: float = 0.0, unix: float = 0.0) -> None:
        """Takes what a node says. NOW, UNIX: as for `gigaslice.core.dataset.renewals`."""
        self._leave_out(report.node)
        self._renewals.note(report.node, report.renewed, now, unix)
        if self._renewals.stale(report.node, now):
            return
        self._nodes[report.node] = report.for_scheduling()
        for cached in report.datasets:
            for source in cached.names:
                self._where[source].add(report.node)
                if cached.state == "Ready":
                    version = _Version(cached.digest, cached.bytes, cached.last_used)
                    newest = self._versions.setdefault(source, {}).get(report.node)
                    if newest is None or newest.last_used < version.last_used:
                        self._versions[source][report.node] = version

    def drop_node(self, report: DatasetNode) -> None:
        """Takes a node away."""
        self._leave_out(report.node)
        self._renewals.drop(report.node)

    def _leave_out(self, node: str) -> None:
        old = self._nodes.pop(node, None)
        for held in old.held if old is not None else ():
            nodes = self._where.get(held.name)
            if nodes is not None:
                nodes.discard(node)
                if not nodes:
                    del self._where[held.name]
            versions = self._versions.get(held.name)
            if versions is not None:
                versions.pop(node, None)
                if not versions:
                    del self._versions[held.name]

    def requested(self, pod: Pod, now: float = 0.0) -> tuple[RequestedDataset, ...] | None:
        """Returns the datasets that a pod wants from the cache; None where its volumes cannot be understood.

        A Dataset that there is none of, or that the pod may not name, is left out: the node's service refuses it with
        the sentence for the user, and no score can help.
        """
        self._forget_stale(now)
        datasets: dict[str, RequestedDataset] = {}
        for volume in pod.volumes_of(DATASET_DRIVER):
            try:
                request = parse_attributes(volume.attributes)
            except RequestError:
                return None
            if request.mode is Mode.LOCAL:
                continue
            for wanted in request.datasets:
                spec, digest = wanted.spec, ""
                if spec is None:
                    dataset = self._object(wanted.dataset, pod.namespace)
                    if dataset is None:
                        continue
                    spec, digest = dataset.source, dataset.digest if dataset.check == "pinned" else ""
                newest = self._newest(spec.canonical, digest)
                datasets[spec.canonical] = RequestedDataset(
                    spec.canonical,
                    digest or (newest.digest if newest else ""),
                    newest.bytes if newest else 0,
                )
        return tuple(datasets.values())

    def shares(self, requested: Sequence[RequestedDataset], now: float) -> Mapping[str, float]:
        """Returns by node, from 0 to 1, how much of a pod's datasets it has. Nodes that have nothing are left out."""
        self._forget(now)
        self._forget_stale(now)
        if self.affinity == "off" or not requested:
            return {}
        names = {dataset.name for dataset in requested}
        extra: defaultdict[str, list[HeldDataset]] = defaultdict(list)
        for assumption in self._assumed.values():
            for wanted in assumption.requested:
                if wanted.name in names:
                    extra[assumption.node].append(
                        HeldDataset(wanted.name, wanted.digest, wanted.bytes, fetching=True)
                    )
        reports: dict[str, NodeDatasets] = {}
        for node in set(extra).union(*(self._where.get(name, ()) for name in names)):
            report = self._nodes.get(node, _SILENT)
            reports[node] = NodeDatasets((*report.held, *extra.get(node, ())), report.free)
        if self.affinity == "paper":
            raw = normalised({node: paper_score(requested, report) for node, report in reports.items()})
            return {node: score / 100 for node, score in raw.items() if score}
        shares = {node: bytes_share(requested, report) for node, report in reports.items()}
        return {node: share for node, share in shares.items() if share > 0}

    def assume(self, uid: str, node: str, requested: Sequence[RequestedDataset], now: float) -> None:
        """Counts a pod's datasets as on their way to a node, until the node says so itself."""
        if requested:
            self._assumed[uid] = _Assumed(node, tuple(requested), now + _ASSUMED_SECONDS)

    def forget(self, uid: str) -> None:
        """Ends what `assume` began: the pod is gone or was not bound."""
        self._assumed.pop(uid, None)

    def _forget(self, now: float) -> None:
        for uid in [uid for uid, assumption in self._assumed.items() if assumption.until <= now]:
            del self._assumed[uid]

    def _forget_stale(self, now: float) -> None:
        if now < self._stale_pass_at:
            return
        self._stale_pass_at = now + _STALE_PASS_SECONDS
        for node in self._renewals.all_stale(now):
            self._leave_out(node)

    def _object(self, name: str, namespace: str) -> DatasetObject | None:
        where, slash, short = name.rpartition("/")
        candidate = self._objects.get(f"{where if slash else namespace}/{short}")
        return candidate if candidate is not None and candidate.allows(namespace) else None

    def _newest(self, source: str, digest: str) -> _Version | None:
        versions = [
            version for version in self._versions.get(source, {}).values() if digest in ("", version.digest)
        ]
        return max(versions, key=lambda version: (version.last_used, version.digest), default=None)
