# SPDX-License-Identifier: Apache-2.0
"""Finds the nodes that a dataset is prefetched to: read once, with the user's own rights, and only read.

Who may not list something gets what can be had without it, and a sentence about that: with the names of nodes nothing
of the cluster has to be read.
"""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gigaslice.cluster_commands.cluster import listed
from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.objects import DRIVER, DatasetNode, parse_dataset, parse_dataset_node
from gigaslice.core.dataset.prefetch import NodeCandidate, choose
from gigaslice.core.dataset.renewals import is_stale
from gigaslice.core.dataset.request import VolumeRequest
from gigaslice.core.errors import GigasliceError
from gigaslice.core.kube.fields import object_at, objects_at, text_at
from gigaslice.core.text import plain
from gigaslice.kubeapi.client import NOT_FOUND, ApiFailure, KubeClient
from gigaslice.kubeapi.cluster_objects import NODES_PATH, node_facts
from gigaslice.kubeapi.dataset_paths import DATASET_NODES_PATH, DATASETS_PATH, dataset_path

__all__ = ["ChosenNodes", "NodeChoice", "choose_nodes"]

_CSI_NODES_PATH = "/apis/storage.k8s.io/v1/csinodes"
_FORBIDDEN = 403

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """Which nodes are asked for: those of NAMES, or COUNT (None: all) of those with the labels of SELECTOR."""

    names: tuple[str, ...] = ()
    selector: str = ""
    count: int | None = None


@dataclass(frozen=True, slots=True)
class ChosenNodes:
    """What was found.

    Attributes:
        names: The nodes, in the order in which they are served.
        holders: Those of them that have the dataset already, as far as is known.
        refused: What was asked for by name and cannot be, with why.
        notes: What is to be known about the choice, a sentence each.
    """

    names: tuple[str, ...]
    holders: frozenset[str] = frozenset()
    refused: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()


async def choose_nodes(
    client: KubeClient, namespace: str, request: VolumeRequest, choice: NodeChoice
) -> ChosenNodes:
    """Chooses the nodes for a volume's datasets.

    Raises:
        GigasliceError: A Dataset does not exist, or no node can be found; the text says what to do.
    """
    notes: list[str] = []
    sources, documents, drivers, caches = await asyncio.gather(
        _sources(client, namespace, request, notes),
        _all(client, NODES_PATH, {"labelSelector": choice.selector} if choice.selector else {}),
        _all(client, _CSI_NODES_PATH),
        _all(client, DATASET_NODES_PATH),
    )
    holders = _holders(caches, sources)
    with_driver = _with_driver(drivers, caches)
    if with_driver is None:
        notes.append("which nodes have the dataset service cannot be read with these credentials")
    if documents is None:
        if not choice.names:
            raise GigasliceError("nodes cannot be listed with these credentials; name some with --nodes a,b")
        notes.append("nodes cannot be listed with these credentials, so they are taken as named")
        candidates = {name: NodeCandidate(name) for name in choice.names}
    else:
        facts = filter(None, (_parsed(node_facts, document) for document in documents))
        candidates = {node.name: NodeCandidate(node.name, node.ready, node.schedulable) for node in facts}
    candidates = {
        name: replace(candidate, driver=with_driver is None or name in with_driver, holds=name in holders)
        for name, candidate in candidates.items()
    }
    if choice.names:
        refused = {name: _refusal(name, candidates) for name in choice.names}
        names = tuple(name for name in dict.fromkeys(choice.names) if not refused[name])
        refused = {name: why for name, why in refused.items() if why}
    else:
        names, refused = choose(_key(namespace, request), list(candidates.values()), choice.count), {}
        _check_number(names, candidates, choice, notes)
    return ChosenNodes(names, frozenset(holders & set(names)), refused, tuple(notes))


def _key(namespace: str, request: VolumeRequest) -> str:
    """What names the datasets of a volume, for the order of the nodes: the same in all namespaces that may name it."""
    return ",".join(
        dataset.spec.canonical if dataset.spec is not None else _full(namespace, dataset.dataset)
        for dataset in request.datasets
    )


def _full(namespace: str, name: str) -> str:
    return name if "/" in name else f"{namespace}/{name}"


def _check_number(
    names: Sequence[str], candidates: Mapping[str, NodeCandidate], choice: NodeChoice, notes: list[str]
) -> None:
    """Refuses an empty choice, and notes one that is smaller than what was asked for."""
    why = [f"{candidate.name}: {candidate.problem}" for candidate in candidates.values() if candidate.problem]
    if not names:
        if not candidates:
            what = (
                f"no node has the labels {choice.selector}" if choice.selector else "the cluster has no nodes"
            )
            raise GigasliceError(f"{plain(what)}; kubectl get nodes --show-labels")
        raise GigasliceError(f"none of {len(candidates)} nodes can be used: {'; '.join(why[:5])}")
    if choice.count is not None and len(names) < choice.count:
        notes.append(
            f"only {len(names)} of {choice.count} nodes can be used"
            + "".join(f"; {problem}" for problem in why[:5])
        )


