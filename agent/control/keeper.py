"""Keeps the limits of running containers as they should be, and changes them when an administrator or a pod asks.

The book comes first, then the directory's record, then the page, each number of which is one atomic store: an agent
that is killed in between leaves a book that its successor carries out. Everything happens in the agent's own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import vcuda
from agent import units
from agent.discovery.source import Inventory
from agent.errors import GigasliceError
from agent.kube import Cluster
from agent.kubelet.allocator import Allocator
from agent.model import ContainerKind, Pod, SliceUnit, Wish, parse_wish
from agent.state import live
from agent.state.records import Book, Grant, GrantPolicy
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["Ask", "LimitKeeper", "Outcome"]

Present = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Ask:
    """A change of a running container. container, gpu: empty where there is only one. memory, cores: None to leave."""

    namespace: str
    pod: str
    container: str = ""
    gpu: str = ""
    memory: int | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done. before, after: the grant. used: bytes in use by card."""

    before: Grant
    after: Grant
    used: Mapping[str, int]


class LimitKeeper:
    """Writes the limits pages of STORE. WITHHOLD takes the tokens that the kubelet must not give out."""

    def __init__(
        self,
        store: Store,
        allocator: Allocator,
        cluster: Cluster,
        *,
        slice_bytes: int,
        interval: float,
        withhold: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._allocator = allocator
        self._cluster = cluster
        self._unit = SliceUnit(slice_bytes, units.parse_bytes)
        self._interval = interval
        self._withhold = withhold
        self._said: dict[str, str] = {}
        self._followed: dict[str, tuple[Pod, GrantPolicy]] = {}
        self._refreshed: Book | None = None
        self._wake = asyncio.Event()
        self._log = get_logger("limits")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            self._wake.clear()
            try:
                self.refresh()
                self._follow_annotations()
                await self._withhold(live.withheld(self._store.book, self._inventory.gpus, self._uncounted()))
            except GigasliceError as error:
                self._say("", "limits not kept", str(error))
            waits = {
                asyncio.create_task(self._wake.wait()),
                asyncio.create_task(self._cluster.news(self._interval)),
            }
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waits:
                    task.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    def _uncounted(self) -> frozenset[str]:
        """Grants that neither the kubelet nor the scheduler counts: forgotten by the one, and their pods are no more.

        The requests of a pod that the API server shows are subtracted by the scheduler, whatever the kubelet believes.
        """
        if not (self._cluster.expected and self._cluster.synced):
            return frozenset()
        found = set()
        for grant in self._store.book.grants:
            if grant.forgotten and grant.kept and grant.ref is not None:
                pod = self._cluster.pod(grant.ref.namespace, grant.ref.pod)
                same = pod is not None and (grant.owner is None or grant.owner.uid == pod.uid or pod.mirror)
                if pod is None or not same or pod.terminal:
                    found.add(grant.id)
        return frozenset(found)

    def refresh(self, *, every: bool = False) -> None:
        """Makes the pages say what follows from the book. EVERY: those too that nothing has ever changed."""
        self._refreshed = self._store.book
        grants = self._store.book.grants
        special = {one.id for one in grants if every or one.resizes or one.policy.elastic}
        if not special:
            return
        wanted = live.limits_now(self._store.book, self._inventory.gpus, self._present())
        for grant in grants:
            if grant.id not in special:
                continue
            try:
                changed = self._store.dirs.set_limits(grant.id, wanted[grant.id])
                if grant.physical:
                    now = {gpu: count for gpu, (count, *_) in wanted[grant.id].items()}
                    self._store.dirs.set_physical(
                        grant.id, live.physical_now(grant, self._inventory.gpus, now)
                    )
            except vcuda.VcudaError as error:
                self._say(grant.id, "limits not written", str(error), container=grant.name)
                continue
            self._said.pop(grant.id + "limits not written", None)
            if changed:
                now = {gpu: wanted[grant.id][gpu][0] for gpu in changed}
                self._log.info("limits changed", allocation=grant.id, container=grant.name, bytes=now)

    def changed(self) -> None:
        """The book may have changed: a container that was alone on its card is so no more, at once.

        Each container at the start gate says so ten times a second, and every ledger would be read for it.
        """
        if self._store.book is self._refreshed:
            return
        if any(grant.resizes or grant.policy.elastic for grant in self._store.book.grants):
            self.refresh()
            self._wake.set()

    def resize(self, ask: Ask) -> Outcome | live.Refusal:
        """Carries out what an administrator asks, all of it or nothing. Raises StorageError."""
        grant = self._find(ask)
        if isinstance(grant, live.Refusal):
            return grant
        if ask.memory is None and ask.cores is None:
            return live.Refusal("nothing to change; say --memory or --cores", mistake=True)
        cards = [ask.gpu] if ask.gpu else list(grant.quota())
        memory = dict.fromkeys(cards, ask.memory) if ask.memory is not None else {}
        cores = dict.fromkeys(cards, ask.cores) if ask.cores is not None else {}
        return self._change(grant, grant, memory, cores)

    def _change(
        self, before: Grant, grant: Grant, memory: Mapping[str, int], cores: Mapping[str, int]
    ) -> Outcome | live.Refusal:
        present = self._present()
        after = live.resized(
            self._store.book, grant, self._inventory.gpus, present, memory=memory, cores=cores
        )
        if isinstance(after, live.Refusal):
            return after
        quota = before.quota()
        grows = any(count > quota[gpu] for gpu, count in after.quota().items())
        if grows and (lack := self._allocator.host_lacks(after)):
            return live.Refusal(f"that needs {lack}")
        if after != before:
            if after.resizes == before.resizes:
                after = replace(after, resizes=before.resizes + 1)
            self._store.resize(after)
            self._log.info(
                "resized",
                allocation=after.id,
                container=after.name,
                before=before.quota(),
                after=after.quota(),
                cores={gpu: after.cores_of(gpu) for gpu in after.quota()},
            )
        self.refresh()
        self._wake.set()
        return Outcome(before, after, present.get(after.id, {}))

    def _find(self, ask: Ask) -> Grant | live.Refusal:
        named = f"{ask.namespace}/{ask.pod}"
        of_pod = [
            grant
            for grant in self._store.book.grants
            if grant.ref
            and (grant.ref.namespace, grant.ref.pod) == (ask.namespace, ask.pod)
            and grant.kept
            and not grant.whole
        ]
        if not of_pod:
            return live.Refusal(
                f"pod {named} holds no slices of this node; gigaslice status lists those that do",
                mistake=False,
            )
        names = sorted({grant.ref.container for grant in of_pod if grant.ref})
        found = [
            grant
            for grant in of_pod
            if not ask.container or (grant.ref and grant.ref.container == ask.container)
        ]
        if not found:
            return live.Refusal(
                f"pod {named} has no container {ask.container} with slices, but {', '.join(names)}"
            )
        if not ask.container and len(names) > 1:
            return live.Refusal(
                f"pod {named} has several containers with slices; say --container {'|'.join(names)}",
                mistake=True,
            )
        return _changeable(found[-1])

    def _follow_annotations(self) -> None:
        known = {grant.id for grant in self._store.book.grants}
        self._followed = {key: seen for key, seen in self._followed.items() if key in known}
        for grant in self._store.book.grants:
            if grant.ref is None or grant.undecided or grant.whole or not grant.kept:
                continue
            pod = self._cluster.pod(grant.ref.namespace, grant.ref.pod)
            if pod is None or (grant.owner and grant.owner.uid != pod.uid) or not _is_app(pod, grant):
                continue
            seen = self._followed.get(grant.id)
            if seen is not None and seen[0] is pod and seen[1] is grant.policy:
                continue  # nothing to follow in it, as before
            wish = parse_wish(pod.annotations, grant.ref.container, self._unit)
            if wish.mistakes:
                self._tell(pod, grant, "GigasliceAnnotation", "; ".join(wish.mistakes))
            else:
                self._follow(pod, grant, wish)

    def _follow(self, pod: Pod, grant: Grant, wish: Wish) -> None:
        """Brings GRANT into agreement with an annotation that was changed since it was last looked at."""
        policy = grant.policy
        # Whose its cards are alone, and whether it may use host memory, was decided when they were chosen.
        wanted = replace(GrantPolicy.of(wish), exclusive=policy.exclusive, oversubscribe=policy.oversubscribe)
        if wanted == policy:
            self._followed[grant.id] = (pod, policy)
            self._said.pop(grant.id + "GigasliceResize", None)
            return
        memory: dict[str, int] = {}
        if wish.parts != policy.parts:
            if wish.parts and len(wish.parts) != len(grant.holds):
                self._tell(
                    pod,
                    grant,
                    "GigasliceResize",
                    f"{len(wish.parts)} sizes for {len(grant.holds)} GPUs, whose number cannot change while it runs",
                )
                return
            memory = _sizes(grant, wish.parts, self._unit.size)
        cores = dict.fromkeys(grant.quota(), wish.cores) if wish.cores != policy.cores else {}
        kept = (
            grant if not cores else replace(grant, limits=tuple(replace(x, cores=None) for x in grant.limits))
        )
        refusal = live.resized(
            self._store.book, grant, self._inventory.gpus, self._present(), memory=memory, cores=cores
        )
        if isinstance(refusal, live.Refusal):
            self._tell(pod, grant, "GigasliceResize", refusal.detail)
            return
        done = self._change(grant, live.with_limits(replace(kept, policy=wanted), {}, {}), memory, {})
        if isinstance(done, live.Refusal):
            self._tell(pod, grant, "GigasliceResize", done.detail)
            return
        self._said.pop(grant.id + "GigasliceResize", None)
        if memory and done.before.quota() != done.after.quota():
            sizes = ", ".join(f"{units.format_bytes(n)} of {gpu}" for gpu, n in done.after.quota().items())
            self._event(pod, grant, "Normal", "GigasliceResized", f"now {sizes}")

    def _tell(self, pod: Pod, grant: Grant, reason: str, text: str) -> None:
        if self._said.get(grant.id + reason) != text:
            self._said[grant.id + reason] = text
            self._log.warning(
                "annotation not followed", allocation=grant.id, container=grant.name, detail=text
            )
        self._event(pod, grant, "Warning", reason, text)

    def _event(self, pod: Pod, grant: Grant, kind: str, reason: str, text: str) -> None:
        self._cluster.event(pod, kind, reason, text, grant.ref.container if grant.ref else "")

    def _say(self, grant_id: str, event: str, detail: str, **more: str) -> None:
        """Logs a problem when it begins, not every round."""
        if self._said.get(grant_id + event) != detail:
            self._said[grant_id + event] = detail
            self._log.error(event, allocation=grant_id, detail=detail, **more)

    def _present(self) -> Present:
        return {key: reading.present() for key, reading in self._store.readings().items()}

    @property
    def _inventory(self) -> Inventory:
        return self._allocator.inventory


def _changeable(grant: Grant) -> Grant | live.Refusal:
    if (grant.owner and grant.owner.init) or grant.lent:
        return live.Refusal(f"{grant.name} is an init container, whose slices others take over; change those")
    if grant.undecided:
        return live.Refusal(f"{grant.name} has not started yet; wait until its annotations are settled")
    return grant


def _is_app(pod: Pod, grant: Grant) -> bool:
    return any(
        one.name == grant.ref.container and one.kind is not ContainerKind.INIT
        for one in pod.containers
        if grant.ref
    )


def _sizes(grant: Grant, parts: tuple[int, ...], slice_bytes: int) -> dict[str, int]:
    """Bytes by card: the largest part for the card with the most; what was given where no part is named."""
    if not parts:
        return {hold.gpu: hold.memory_bytes for hold in grant.holds}
    quota = grant.quota()
    largest_first = sorted(quota, key=lambda gpu: -quota[gpu])
    return {
        gpu: part * slice_bytes for gpu, part in zip(largest_first, sorted(parts, reverse=True), strict=True)
    }
