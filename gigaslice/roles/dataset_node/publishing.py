# SPDX-License-Identifier: Apache-2.0
"""Tells the cluster what the cache of this node has: one DatasetNode object, written when it has changed.

At most once in five seconds, and while something is fetched once in thirty: the scheduler needs to know that a fetch
has begun, not how far it is. Without a change once in five minutes, with the time: an object whose time does not change
counts no more (`gigaslice.core.dataset.renewals`). By server-side apply, so that the object is made where there is
none, and one that another client has changed is put right. A cluster without the definition is asked again every five
minutes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from gigaslice.core.dataset.objects import (
    DATASET_NODES,
    GROUP,
    MOST_REQUESTED,
    VERSION,
    CachedDataset,
    DatasetNode,
    DatasetUse,
)
from gigaslice.core.dataset.renewals import RENEW_SECONDS
from gigaslice.kubeapi.client import APPLY_PATCH, NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.roles.dataset_node.store import DatasetStore, StoredDataset, VolumeRecord
from gigaslice.roles.dataset_node.tasks.dataset_uses import DatasetUses
from gigaslice.roles.dataset_node.tasks.threads import Threads
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["NodePublisher", "node_document"]

_SECONDS = 5.0
_PROGRESS_SECONDS = 30.0
_ABSENT_SECONDS = 300.0
_REQUEST_SECONDS = 10.0
_NO_TIME = ".status.renewTime: field not declared"
_RENEW_EARLIER = 0.2  # at most, as a share: not all nodes of a cluster at once
_MANAGER = {"fieldManager": "gigaslice-dataset", "force": "true"}


def node_document(
    node: str,
    stored: Iterable[StoredDataset],
    room: int,
    fetched: Mapping[str, int],
    uses: Mapping[str, tuple[DatasetUse, ...]] | None = None,
    *,
    texts: Callable[[str], Collection[str]] = lambda key: (),
) -> DatasetNode:
    """What is published of a cache.

    Args:
        node: The node's name.
        stored: What is in it.
        room: Bytes that are free for datasets.
        fetched: Bytes that have arrived, by key, of what is being fetched. A partial dataset that is not among them
            rests, and is nothing that a pod could count on.
        uses: The Datasets by which the copies were got, by key.
        texts: Returns the sources as pods have written them, by key.
    """
    datasets, used = [], 0
    for dataset in stored:
        metadata = dataset.metadata
        used += metadata.size
        if not dataset.complete and metadata.key not in fetched:
            continue
        datasets.append(
            CachedDataset(
                metadata.key,
                metadata.source,
                metadata.listing,
                metadata.size,
                "Ready" if dataset.complete else "Fetching",
                metadata.size if dataset.complete else fetched[metadata.key],
                bool(dataset.holders or dataset.waiting),
                float(int(dataset.last_used)),
                tuple(sorted({f"{pod.namespace}/{pod.pod}" for pod in dataset.holders})),
                (uses or {}).get(metadata.key, ()),
                tuple(
                    sorted({metadata.requested, *texts(metadata.key)} - {"", metadata.source})[
                        :MOST_REQUESTED
                    ]
                ),
            )
        )
    datasets.sort(key=lambda dataset: dataset.key)
    return DatasetNode(node, used + room, max(0, room), tuple(datasets))


class NodePublisher:
    """Keeps the DatasetNode of a node.

    Args:
        client: The API server.
        node: The node's name.
        store: The cache.
        fetched: Bytes that have arrived, by key, of what is being fetched now.
        uses: Says by which Datasets copies were got.
        threads: For the store.
        unix: Unix time.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        store: DatasetStore,
        fetched: Callable[[], Mapping[str, int]],
        *,
        uses: DatasetUses,
        threads: Threads,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self.writes = 0
        self._unix = unix
        self._renew_at = 0.0
        self._client = client
        self._node = node
        self._store = store
        self._fetched = fetched
        self._uses = uses
        self._threads = threads
        self._written: DatasetNode | None = None
        self._written_at = -_PROGRESS_SECONDS
        self._reported = LogOnce()
        self._log = get_logger("dataset")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(await self.step(time.monotonic()))

    async def step(self, now: float) -> float:
        """Writes what has changed. Returns the seconds until it is looked at again."""
        fetched = self._fetched()
        stored, room, records = await self._threads.run(self._read)
        uses = self._uses.shown(records, {dataset.metadata.key for dataset in stored})
        current = node_document(self._node, stored, room, fetched, uses, texts=self._uses.texts)
        if self._written is not None and not self._worth(current, now):
            return _SECONDS
        try:
            await self._write(current)
        except ApiFailure as failure:
            if self._reported.new("publish", str(failure)):
                self._log.warning("datasets not published", detail=str(failure))
            return _ABSENT_SECONDS if failure.status == NOT_FOUND else 2 * _SECONDS
        self._reported.over("publish")
        self._written, self._written_at = current, now
        self._renew_at = now + RENEW_SECONDS * (1 - random.uniform(0, _RENEW_EARLIER))
        self.writes += 1
        return _SECONDS

    async def _write(self, current: DatasetNode) -> None:
        """Writes it with the time; without, where the cluster has the definition of an older version."""
        path = object_path("apis", GROUP, VERSION, DATASET_NODES, self._node)
        for document in (replace(current, renewed=self._unix()), current):
            try:
                await self._client.request(
                    "PATCH", path, _MANAGER, document.document(), APPLY_PATCH, seconds=_REQUEST_SECONDS
                )
            except ApiFailure as failure:
                if not document.renewed or _NO_TIME not in str(failure):
                    raise
                if self._reported.new("time", str(failure)):
                    self._log.warning(
                        "datasets published without a time: apply the new definitions", detail=str(failure)
                    )
            else:
                return

    def _read(self) -> tuple[tuple[StoredDataset, ...], int, tuple[VolumeRecord, ...]]:
        return self._store.stored(), self._store.room(), tuple(self._store.records().values())

    def _worth(self, current: DatasetNode, now: float) -> bool:
        if now >= self._renew_at:
            return True
        if current == self._written:
            return False
        if _without_progress(current) != _without_progress(self._written):
            return True
        return now - self._written_at >= _PROGRESS_SECONDS


def _without_progress(node: DatasetNode | None) -> DatasetNode | None:
    """What does not change while a fetch goes on; the free bytes in steps, since others write to the disk, too."""
    if node is None:
        return None
    return replace(
        node,
        budget=node.budget >> 30,
        free=node.free >> 30,
        datasets=tuple(replace(dataset, fetched=0) for dataset in node.datasets),
    )
