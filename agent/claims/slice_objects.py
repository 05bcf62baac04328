# SPDX-License-Identifier: Apache-2.0
"""This node's slices as the API server has them, and the requests that change them.

What they should be is decided elsewhere. A state that a request was answered with counts until the watch shows a later
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agent.claims.stored_slice import StoredSlice, slice_change_reader, slice_list_reader
from gigaslice.core.claims.names import DRIVER
from gigaslice.core.claims.slices import pool_specs
from gigaslice.core.kube.fields import object_at, text_at
from gigaslice.kubeapi.client import CONFLICT, NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.kubeapi.documents import AnswerDecoder
from gigaslice.kubeapi.informer import Informer

__all__ = ["SliceObjects"]

_API_VERSION = "resource.k8s.io/v1"
_PATH = object_path("apis", "resource.k8s.io", "v1", "resourceslices")


class SliceObjects:
    """The slices of NODE at CLIENT. CHANGED is called when others have changed them."""

    def __init__(self, client: KubeClient, node: str, changed: Callable[[], None], **informer: Any) -> None:
        """Initializes the list; nothing is asked before `run`. INFORMER: its times."""
        self._client = client
        self._node = node
        self._changed = changed
        self._stored: dict[str, StoredSlice] = {}
        self._generation = 0
        self._informer = Informer(
            client,
            _PATH,
            StoredSlice.parse,
            self._is_shown,
            self._is_gone,
            on_list=self._listed,
            query={"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={node}"},
            optional=True,
            decoder=AnswerDecoder(slice_list_reader, slice_change_reader),
            **informer,
        )

    async def run(self) -> None:
        """Follows them until cancelled."""
        await self._informer.run()

    async def seen(self) -> None:
        """Returns once they have been listed."""
        await self._informer.synced.wait()

    async def refresh(self) -> None:
        """Has them listed anew; returns once that is done."""
        await self._informer.refresh()

    @property
    def refusal(self) -> str:
        """Why the API server does not show them; empty where it does."""
        return self._informer.refusal

    @property
    def present(self) -> bool:
        """Whether there are any."""
        return bool(self._stored)

    @property
    def whole(self) -> bool:
        """Whether all are of one write."""
        return len({stored.generation for stored in self._stored.values()}) == 1

    @property
    def specs(self) -> dict[str, Mapping[str, Any]]:
        """What they say, by name."""
        return {name: stored.spec for name, stored in self._stored.items()}

    @property
    def devices(self) -> list[Mapping[str, Any]]:
        """Their devices, in the order of the names."""
        return [device for name in sorted(self._stored) for device in self._stored[name].devices]

    # --- requests ---------------------------------------------------------------------------------------------

    async def tried(self, devices: Sequence[Mapping[str, Any]]) -> list[StoredSlice]:
        """What the server would make of slices of these devices. Changes nothing. Raises ApiFailure."""
        specs = self._next_specs(devices)
        return [await self._send(name, spec, dry_run=True) for name, spec in specs.items()]

    async def write(self, devices: Sequence[Mapping[str, Any]]) -> list[StoredSlice]:
        """Writes slices of these devices, and deletes those beyond; what the server has made of them.

        Raises ApiFailure.
        """
        specs = self._next_specs(devices)
        answers = []
        for name, spec in specs.items():
            answers.append(await self._send(name, spec))
            self._stored[name] = answers[-1]
            self._generation = max(self._generation, answers[-1].generation)
        await self._delete([name for name in self._stored if name not in specs])
        return answers

    async def delete(self) -> None:
        """Deletes them all. Raises ApiFailure."""
        await self._delete(tuple(self._stored))

    def _next_specs(self, devices: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The specs of slices by name, with a higher generation than any before."""
        generations = [stored.generation for stored in self._stored.values()]
        return pool_specs(self._node, devices, max([self._generation, *generations]) + 1)

    async def _send(self, name: str, spec: Mapping[str, Any], *, dry_run: bool = False) -> StoredSlice:
        """Makes or replaces a slice; returns what the server has made of it. Raises ApiFailure."""
        stored = self._stored.get(name)
        metadata = stored.metadata if stored is not None else await self._metadata(name)
        body = {"apiVersion": _API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        method, path = ("POST", _PATH) if stored is None else ("PUT", f"{_PATH}{object_path(name)}")
        query = {"dryRun": "All"} if dry_run else None
        try:
            answer = await self._client.request(method, path, query, body, patient=False)
        except ApiFailure as failure:
            if failure.status == CONFLICT or (failure.status == NOT_FOUND and stored is not None):
                await self._look_at(name)
            raise
        try:
            return StoredSlice.parse(answer.document())
        except ValueError as error:
            raise ApiFailure(f"answer to {method} {path}: {error}", answer.status) from None

    async def _metadata(self, name: str) -> dict[str, Any]:
        """That of a new slice: it goes with its node."""
        node = await self._client.request("GET", object_path("api", "v1", "nodes", self._node), patient=False)
        uid = text_at(object_at(node.document(), "metadata"), "uid")
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}
        return {"name": name, "ownerReferences": [owner]}

    async def _look_at(self, name: str) -> None:
        """Has a slice as it is now: the watch has not shown it yet."""
        try:
            answer = await self._client.request("GET", f"{_PATH}{object_path(name)}", patient=False)
            self._stored[name] = StoredSlice.parse(answer.document())
        except ApiFailure as failure:
            if failure.status != NOT_FOUND:
                raise
            self._stored.pop(name, None)
        except ValueError as error:
            raise ApiFailure(f"slice {name}: {error}", 200) from None

    async def _delete(self, names: Iterable[str]) -> None:
        """Deletes slices of this node. Raises ApiFailure."""
        for name in names:
            stored = self._stored[name]
            self._generation = max(self._generation, stored.generation)
            options = {"preconditions": {"uid": stored.uid}}
            try:
                await self._client.request(
                    "DELETE", f"{_PATH}{object_path(name)}", body=options, patient=False
                )
            except ApiFailure as failure:
                if failure.status not in (NOT_FOUND, CONFLICT):
                    raise
            self._stored.pop(name, None)

    # --- what the watch shows ---------------------------------------------------------------------------------

    def _is_shown(self, stored: StoredSlice) -> None:
        """Takes a state that the watch shows, unless an answer to a write was a later one."""
        own = self._stored.get(stored.name)
        if own is None or not own.newer_than(stored):
            self._stored[stored.name] = stored
            self._changed()

    def _is_gone(self, stored: StoredSlice) -> None:
        own = self._stored.get(stored.name)
        if own is not None and own.uid == stored.uid:
            del self._stored[stored.name]
            self._changed()

    def _listed(self) -> None:
        """What a list lacks is gone, or was made meanwhile; making it again then finds it."""
        present = {stored.name: stored for stored in self._informer.values}
        lost = self._stored.keys() - present.keys()
        for name in lost:
            del self._stored[name]
        if lost:
            self._changed()
