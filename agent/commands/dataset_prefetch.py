"""What `gigaslice dataset prefetch` does: one pod for each node, watched until the data are there, and deleted.

Everything is done with the rights of the user who runs it. The names of the pods are known before they are made, so
that a pod whose creation was not answered is deleted, too. A run that is killed leaves pods that the kubelet ends after
the same time (`activeDeadlineSeconds`); the next run in the namespace deletes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agent.commands.cluster import Target, listed
from agent.commands.prefetch_nodes import ChosenNodes, NodeChoice, choose_nodes
from gigaslice.dataset.errors import RequestError
from gigaslice.dataset.objects import parse_dataset_node
from gigaslice.dataset.prefetch import (
    MANAGED_BY,
    MANAGER,
    RUN_LABEL,
    UNTIL,
    Prefetched,
    PrefetchPod,
    judge,
    pod_manifest,
)
from gigaslice.dataset.request import VolumeRequest, parse_attributes
from gigaslice.errors import ConfigError, GigasliceError
from gigaslice.kube.fields import object_at, objects_at, text_at
from gigaslice.kubeapi.client import CONFLICT, NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.kubeapi.cluster_objects import NODES_PATH, node_facts
from gigaslice.kubeapi.dataset_paths import DATASET_NODES_PATH
from gigaslice.text import plain

__all__ = ["PrefetchOrder", "PrefetchOutcome", "PrefetchProgress", "chosen", "order_of", "prefetch"]

_POLL_SECONDS = 1.0
_TELL_SECONDS = 5.0  # between two readings of events and progress
_SPARE_SECONDS = 60  # that a pod may live longer than the run that made it
_ABANDONED_SECONDS = 600  # after which no run waits for it: clocks differ
_MOST_DIGITS = 20  # of such a time
_TOLD = ("DatasetFetching", "DatasetNotReady", "DatasetReady", "FailedMount", "FailedCreatePodSandBox")
_VAGUE = "Unable to attach or mount volumes"  # follows what says why
_DENIED = (401, 403)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PrefetchOrder:
    """What the user asks for.

    Attributes:
        namespace: Of the pods.
        attributes: Of their volume.
        request: The same, parsed.
        choice: The nodes.
        secret, image, tolerated: As in `PrefetchPod`.
        seconds: How long is waited.
        parallel: How many nodes fetch at a time.
        keep: The pods stay.
    """

    namespace: str
    attributes: Mapping[str, str]
    request: VolumeRequest
    choice: NodeChoice
    secret: str
    image: str
    tolerated: tuple[str, ...]
    seconds: float
    parallel: int
    keep: bool = False

    def pod(self) -> PrefetchPod:
        """The pods of a new run."""
        seconds = int(self.seconds) + _SPARE_SECONDS
        return PrefetchPod(
            self.namespace,
            self.attributes,
            secrets.token_hex(4),
            seconds,
            int(time.time()) + seconds,
            self.secret,
            self.image,
            self.tolerated,
        )


@dataclass(frozen=True, slots=True)
class PrefetchOutcome:
    """What became of one node."""

    node: str
    done: bool
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefetchProgress:
    """How far a run is. told: what nodes that are waited for say, by name."""

    total: int
    ended: tuple[PrefetchOutcome, ...]
    told: Mapping[str, str]
    share: float


def order_of(name: str, options: str) -> tuple[dict[str, str], VolumeRequest]:
    """The volume's attributes for NAME, a source or the names of Dataset objects. Raises ConfigError."""
    source = "://" in name or name.startswith(("/", "rclone:"))
    attributes = {"source" if source else "dataset": name, **({"options": options} if options else {})}
    if options and not source:
        raise ConfigError(["--options goes with a source; a Dataset has its own (kubectl edit dataset)"])
    try:
        return attributes, parse_attributes(attributes)
    except RequestError as error:
        raise ConfigError([str(error)]) from None


def chosen(where: Target, order: PrefetchOrder) -> ChosenNodes:
    """The nodes that ORDER stands for now. Raises GigasliceError."""
    return _with_client(
        where, lambda client: choose_nodes(client, order.namespace, order.request, order.choice)
    )


