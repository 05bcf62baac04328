# SPDX-License-Identifier: Apache-2.0
"""The cluster as it is now, for the commands that show it: read once from the API server, and only read.

Three lists, asked for at the same time and answered from the API server's memory (version 0): nodes, pods that have not
ended, classes. What the user may not read is left out, and said.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gigaslice.core.classes.resource_class import ClassError, parse_resource_class
from gigaslice.core.cluster.demand import asks_for_gpus
from gigaslice.core.cluster.names import GROUP, RESOURCE_CLASSES
from gigaslice.core.cluster.offered_units import offered_units
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.errors import ConfigError, GigasliceError
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.kube.fields import object_at, objects_at, text_at
from gigaslice.core.model import AnnotationRights, Pod
from gigaslice.core.text import plain, plural
from gigaslice.kubeapi.access import Access, access_of, find_access
from gigaslice.kubeapi.client import NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.kubeapi.cluster_objects import (
    CLASSES_PATH,
    NODES_PATH,
    PODS_PATH,
    PODS_QUERY,
    node_facts,
    unread_gpu_pod,
)
from gigaslice.kubeapi.kubeconfig import kubeconfig_files, read_kubeconfig
from gigaslice.role_settings import kubernetes_service
from gigaslice.runtime.progress import StepProgress

__all__ = [
    "ClusterContent",
    "Target",
    "content_of",
    "listed",
    "no_such_pod",
    "read_cluster",
    "read_pod",
    "target",
    "with_client",
]

_FORBIDDEN, _UNAUTHORIZED = 403, 401
_MOST_BYTES = 1 << 30
_SECONDS = 60.0
_PAGE = "500"


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster is asked, and the namespace where none is named."""

    access: Access
    whence: str
    namespace: str = "default"


@dataclass(slots=True)
class ClusterContent:
    """What was read. pods: those that ask for GPUs or have some, by UID; names: of all pods, by UID. notes: what is
    missing, one sentence each.
    """

    state: ClusterState
    pods: dict[str, Pod] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def target(
    kubeconfig: str, context: str, server: str, environment: Mapping[str, str], home: Path | None = None
) -> Target:
    """Finds the cluster as kubectl does: the flags, $KUBECONFIG, ~/.kube/config, and inside a pod its service account.

    Raises:
        ConfigError: There is none, or it cannot be used.
    """
    if server:
        return Target(_of_server(server), f"--server {server}")
    variable = environment.get("KUBECONFIG", "")
    files = kubeconfig_files(kubeconfig, variable, home or _home())
    if files is not None:
        document = read_kubeconfig(files)
        return Target(access_of(document, context), f"kubeconfig {files}", document.namespace(context))
    access, whence = find_access(None, kubernetes_service(environment))
    if access is None:
        rest = (
            f'none of the files of $KUBECONFIG "{variable}" is there'
            if variable
            else "no $KUBECONFIG and no ~/.kube/config"
        )
        raise ConfigError([f"no cluster: {whence}, {rest}; name one of them"])
    return Target(access, whence)


