"""Which container an Allocate is for: the kubelet's list, the watched pods and the book, put together. Pure.

The kubelet admits one pod at a time, container by container, init containers first. At each Allocate its pod-resources
list already shows the pod that is being admitted, without devices for the container in question. So it is the one pod
whose next container, in the order of admission, asks for just as many devices and has none yet. Plain init containers
are never listed; that they have theirs is known from the book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent.model import ContainerKind, Pod, PodContainer
from agent.state.lifetime import Listed
from agent.state.records import Book, Grant, Owner

__all__ = ["Admitted", "Ended", "ListedPod", "Verdict", "identify", "owner_of"]

Lookup = Callable[[str, str], "Pod | None"]


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod of the kubelet's list: its listed containers that hold devices of ours, and those that do not.

    devices: what the former hold, whole GPUs included.
    """

    namespace: str
    name: str
    holding: frozenset[str]
    bare: frozenset[str]
    devices: tuple[Listed, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A container that is being admitted."""

    pod: Pod
    container: PodContainer

    @property
    def owner(self) -> Owner:
        """As the book names it."""
        init = self.container.kind is ContainerKind.INIT
        return Owner(self.pod.uid, self.pod.namespace, self.pod.name, self.container.name, init)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whom an Allocate is for. admitted: None while that is not certain. unseen: pods that it can be for and that the
    watch has not shown yet. possible: all pods that it can be for. Both as "namespace/name".
    """

    admitted: Admitted | None = None
    unseen: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of those in the book while the kubelet hands out devices. over: allocations whose pods have ended.
    started: allocations that processes have used, so that no container of theirs is still to be allocated.
    """

    over: frozenset[str] = frozenset()
    started: frozenset[str] = frozenset()


def identify(listed: Iterable[ListedPod], lookup: Lookup, book: Book, resource: str, size: int) -> Verdict:
    """Judges one list of the kubelet for an Allocate of SIZE devices of RESOURCE."""
    candidates: list[Admitted] = []
    again: list[Admitted] = []
    unseen: list[str] = []
    for one in listed:
        if not one.bare:
            continue
        pod = lookup(one.namespace, one.name)
        if pod is None:
            unseen.append(str(one))
            continue
        asking = pod.asking(resource)
        following = _following(asking, book, pod, one.holding)
        if following is not None:
            if following.requests[resource] == size:
                candidates.append(Admitted(pod, following))
        elif bare := [c for c in asking if c.name in one.bare and c.kind is not ContainerKind.INIT]:
            # The book has given it devices and the kubelet does not list them: a later pod of the same name that the
            # watch has not shown yet, or devices that the kubelet has forgotten.
            unseen.append(str(one))
            again += [Admitted(pod, c) for c in bare if c.requests[resource] == size][:1]
    if len(candidates) > 1:
        candidates = [one for one in candidates if one.pod.phase == "Pending"]
    if len(candidates) == 1:
        return Verdict(candidates[0], (), (str(candidates[0].pod),))
    possible = (*unseen, *(str(one.pod) for one in candidates))
    if not candidates and len(again) == 1 and len(unseen) == 1:
        return Verdict(again[0], tuple(unseen), possible)
    return Verdict(None, tuple(unseen), possible)


def owner_of(grant: Grant, lookup: Lookup, book: Book, resource: str) -> Admitted | None:
    """Whom a grant was made for that nobody could tell during its Allocate; None while that is still so."""
    if grant.ref is not None:
        pod = lookup(grant.ref.namespace, grant.ref.pod)
        named = [c for c in pod.containers if c.name == grant.ref.container] if pod else []
        return Admitted(pod, named[0]) if pod and named else None
    found = []
    others = book.without([grant.id])
    for name in grant.suspects or ():
        namespace, _, pod_name = name.partition("/")
        pod = lookup(namespace, pod_name)
        following = _following(pod.asking(resource), others, pod, frozenset()) if pod else None
        if pod is not None and following is not None and following.requests[resource] == len(grant.tokens):
            found.append(Admitted(pod, following))
    return found[0] if len(found) == 1 else None


def _following(
    asking: Sequence[PodContainer], book: Book, pod: Pod, holding: frozenset[str]
) -> PodContainer | None:
    """The container that is admitted next: the one after the last that is known to have been."""
    done = {grant.owner.container for grant in book.of_pod(pod.uid) if grant.owner} | holding
    last = max((number for number, container in enumerate(asking) if container.name in done), default=-1)
    return asking[last + 1] if last + 1 < len(asking) else None
