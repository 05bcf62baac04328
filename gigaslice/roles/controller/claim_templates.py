# SPDX-License-Identifier: Apache-2.0
"""Keeps the templates of claims that the webhook has made: makes a missing one again, and deletes what nobody names.

A pod names its templates and says in short what they are (`gigaslice.core.claims.templates`). So a template that is
missing when a pod names it is made again from the pod: somebody has deleted it, or we have just before the pod came.
A template that no pod has named for ten minutes is deleted: the webhook makes it again for the next pod. Only templates
with our label are deleted whose name is the hash of their spec, and by the version that was seen.

Every replica follows templates and pods, so that one that takes over has counted the time already; one that has just
started counts from then. Only the leader writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gigaslice.core.claims.templates import (
    CLAIMS,
    TEMPLATE_LABEL,
    ClaimTemplate,
    decode_templates,
    is_genuine,
    template_names,
)
from gigaslice.core.kube.fields import object_at, text_at
from gigaslice.core.model import Pod
from gigaslice.kubeapi.client import CONFLICT, NOT_FOUND, ApiFailure, KubeClient
from gigaslice.kubeapi.informer import Informer
from gigaslice.roles.controller.work_queue import RateLimit, WorkQueue
from gigaslice.roles.webhook.claim_admission import templates_path
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.tasks import all_of

__all__ = ["UNNAMED_SECONDS", "ClaimTemplates"]

UNNAMED_SECONDS = 600.0
_MISSING_SECONDS = 1.0  # in which the watch shows a template that was made just before its pod
_WORKERS = 4
_FORBIDDEN = 403
_PATH = "/apis/resource.k8s.io/v1/resourceclaimtemplates"

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class _Template:
    """A template as the API server shows it. genuine: its name is that of its spec."""

    namespace: str
    name: str
    uid: str
    version: str
    genuine: bool

    @property
    def key(self) -> Key:
        return self.namespace, self.name


class ClaimTemplates:
    """The templates of ours.

    Args:
        client: The API server.
        may_write: Whether this replica leads.
        limit: How fast may be written.
        tell: Reports a pod whose template cannot be made again: pod and sentence.
        on_write: Called for each write: "create" or "delete", and whether it succeeded.
        on_gone: Called with namespace and name of a template that is gone.
        unnamed_seconds: After which a template that no pod names is deleted.
        missing_seconds: After which one that a pod names is made again.
        pause: The first pause after a failure.
        absent_seconds: Until it is asked again whether the API server has claims.
        clock: Gives seconds that only grow.
    """

    def __init__(
        self,
        client: KubeClient,
        may_write: Callable[[], bool],
        limit: RateLimit,
        *,
        tell: Callable[[Pod, str], None] = lambda pod, sentence: None,
        on_write: Callable[[str, bool], None] = lambda kind, done: None,
        on_gone: Callable[[str, str], None] = lambda namespace, name: None,
        unnamed_seconds: float = UNNAMED_SECONDS,
        missing_seconds: float = _MISSING_SECONDS,
        pause: float = 0.25,
        absent_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._may_write = may_write
        self._limit = limit
        self._tell = tell
        self._on_write = on_write
        self._on_gone = on_gone
        self._unnamed_seconds = unnamed_seconds
        self._missing_seconds = missing_seconds
        self._clock = clock
        self._templates: dict[Key, _Template] = {}
        self._users: dict[Key, dict[str, Pod]] = {}
        self._named: dict[Key, float] = {}
        self._told: set[tuple[str, str]] = set()
        self._log = get_logger("controller")
        self.queue = WorkQueue[Key]("templates", self._pass, workers=_WORKERS, pause=pause, clock=clock)
        self.informer = Informer(
            client,
            _PATH,
            _parse,
            self._seen,
            self._gone,
            query={"labelSelector": f"{TEMPLATE_LABEL}=true"},
            optional=True,
            absent_seconds=absent_seconds,
            pause=pause,
        )

    async def run(self) -> None:
        """Works until cancelled."""
        await all_of(self.informer.run(), self._work())

    async def _work(self) -> None:
        """Nothing is missing and nothing unnamed before all of it has been seen."""
        await self.informer.synced.wait()
        self.queue_all()
        await self.queue.run()

    def queue_all(self) -> None:
        """Looks at every template anew: when this replica begins to lead."""
        for key in {*self._templates, *self._users}:
            self._look(key)

    def has(self, namespace: str, name: str) -> bool:
        """Whether a template is there, for the webhook, whose pod is about to name it."""
        template = self._templates.get((namespace, name))
        if template is None or not template.genuine:
            return False
        self._named[template.key] = self._clock()
        return True

    def unnamed(self, namespace: str, made: Collection[Key]) -> int:
        """How many templates of a namespace no pod names, which are deleted some time after.

        Args:
            namespace: Of the templates.
            made: Templates that were made just now; those that the watch has not shown yet count too.
        """
        seen = sum(
            key[0] == namespace and self._templates[key].genuine
            for key in self._templates.keys() - self._users.keys()
        )
        return seen + sum(key[0] == namespace and key not in self._templates for key in made)

    def pod_changed(self, pod: Pod, gone: bool) -> None:
        """Takes note of a pod that names templates of ours, and whether it is gone or has ended."""
        for name in template_names(pod):
            key = (pod.namespace, name)
            users = self._users.setdefault(key, {})
            if gone:
                users.pop(pod.uid, None)
                self._told.discard((pod.uid, name))
                if key in self._templates:
                    self._named[key] = self._clock()
            else:
                users[pod.uid] = pod
            if not users:
                del self._users[key]
            self._look(key)

    # --- templates ----------------------------------------------------------------------------------------------

    def _seen(self, template: _Template) -> None:
        self._templates[template.key] = template
        self._named.setdefault(template.key, self._clock())
        self._look(template.key)

    def _gone(self, template: _Template) -> None:
        self._templates.pop(template.key, None)
        self._named.pop(template.key, None)
        self._on_gone(*template.key)
        self._look(template.key)

    def _look(self, key: Key) -> None:
        """Queues a template where something may be due for it."""
        if not self._may_write():
            return
        if key not in self._templates:
            if key in self._users:
                self.queue.add(key, self._missing_seconds)
        elif key not in self._users:
            self.queue.add(key, max(0.0, self._left(key)))

    def _left(self, key: Key) -> float:
        """Seconds until a template has been unnamed for long enough."""
        return self._named.get(key, self._clock()) + self._unnamed_seconds - self._clock()

    async def _pass(self, key: Key) -> None:
        if not self._may_write():
            return
        template = self._templates.get(key)
        if template is None:
            await self._make(key)
        elif key not in self._users and template.genuine:
            left = self._left(key)
            if left > 0:
                self.queue.add(key, left)
            else:
                await self._delete(template)

    async def _make(self, key: Key) -> None:
        """Makes a template that pods name whose claims have not been made from it."""
        _, name = key
        waiting = [
            pod
            for pod in self._users.get(key, {}).values()
            if any(claim.template == name and not claim.claim for claim in pod.claims)
        ]
        template: ClaimTemplate | None = None
        for pod in waiting:
            template = template or _template_of(pod, name)
        if template is None:
            for pod in waiting:
                self._tell_once(pod, name)
            return
        await self._limit.take()
        try:
            await self._client.post(templates_path(key[0]), template.document(key[0]))
        except ApiFailure as failure:
            if failure.status == CONFLICT:
                return  # it is there
            self._on_write("create", False)
            if failure.status in (NOT_FOUND, _FORBIDDEN):
                self._log.warning("template not made", namespace=key[0], template=name, detail=str(failure))
            if failure.status == NOT_FOUND:
                return  # the namespace is gone
            raise
        self._on_write("create", True)
        self._log.info("missing template made again", namespace=key[0], template=name)

    async def _delete(self, template: _Template) -> None:
        await self._limit.take()
        if template.key in self._users or self._left(template.key) > 0:
            return  # named in the meantime
        conditions = {"uid": template.uid, "resourceVersion": template.version}
        try:
            await self._client.delete(templates_path(*template.key), {"preconditions": conditions})
        except ApiFailure as failure:
            if failure.status in (NOT_FOUND, CONFLICT):
                return  # the watch shows what it is now
            self._on_write("delete", False)
            raise
        self._on_write("delete", True)
        self._log.info(
            "template deleted that no pod names", namespace=template.namespace, template=template.name
        )

    def _tell_once(self, pod: Pod, name: str) -> None:
        if (pod.uid, name) in self._told:
            return
        self._told.add((pod.uid, name))
        self._tell(
            pod,
            f"the ResourceClaimTemplate {name} is gone, and the pod's annotation {CLAIMS} does not say what it was; "
            "delete the pod, so that it is made anew",
        )


def _parse(document: Mapping[str, Any]) -> _Template:
    metadata = object_at(document, "metadata")
    name = text_at(metadata, "name")
    return _Template(
        namespace=text_at(metadata, "namespace"),
        name=name,
        uid=text_at(metadata, "uid"),
        version=text_at(metadata, "resourceVersion"),
        genuine=is_genuine(name, object_at(document, "spec")),
    )


def _template_of(pod: Pod, name: str) -> ClaimTemplate | None:
    """What the pod says that the template of that name is; None where it says nothing that can be believed."""
    try:
        return decode_templates(pod.annotations.get(CLAIMS, "{}")).get(name)
    except ValueError:
        return None
