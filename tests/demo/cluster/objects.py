# SPDX-License-Identifier: Apache-2.0
"""The API server's objects, as the demo follows and changes them: over HTTP, with an administrator's credentials.

Nothing here depends on which control plane it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.names import INVENTORY
from gigaslice.kubeapi.client import CONFLICT, NOT_FOUND, ApiFailure, KubeClient
from gigaslice.kubeapi.informer import Informer

Document = dict[str, Any]
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_OWN = "/apis/gigaslice.io/v1alpha1"


class Objects:
    """Nodes, pods, classes and what nodes have of datasets, as the watches have last shown them.

    pod_changed, pod_gone: called with a pod's document, in the event loop.
    """

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.pod_changed: Callable[[Document], None] = lambda document: None
        self.pod_gone: Callable[[Document], None] = lambda document: None
        self._pods = Informer(client, "/api/v1/pods", dict, self._pod_changed, self._pod_gone)
        self._nodes, self._classes, self._dataset_nodes = (
            Informer(client, path, dict, lambda document: None, lambda document: None, optional=True)
            for path in ("/api/v1/nodes", f"{_OWN}/resourceclasses", f"{_OWN}/datasetnodes")
        )

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[Objects]:
        """Begins when all that exists has been seen."""
        informers = (self._pods, self._nodes, self._classes, self._dataset_nodes)
        tasks = [asyncio.create_task(informer.run()) for informer in informers]
        try:
            await asyncio.gather(*(informer.synced.wait() for informer in informers))
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _pod_changed(self, document: Document) -> None:
        self.pod_changed(document)

    def _pod_gone(self, document: Document) -> None:
        self.pod_gone(document)

    # --- reading ------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Document:
        """A node; empty where there is none."""
        return self._nodes.get("", name) or {}

    def inventory_text(self, node: str) -> str:
        """What the agent of a node says of it; empty while it has said nothing."""
        metadata = self.node(node).get("metadata", {})
        return str(metadata.get("annotations", {}).get(INVENTORY, ""))

    def inventories(self) -> dict[str, NodeInventory]:
        """What the agents say of their nodes, by the nodes' names."""
        texts = {name: self.inventory_text(name) for _, name in self._nodes.objects}
        return {name: NodeInventory.decode(text) for name, text in texts.items() if text}

    def pod(self, namespace: str, name: str) -> Document:
        """A pod; empty where there is none."""
        return self._pods.get(namespace, name) or {}

    def class_names(self) -> list[str]:
        """The names of the ResourceClasses."""
        return [name for _, name in self._classes.objects]

    def dataset_node(self, node: str) -> Document:
        """What a node has of datasets; empty where it has said nothing."""
        return self._dataset_nodes.get("", node) or {}

    # --- writing ------------------------------------------------------------------------------------------------

    async def create(self, path: str, document: Document) -> Document:
        """Creates an object; one of that name that is there stays and is returned. Raises ApiFailure."""
        try:
            return await self.client.post(path, document)
        except ApiFailure as failure:
            if failure.status != CONFLICT:
                raise
            return await self.client.get(f"{path}/{document['metadata']['name']}")

    async def change(self, path: str, patch: Document) -> None:
        """Merges PATCH; nothing where there is no such object any more, or another one. Raises ApiFailure."""
        with _gone_is_well():
            await self.client.patch(path, patch, STRATEGIC_PATCH)

    async def delete(self, path: str, options: Document | None = None) -> None:
        """Deletes an object; nothing where there is no such object any more, or another one. Raises ApiFailure."""
        with _gone_is_well():
            await self.client.delete(path, options)


def status_of(phase: str, container: str) -> Document:
    """What a kubelet says of a pod of one container."""
    runs = phase == "Running"
    one = {"name": container, "image": "x", "imageID": "", "restartCount": 0, "ready": runs, "started": runs}
    if runs:
        one["state"] = {"running": {}}
    return {"phase": phase, "containerStatuses": [one]}


@contextlib.contextmanager
def _gone_is_well() -> Iterator[None]:
    try:
        yield
    except ApiFailure as failure:
        if failure.status not in (NOT_FOUND, CONFLICT):
            raise