def _refusal(name: str, candidates: Mapping[str, NodeCandidate]) -> str:
    if name in candidates:
        return candidates[name].problem
    near = difflib.get_close_matches(name, candidates, n=1)
    return "there is no such node" + (f'; did you mean "{near[0]}"?' if near else "; kubectl get nodes")


async def _sources(
    client: KubeClient, namespace: str, request: VolumeRequest, notes: list[str]
) -> tuple[str, ...]:
    """The canonical sources of all datasets; those that cannot be read are left out. Raises GigasliceError for none."""
    sources: list[str] = []
    for dataset in request.datasets:
        if dataset.spec is not None:
            sources.append(dataset.spec.canonical)
            continue
        home, _, name = _full(namespace, dataset.dataset).partition("/")
        try:
            document = await client.get(dataset_path(home, name))
        except ApiFailure as failure:
            if failure.status == NOT_FOUND:
                raise GigasliceError(await _no_dataset(client, home, name)) from None
            if failure.status != _FORBIDDEN:
                raise
            notes.append(
                f"Dataset {home}/{name} cannot be read with these credentials; its pods may still name it"
            )
            continue
        try:
            parsed = parse_dataset(document)
        except RequestError as error:
            raise GigasliceError(str(error)) from None
        if not parsed.allows(namespace):
            raise GigasliceError(
                f"Dataset {parsed} is not for pods of namespace {namespace}; add it to allowedNamespaces, "
                f"or use -n {home}"
            )
        sources.append(parsed.source.canonical)
    return tuple(sources)


async def _no_dataset(client: KubeClient, namespace: str, name: str) -> str:
    there = [
        (str(document["metadata"].get("namespace")), str(document["metadata"].get("name")))
        for document in await _all(client, DATASETS_PATH) or ()
        if isinstance(document.get("metadata"), dict)
    ]
    elsewhere = sorted(space for space, dataset in there if dataset == name)
    near = difflib.get_close_matches(name, [dataset for space, dataset in there if space == namespace], n=1)
    hint = "create it, or name a source such as s3://bucket/prefix"
    if near:
        hint = f'did you mean "{near[0]}"?'
    elif elsewhere:
        hint = f"there is one in namespace {elsewhere[0]}: write -n {elsewhere[0]}, or {elsewhere[0]}/{name}"
    return plain(f"there is no Dataset {namespace}/{name}; {hint}")


def _holders(caches: Sequence[Mapping[str, Any]] | None, sources: Sequence[str]) -> set[str]:
    """The nodes that have, or are fetching, all of SOURCES."""
    nodes = _kept_up(caches or ())
    return {node.node for node in nodes if sources and set(sources) <= _on(node)}


def _kept_up(caches: Sequence[Mapping[str, Any]]) -> list[DatasetNode]:
    """What services say that are there still."""
    nodes = filter(None, (_parsed(parse_dataset_node, document) for document in caches))
    return [node for node in nodes if not is_stale(node.renewed, time.time())]


def _on(node: DatasetNode) -> set[str]:
    return {name for dataset in node.datasets for name in dataset.names}


def _with_driver(
    drivers: Sequence[Mapping[str, Any]] | None, caches: Sequence[Mapping[str, Any]] | None
) -> set[str] | None:
    """The nodes whose kubelets know the driver; None where that cannot be read."""
    if drivers is not None:
        return {
            text_at(object_at(csi_node, "metadata"), "name")
            for csi_node in drivers
            if any(
                entry.get("name") == DRIVER for entry in objects_at(object_at(csi_node, "spec"), "drivers")
            )
        }
    if caches is not None:
        return {node.node for node in _kept_up(caches)}
    return None


async def _all(
    client: KubeClient, path: str, query: Mapping[str, str] | None = None
) -> list[Mapping[str, Any]] | None:
    """All objects of a list; None where they may not be listed, or there is no such kind."""
    try:
        return [document async for document in listed(client, path, query or {})]
    except ApiFailure as failure:
        if failure.status in (_FORBIDDEN, NOT_FOUND):
            return None
        raise


def _parsed(parse: Callable[[Mapping[str, Any]], T], document: Mapping[str, Any]) -> T | None:
    try:
        return parse(document)
    except ValueError:
        return None