def _home() -> Path:
    """The user's directory; "/", as container runtimes have it, for a user that has no entry in /etc/passwd."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def _of_server(server: str) -> Access:
    url = urlsplit(server if "//" in server else f"//{server}")
    try:
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if url.scheme not in ("", "http") or not host or url.username:
        raise ConfigError(
            [
                "--server must look like http://127.0.0.1:8001, as `kubectl proxy` offers it; for TLS use a kubeconfig"
            ]
        )
    return Access(host, port or 80, tls=False, prefix=url.path.rstrip("/"))


def with_client(where: Target, work: Callable[[KubeClient], Any]) -> Any:
    """Runs WORK, which takes a client and returns an awaitable; its errors say what the user can do."""

    async def run() -> Any:
        async with KubeClient(where.access, "gigaslice-cli", answer=_SECONDS) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except ApiFailure as error:
        raise GigasliceError(_sentence(error, where)) from error


def content_of(
    where: Target, rights: AnnotationRights | None = None, *, selector: str = ""
) -> ClusterContent:
    """Reads all of the cluster WHERE, as `read_cluster` does, and shows how far that is where it takes long."""
    with StepProgress("reading the cluster") as progress:

        async def read(client: KubeClient) -> ClusterContent:
            return await read_cluster(client, rights, selector=selector, progress=progress)

        content: ClusterContent = with_client(where, read)
    return content


def _sentence(error: ApiFailure, where: Target) -> str:
    if error.status == _UNAUTHORIZED:
        return f"{where.access} does not accept the credentials of {where.whence}; log in again"
    if error.status == _FORBIDDEN:
        return f"{error}; the command needs get and list of nodes, pods and {RESOURCE_CLASSES}.{GROUP}"
    return f"{error} ({where.whence})" if error.status == 0 else str(error)


async def read_cluster(
    client: KubeClient,
    rights: AnnotationRights | None = None,
    *,
    selector: str = "",
    progress: StepProgress | None = None,
) -> ClusterContent:
    """Reads all of it. Raises ApiFailure where not even nodes may be read.

    RIGHTS: which annotations of pods count; None: those that the agents say. SELECTOR: by labels, of the nodes that are
    meant; the API server judges it. PROGRESS is told how many objects were read.
    """
    content, reading = ClusterContent(ClusterState()), _Reading(client, progress)
    await asyncio.gather(
        _nodes(reading, content, selector), _pods(reading, content), _classes(reading, content)
    )
    state = content.state
    units = offered_units(filter(None, map(state.hardware, state.nodes)))
    state.units = replace(units, rights=rights or state.agents_rights())
    content.pods = {uid: pod for uid, pod in content.pods.items() if asks_for_gpus(pod, state.units)}
    for pod in content.pods.values():  # when classes are known: pods without an assignment are placed by them
        state.put_pod(pod)
    return content


class _Reading:
    """The lists that are read at the same time, and how many objects there were by now."""

    def __init__(self, client: KubeClient, progress: StepProgress | None) -> None:
        self._client = client
        self._progress = progress
        self._objects = 0

    async def listed(self, path: str, query: Mapping[str, str]) -> Any:
        """Yields the objects of a list."""
        async for document in listed(self._client, path, query):
            self._objects += 1
            if self._progress is not None:
                self._progress.show("reading the cluster:", self._objects, form=_objects)
            yield document


def _objects(count: int) -> str:
    return plural(count, "object")


async def _nodes(reading: _Reading, content: ClusterContent, selector: str) -> None:
    async for document in reading.listed(NODES_PATH, {"labelSelector": selector} if selector else {}):
        try:
            facts = node_facts(document)
        except ValueError as error:
            content.notes.append(plain(f"node {_name(document)} cannot be read: {error}"))
            continue
        content.state.put_node(facts)


async def _pods(reading: _Reading, content: ClusterContent) -> None:
    try:
        async for document in reading.listed(PODS_PATH, PODS_QUERY):
            try:
                pod = parse_pod(document)
            except ValueError as error:
                unread = unread_gpu_pod(document)
                if unread is not None:
                    content.state.put_pod(unread)
                    content.notes.append(
                        plain(f"pod {unread} cannot be read, so node {unread.node} gets nothing new: {error}")
                    )
                continue
            content.names[pod.uid] = str(pod)
            if any(container.requests for container in pod.containers):
                content.pods[pod.uid] = pod
    except ApiFailure as error:
        _unless_forbidden(error, content, "pods may not be listed, so what is free is what agents say")


async def _classes(reading: _Reading, content: ClusterContent) -> None:
    try:
        async for document in reading.listed(CLASSES_PATH, {}):
            try:
                content.state.put_class(parse_resource_class(document))
            except ClassError as error:
                content.notes.append(plain(f"class {_name(document)} cannot be used: {error}"))
    except ApiFailure as error:
        if error.status != NOT_FOUND:  # not installed: no classes
            _unless_forbidden(
                error, content, "classes may not be listed, so those that pods name seem unknown"
            )


def _name(document: Mapping[str, Any]) -> str:
    return text_at(object_at(document, "metadata"), "name")


def _unless_forbidden(error: ApiFailure, content: ClusterContent, note: str) -> None:
    if error.status != _FORBIDDEN:
        raise error
    content.notes.append(note)


async def listed(client: KubeClient, path: str, query: Mapping[str, str]) -> Any:
    """Yields the objects of a list, page by page where the server makes pages."""
    more = ""
    while True:
        page = {"continue": more} if more else {"resourceVersion": "0"}
        answer = await client.request("GET", path, {**query, **page, "limit": _PAGE}, most=_MOST_BYTES)
        document = answer.document()
        for item in objects_at(document, "items"):
            yield item
        more = text_at(object_at(document, "metadata"), "continue")
        if not more:
            return


async def read_pod(client: KubeClient, namespace: str, name: str) -> Pod | None:
    """Reads one pod; None where there is none of that name."""
    try:
        return parse_pod(await client.get(object_path("api", "v1", "namespaces", namespace, "pods", name)))
    except ApiFailure as error:
        if error.status == NOT_FOUND:
            return None
        raise
    except ValueError as error:
        raise GigasliceError(f"pod {namespace}/{name} makes no sense: {error}") from None


async def no_such_pod(client: KubeClient, content: ClusterContent, namespace: str, name: str) -> str:
    """What to say where there is no pod of a name: that a quota refuses it, or which one may be meant."""
    path = object_path("api", "v1", "namespaces", namespace, "events")
    try:
        events = [event async for event in listed(client, path, {"fieldSelector": "reason=FailedCreate"})]
    except ApiFailure:
        events = []
    for event in reversed(events):
        message, owner = text_at(event, "message"), text_at(object_at(event, "involvedObject"), "name")
        if "exceeded quota" in message and owner and (name == owner or name.startswith(f"{owner}-")):
            return plain(f"there is no pod {namespace}/{name}: a quota refuses it. {message}")
    here = [
        full_name.partition("/")[2]
        for full_name in content.names.values()
        if full_name.startswith(f"{namespace}/")
    ]
    elsewhere = sorted(full_name for full_name in content.names.values() if full_name.endswith(f"/{name}"))
    if elsewhere:
        space = elsewhere[0].partition("/")[0]
        return plain(
            f"there is no pod {namespace}/{name}; there is one in namespace {space}: write -n {space}"
        )
    near = (
        difflib.get_close_matches(name, here, n=1)
        or [full_name for full_name in here if full_name.startswith(name)][:1]
    )
    return plain(f"there is no pod {namespace}/{name}" + (f'; did you mean "{near[0]}"?' if near else ""))
