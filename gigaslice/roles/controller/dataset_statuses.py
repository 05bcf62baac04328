# SPDX-License-Identifier: Apache-2.0
"""The status of every Dataset: which nodes have it, who uses it, or why it is invalid.

Nodes say what their caches have in one DatasetNode each; a Dataset's status is their sum, written by the leader when it
has changed. A version is told by the source alone, since a Dataset does not know what its source holds now: the newest
version that any node has complete is the one that counts. The holders are shown so that the author of a Dataset finds
the pods that still use it.

Only what pods have got by the name of the Dataset counts. A user may write any source into a Dataset of their own: were
copies of that source shown which other tenants have, that would tell who has what. A version that the status has shown
before stays shown while nodes have it, as long as the Dataset has not been changed.

A DatasetNode whose node is gone is deleted: its service cannot, and the scheduler would go on counting what it had. So
is one that has not been renewed for a day, since its service was switched off; after a quarter of an hour it counts no
more (`gigaslice.core.dataset.renewals`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.objects import DatasetNode, DatasetObject, parse_dataset, parse_dataset_node
from gigaslice.core.dataset.renewals import DELETE_SECONDS, Renewals
from gigaslice.core.kube.fields import text_at
from gigaslice.kubeapi.client import CONFLICT, MERGE_PATCH, NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.kubeapi.cluster_objects import NODES_PATH
from gigaslice.kubeapi.dataset_paths import DATASET_NODES_PATH, DATASETS_PATH, dataset_path
from gigaslice.kubeapi.informer import Informer
from gigaslice.roles.controller.object_plan import StoredObject, plan_status, stored
from gigaslice.roles.controller.work_queue import RateLimit
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of

__all__ = ["DatasetStatuses", "WatchedDataset", "dataset_status"]

_SECONDS = 5.0
_LEFT_SECONDS = 60.0  # between two passes over what nodes that are gone have left
_MOST_NODE_NAMES = 16
_MOST_HOLDERS = 64


@dataclass(frozen=True, slots=True)
class WatchedDataset:
    """A Dataset as the API server shows it. dataset: None where it is invalid; mistake: why."""

    namespace: str
    present: StoredObject
    dataset: DatasetObject | None
    mistake: str = ""


def dataset_status(watched: WatchedDataset, nodes: Iterable[DatasetNode]) -> dict[str, Any]:
    """Returns the status of a Dataset from what the nodes say."""
    status: dict[str, Any] = {"observedGeneration": watched.present.generation}
    if watched.dataset is None:
        return {**status, "phase": "Invalid", "reason": watched.mistake[:1024]}
    source, pinned = (
        watched.dataset.source.canonical,
        watched.dataset.digest if watched.dataset.check == "pinned" else "",
    )
    every = [
        (node.node, cached)
        for node in nodes
        for cached in node.datasets
        if source in cached.names and pinned in ("", cached.digest)
    ]
    uses = [(cached.digest, use) for _, cached in every if (use := cached.used_by(str(watched.dataset)))]
    digests = {digest for digest, _ in uses}
    if watched.present.status.get("observedGeneration") == watched.present.generation:
        digests |= {digest for digest in (text_at(watched.present.status, "digest"),) if digest}
    relevant = [(node, cached) for node, cached in every if cached.digest in digests]
    holders = sorted({pod for _, use in uses for pod in use.pods})
    complete = [(node, cached) for node, cached in relevant if cached.state == "Ready"]
    fetching = [cached for _, cached in relevant if cached.state != "Ready"]
    newest = max(
        (cached for _, cached in complete), key=lambda cached: (cached.last_used, cached.digest), default=None
    )
    if newest is not None:
        names = sorted(node for node, cached in complete if cached.digest == newest.digest)
        status |= {
            "phase": "Ready",
            "digest": newest.digest,
            "bytes": newest.bytes,
            "nodes": len(names),
            "nodeNames": names[:_MOST_NODE_NAMES],
        }
    elif fetching:
        furthest = max(fetching, key=lambda cached: cached.fetched)
        status |= {"phase": "Fetching", "bytes": furthest.bytes, "fetchedBytes": furthest.fetched, "nodes": 0}
    else:
        status |= {"phase": "Absent", "nodes": 0}
    return {**status, "pods": len(holders), "holders": holders[:_MOST_HOLDERS]}


class DatasetStatuses:
    """Keeps the statuses.

    Args:
        client: The API server.
        may_write: Whether this replica leads.
        limit: How fast may be written.
        pause: The first pause after a failure of a watch.
        absent_seconds: Until it is asked again whether a definition that was not installed is.
        seconds: Between two passes over what has changed.
        nodes: Returns the names of all nodes; None while they are not known.
        clock: Steady time.
        unix: Unix time.
    """

    def __init__(
        self,
        client: KubeClient,
        may_write: Callable[[], bool],
        limit: RateLimit,
        *,
        pause: float = 0.25,
        absent_seconds: float = 15.0,
        seconds: float = _SECONDS,
        nodes: Callable[[], Collection[str] | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self.writes = 0
        self._client = client
        self._may_write = may_write
        self._limit = limit
        self._seconds = seconds
        self._node_names = nodes
        self._clock = clock
        self._unix = unix
        self._renewals = Renewals()
        self._stale: frozenset[str] = frozenset()
        self._datasets: dict[tuple[str, str], WatchedDataset] = {}
        self._nodes: dict[str, DatasetNode] = {}
        self._changed = False
        self._led = False
        self._reported = LogOnce()
        self._log = get_logger("controller")
        self._dataset_watch = Informer(
            client,
            DATASETS_PATH,
            _parse,
            self._put,
            self._drop,
            optional=True,
            absent_seconds=absent_seconds,
            pause=pause,
        )
        self._node_watch = Informer(
            client,
            DATASET_NODES_PATH,
            parse_dataset_node,
            self._put_node,
            self._drop_node,
            optional=True,
            absent_seconds=absent_seconds,
            pause=pause,
        )

    async def run(self) -> None:
        """Works until cancelled."""
        await all_of(self._dataset_watch.run(), self._node_watch.run(), self._keep())

    async def _keep(self) -> None:
        for informer in (self._dataset_watch, self._node_watch):
            await informer.synced.wait()
        left_at = 0.0
        while True:
            leads = self._may_write()
            self.note_stale()
            if leads and (self._changed or not self._led):
                self._changed = False
                self._led = await self._write_all()
            elif not leads:
                self._led = False
            if leads and time.monotonic() - left_at >= _LEFT_SECONDS:
                left_at = time.monotonic()
                await self.delete_left()
            await asyncio.sleep(self._seconds)

    def note_stale(self) -> None:
        """Notes which nodes do not count any more, or count again."""
        stale = frozenset(self._renewals.all_stale(self._clock()))
        if stale != self._stale:
            self._stale, self._changed = stale, True

    async def _write_all(self) -> bool:
        """Writes what differs. Returns whether all of it was written."""
        done = True
        fresh = [node for name, node in self._nodes.items() if name not in self._stale]
        for watched in list(self._datasets.values()):
            status = dataset_status(watched, fresh)
            for write in plan_status(watched.present.name, status, watched.present):
                if not self._may_write():
                    return False
                await self._limit.take()
                path = dataset_path(watched.namespace, watched.present.name) + "/status"
                try:
                    await self._client.patch(path, write.body, MERGE_PATCH)
                except ApiFailure as failure:
                    done = False
                    passing = failure.status in (CONFLICT, NOT_FOUND)
                    if not passing and self._reported.new("status", str(failure)):
                        self._log.warning("status of a dataset not written", detail=str(failure))
                else:
                    self.writes += 1
                    self._reported.over("status")
        return done

    async def delete_left(self) -> None:
        """Deletes the DatasetNodes of nodes and of services that are gone, by what the API server says of each."""
        now = self._clock()
        for name in sorted(self._stale):
            if self._renewals.unchanged(name, now) > DELETE_SECONDS and self._may_write():
                await self._delete_stale(name)
        nodes = self._node_names()
        for name in [] if nodes is None else sorted(set(self._nodes) - set(nodes)):
            if not self._may_write():
                return
            await self._limit.take()
            try:
                await self._client.get(f"{NODES_PATH}{object_path(name)}")
            except ApiFailure as failure:
                if failure.status != NOT_FOUND:
                    continue
            else:
                continue
            try:
                await self._client.delete(f"{DATASET_NODES_PATH}{object_path(name)}")
            except ApiFailure as failure:
                if failure.status != NOT_FOUND and self._reported.new("left", str(failure)):
                    self._log.warning("datasets of a gone node not deleted", node=name, detail=str(failure))
            else:
                self._log.info("datasets of a gone node deleted", node=name)

    async def _delete_stale(self, name: str) -> None:
        path = f"{DATASET_NODES_PATH}{object_path(name)}"
        await self._limit.take()
        try:
            document = await self._client.get(path)
            stale = self._nodes.get(name)
            if stale is None or parse_dataset_node(document).renewed != stale.renewed:
                return  # its service is back, and the watch is behind
            metadata = document["metadata"]
            read = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            await self._client.delete(path, {"preconditions": read})
        except ApiFailure as failure:
            passing = failure.status in (CONFLICT, NOT_FOUND)
            if not passing and self._reported.new("left", str(failure)):
                self._log.warning("datasets of a gone service not deleted", node=name, detail=str(failure))
        else:
            self._log.info("datasets of a gone service deleted", node=name)

    def _put(self, watched: WatchedDataset) -> None:
        self._datasets[watched.namespace, watched.present.name] = watched
        self._changed = True

    def _drop(self, watched: WatchedDataset) -> None:
        self._datasets.pop((watched.namespace, watched.present.name), None)

    def _put_node(self, node: DatasetNode) -> None:
        self._nodes[node.node] = node
        self._renewals.note(node.node, node.renewed, self._clock(), self._unix())
        self._changed = True

    def _drop_node(self, node: DatasetNode) -> None:
        self._nodes.pop(node.node, None)
        self._renewals.drop(node.node)
        self._changed = True


def _parse(document: Mapping[str, Any]) -> WatchedDataset:
    """Reads a Dataset. Raises ValueError for what is no object."""
    present = stored(document)
    namespace = document["metadata"].get("namespace")
    if not isinstance(namespace, str):
        raise ValueError("a Dataset without a namespace")
    try:
        return WatchedDataset(namespace, present, parse_dataset(document))
    except RequestError as error:
        return WatchedDataset(namespace, present, None, str(error))