def prefetch(
    where: Target, order: PrefetchOrder, nodes: ChosenNodes, show: Callable[[PrefetchProgress], None]
) -> tuple[PrefetchOutcome, ...]:
    """Fetches to NODES, and calls SHOW as it goes on. SIGINT and SIGTERM delete the pods, too.

    Raises:
        GigasliceError: Pods may not be made or listed; the text says which rights that takes.
        KeyboardInterrupt: It was ended from outside.
    """
    try:
        return _with_client(
            where, lambda client: PrefetchRun(client, order, nodes, show).work(), signals=True
        )
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _with_client(where: Target, work: Callable[[KubeClient], Awaitable[T]], *, signals: bool = False) -> T:
    async def run() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if signals and task is not None:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, task.cancel)
        async with KubeClient(where.access, "gigaslice-cli") as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except ApiFailure as failure:
        raise GigasliceError(f"{failure} ({where.whence})") from failure


class PrefetchRun:
    """One run over nodes. Use `work` once."""

    def __init__(
        self,
        client: KubeClient,
        order: PrefetchOrder,
        nodes: ChosenNodes,
        show: Callable[[PrefetchProgress], None],
    ) -> None:
        self._client = client
        self._order = order
        self._pod = order.pod()
        self._sources = nodes.sources
        self._pods = object_path("api", "v1", "namespaces", order.namespace, "pods")
        self._show = show
        self._begun = time.monotonic()
        self._queue = list(nodes.names)
        self._waiting: dict[str, float] = {}  # since when, by node
        self._ended = {name: PrefetchOutcome(name, False, why) for name, why in (nodes.refused or {}).items()}
        self._total = len(self._queue) + len(self._ended)
        self._left: set[str] = set()  # nodes whose pod may be there
        self._told: dict[str, str] = {}
        self._shares: dict[str, float] = {}
        self._told_at = 0.0
        self._unreadable: set[str] = set()  # what may not be read, and is not asked for again

    async def work(self) -> tuple[PrefetchOutcome, ...]:
        """Returns what became of every node."""
        await self._clean_up()
        try:
            while self._queue or self._waiting:
                await self._begin()
                self._tell()
                left = self._begun + self._order.seconds - time.monotonic()
                if left <= 0:
                    self._give_up()
                    break
                await asyncio.sleep(min(_POLL_SECONDS, left))
                await self._poll()
            self._tell()
        finally:
            if not self._order.keep:
                await asyncio.gather(*map(self._delete, list(self._left)))
        return tuple(self._ended.values())

    async def _begin(self) -> None:
        """Makes pods, as many as may fetch at a time."""
        while self._queue and len(self._waiting) < self._order.parallel:
            node = self._queue.pop(0)
            self._left.add(node)
            try:
                await self._client.post(self._pods, pod_manifest(self._pod, node))
            except ApiFailure as failure:
                if failure.status in _DENIED and 'cannot create resource "pods"' in str(failure):
                    self._left.discard(node)
                    raise GigasliceError(
                        f"{failure}; a prefetch makes pods: it takes the rights to create, list and delete pods in "
                        f"namespace {self._order.namespace}"
                    ) from None
                if failure.status == 0 or failure.status >= 429:
                    self._queue.insert(0, node)  # it may have been made: then the next attempt tells
                    self._told[node] = str(failure)
                    return
                if failure.status != CONFLICT:
                    self._left.discard(node)
                    self._end(node, False, _refused(failure))
                    continue
            self._waiting[node] = time.monotonic()

    async def _poll(self) -> None:
        query = {"labelSelector": f"{RUN_LABEL}={self._pod.run}"}
        try:
            answer = await self._client.request("GET", self._pods, query)
            pods = objects_at(answer.document(), "items")
        except ApiFailure as failure:
            if failure.status in _DENIED:
                raise GigasliceError(
                    f"{failure}; a prefetch watches its pods: it takes the right to list pods"
                ) from None
            self._told["API server"] = str(failure)
            return
        self._told.pop("API server", None)
        found = {text_at(object_at(one, "metadata"), "name"): one for one in pods}
        for node in list(self._waiting):
            document = found.get(self._pod.name(node))
            if document is None:
                self._left.discard(node)
                self._end(node, False, "its pod is gone: it was deleted, or the node has left the cluster")
                continue
            told = judge(document)
            if told.state is Prefetched.WAITING:
                if told.text:
                    self._told[node] = told.text
                continue
            text = "; ".join(filter(None, (told.text, self._told.get(node, ""))))
            self._end(node, told.state is Prefetched.DONE, "" if told.state is Prefetched.DONE else text)
            if not self._order.keep:
                await self._delete(node)
        if time.monotonic() - self._told_at >= _TELL_SECONDS:
            self._told_at = time.monotonic()
            await asyncio.gather(*(self._read(node) for node in self._waiting))

    async def _read(self, node: str) -> None:
        """Reads what events say on a pod, whether its node is there, and how much of the data it has."""
        path = object_path("api", "v1", "namespaces", self._order.namespace, "events")
        query = {"fieldSelector": f"involvedObject.name={self._pod.name(node)}"}
        events = await self._optional("events", path, query)
        if events is not None and (text := _newest(events.get("items"))):
            self._told[node] = text
        document = await self._optional("nodes", NODES_PATH + object_path(node), {})
        with contextlib.suppress(ValueError):
            if document is not None and not node_facts(document).ready:
                self._told[node] = "the node is not Ready any more; kubectl describe node says why"
        if not self._sources:
            return
        cache = await self._optional("datasetnodes", DATASET_NODES_PATH + object_path(node), {})
        if cache is None:
            return
        with contextlib.suppress(ValueError):
            there = [one for one in parse_dataset_node(cache).datasets if {*self._sources} & {*one.names}]
            size = sum(one.bytes for one in there)
            if size:
                self._shares[node] = min(1.0, sum(one.fetched for one in there) / size)

    async def _optional(self, what: str, path: str, query: Mapping[str, str]) -> dict[str, Any] | None:
        if what in self._unreadable:
            return None
        try:
            return await self._client.get(path, query)
        except ApiFailure as failure:
            if failure.status in _DENIED:
                self._unreadable.add(what)
            return None

    def _end(self, node: str, done: bool, text: str = "") -> None:
        seconds = time.monotonic() - self._waiting.pop(node, time.monotonic())
        self._told.pop(node, None)
        self._ended[node] = PrefetchOutcome(node, done, text, seconds)

    def _give_up(self) -> None:
        for node in [*self._waiting, *self._queue]:
            text = self._told.get(node, "")
            self._end(
                node, False, f"not there after {self._order.seconds:g} s" + (f": {text}" if text else "")
            )
        self._queue.clear()

    def _tell(self) -> None:
        part = sum(self._shares.get(node, 0.0) for node in self._waiting)
        share = (len(self._ended) + part) / self._total if self._total else 1.0
        self._show(PrefetchProgress(self._total, tuple(self._ended.values()), dict(self._told), share))

    async def _delete(self, node: str) -> None:
        try:
            await self._client.delete(self._pods + object_path(self._pod.name(node)))
        except ApiFailure as failure:
            if failure.status != NOT_FOUND:
                return  # it ends by itself, and the next run deletes it
        self._left.discard(node)

    async def _clean_up(self) -> None:
        """Deletes the pods of earlier runs that were killed."""
        with contextlib.suppress(ApiFailure):
            async for one in listed(self._client, self._pods, {"labelSelector": f"{MANAGED_BY}={MANAGER}"}):
                metadata = object_at(one, "metadata")
                until = text_at(object_at(metadata, "annotations"), UNTIL)
                if (
                    until.isdecimal()
                    and len(until) <= _MOST_DIGITS
                    and int(until) + _ABANDONED_SECONDS < time.time()
                ):
                    only = {"preconditions": {"uid": metadata.get("uid")}}
                    with contextlib.suppress(ApiFailure):
                        await self._client.delete(self._pods + object_path(text_at(metadata, "name")), only)


def _refused(failure: ApiFailure) -> str:
    """What to say of a pod that the API server refuses."""
    text = str(failure)
    if "exceeded quota" in text:
        return f"a quota of the namespace refuses the pod: {text}"
    if "violates PodSecurity" in text:
        return f"the namespace's Pod Security refuses the pod: {text}"
    return f"the API server refuses the pod: {text}"


def _newest(items: object) -> str:
    """The newest event that tells how far a pod's data are, without what the kubelet puts before it."""
    told = [
        (_time(one), str(one["message"]))
        for one in (items if isinstance(items, list) else ())
        if isinstance(one, dict)
        and text_at(one, "reason") in _TOLD
        and _VAGUE not in str(one.setdefault("message", ""))
    ]
    return plain(max(told)[1].rpartition(" desc = ")[2]) if told else ""


def _time(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")
