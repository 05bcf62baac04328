"""Whether the containers of the book's allocations still live: everything that is known, put together. Pure.

The kubelet never says that a pod has ended; it only stops to list it. It also stops to list pods that live: after its
start it lists none for seconds, and one that has lost its checkpoint lists running containers without their devices and
counts these as free. So what is missing from one place proves nothing while another shows life. A living process is
life, whoever says otherwise. The API server's word on a pod comes next, then the kubelet's list. What nobody knows is
in doubt, and stays in the book until it has been in doubt for long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from agent.model import Pod
from agent.state.records import Book, ContainerRef, Grant

__all__ = ["Evidence", "Listed", "Listing", "Standing", "grant_of", "is_bare", "standings"]

_ONE_POD_SECONDS = 30.0  # far more than a kubelet ever takes between two containers of a pod


@dataclass(frozen=True, slots=True)
class Listed:
    """A container that the kubelet lists with devices of our resource."""

    container: ContainerRef
    tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class Listing:
    """One answer of the kubelet: containers with devices of ours, and all its pods as "namespace/name".

    settled: what is missing means something: this kubelet has been listing its pods for a while.
    """

    containers: tuple[Listed, ...] = ()
    pods: frozenset[str] = frozenset()
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known. listing: None where the kubelet gave no answer. pods: this node's as the API server has them now,
    None where that is not known. running: ids of allocations that a living process uses or has mounted. attached: those
    of which a living process has a slot. watched: other pods' processes can be seen, so that it means something if
    there is none.
    """

    listing: Listing | None = None
    pods: Mapping[tuple[str, str], Pod] | None = None
    running: frozenset[str] = frozenset()
    attached: frozenset[str] = frozenset()
    watched: bool = False


class Standing(Enum):
    """What the evidence says of an allocation's container."""

    ALIVE = "alive"
    DOUBTFUL = "doubtful"
    OVER = "over"


def standings(book: Book, evidence: Evidence, asked_at: int) -> dict[str, Standing]:
    """The standing of every grant of BOOK, by id. Grants numbered ASKED_AT or later are younger than the evidence."""
    listing = evidence.listing or Listing(settled=False)
    exact: dict[frozenset[str], list[Grant]] = {}
    of_pod: dict[tuple[str, str], list[Grant]] = {}
    for grant in reversed(book.grants):
        exact.setdefault(grant.tokens, []).append(grant)
        if grant.ref is not None:
            of_pod.setdefault((grant.ref.namespace, grant.ref.pod), []).append(grant)
    meant = {
        holder.id: one
        for one in listing.containers
        if (holder := _choose(book, one, exact.get(one.tokens, ())))
    }
    alive = {
        grant.id
        for grant in book.grants
        if grant.number >= asked_at or grant.id in evidence.running or grant.id in meant
    }
    found = dict.fromkeys(alive, Standing.ALIVE)
    for grant in book.grants:
        if grant.id not in found and grant.gone:
            found[grant.id] = Standing.OVER
        elif grant.id not in found and grant.ref is not None:
            of_same = of_pod[grant.ref.namespace, grant.ref.pod]
            found[grant.id] = _named(of_same, grant, evidence, meant)
    living = {key for key, standing in found.items() if standing is Standing.ALIVE}
    for grant in reversed(book.grants):  # those who took tokens over come before those who lent them
        if grant.id not in found:
            lives = _nameless(book, grant, listing.pods, living)
            found[grant.id] = Standing.ALIVE if lives else Standing.DOUBTFUL
            living |= {grant.id} if lives else set()
    return found


def grant_of(book: Book, one: Listed) -> Grant | None:
    """The grant that a listed container has: of those with exactly its tokens its own, or the newest; or else the
    newest that shares one.
    """
    return _choose(book, one, book.all_of_tokens(one.tokens))


def _choose(book: Book, one: Listed, exact: Sequence[Grant]) -> Grant | None:
    """See `grant_of`. EXACT: the grants with exactly the tokens of ONE, newest first."""
    for grant in exact:
        if grant.ref == one.container:
            return grant
    return exact[0] if exact else next((g for g in reversed(book.grants) if g.tokens & one.tokens), None)


def is_bare(grant: Grant, listing: Listing) -> bool:
    """Whether the kubelet lists the container of GRANT, which it has listed with devices before, without any."""
    ref = grant.container
    if ref is None or f"{ref.namespace}/{ref.pod}" not in listing.pods:
        return False
    return not any(one.container == ref for one in listing.containers)


def _named(
    of_pod: Sequence[Grant], grant: Grant, evidence: Evidence, meant: Mapping[str, Listed]
) -> Standing:
    """For a grant whose container is known by name. OF_POD: all grants of pods with its pod's name. MEANT: grants that
    the kubelet lists with their devices.
    """
    assert grant.ref is not None
    if _followed(of_pod, grant, meant, evidence.running):
        return Standing.OVER
    listing = evidence.listing or Listing(settled=False)
    listed = f"{grant.ref.namespace}/{grant.ref.pod}" in listing.pods
    missing = listing.settled and not listed
    if evidence.pods is None:
        # Kubelets before 1.34 go on listing a pod that has completed, without devices; nothing of it runs.
        completed = evidence.watched and listing.settled and is_bare(grant, listing)
        return Standing.ALIVE if listed and not completed else Standing.DOUBTFUL
    pod = evidence.pods.get((grant.ref.namespace, grant.ref.pod))
    if pod is None:  # a static pod may be listed without being known to the API server
        unknown = Standing.OVER if missing else Standing.DOUBTFUL
        return Standing.ALIVE if listed else unknown
    same = grant.owner is None or grant.owner.uid == pod.uid or pod.mirror
    if (
        not same
    ):  # the first answer of an API server may be an old one, and show the pod that had the name before
        return Standing.OVER if listing.settled else Standing.DOUBTFUL
    return Standing.OVER if pod.terminal or (pod.ending and missing) else Standing.ALIVE


def _followed(
    of_pod: Sequence[Grant], grant: Grant, meant: Mapping[str, Listed], running: frozenset[str]
) -> bool:
    """Whether a later grant shows that this one's container is no more: the kubelet lists the container with the later
    grant's devices, or it was allocated anew, or a later pod has the name.
    """
    for later in of_pod:
        if later.number <= grant.number or later.whole != grant.whole:
            continue
        one = meant.get(later.id)
        if one is not None and one.container == grant.ref:
            return True
        if grant.owner is None or later.owner is None:
            continue
        if later.owner == grant.owner:
            return True
        if later.owner.uid != grant.owner.uid and (one is not None or later.id in running):
            return True
    return False


def _nameless(book: Book, grant: Grant, pods: frozenset[str], living: set[str]) -> bool:
    """Whether the pod of a grant that no container is known for may live: an init container, which is never listed.

    One that has lent all its tokens lives as long as somebody who has them; any other as long as a container that took
    some of them right after it, or a pod of its suspects that `_cleared` does not rule out. The kubelet's list has no
    UIDs, so a pod whose name was there before is no suspect.
    """
    if grant.suspects is None:
        return True
    takers = [other for other in book.grants if grant.id in other.supersedes]
    if takers and not grant.kept:
        return any(other.id in living for other in takers)
    if any(other.id in living and _one_pod(grant, other) for other in takers):
        return True
    return bool(pods.intersection(grant.suspects) - _cleared(book, grant))


def _cleared(book: Book, grant: Grant) -> frozenset[str]:
    """The pods that GRANT, which is not listed and still has tokens, cannot be for.

    The kubelet allocates the containers of a pod one after the other without a pause, init containers before others
    (sidecars apart), and gives the tokens of an init container to the next containers of its pod first. So it is none
    of the pods that are known to have other grants, but for one with a later grant that took tokens over, and the one
    allocated just before.
    """
    named = [
        (other, f"{other.container.namespace}/{other.container.pod}")
        for other in book.grants
        if other.container and other.whole == grant.whole
    ]
    takers = {pod for other, pod in named if grant.id in other.supersedes}
    before: Sequence[tuple[Grant, str]] = [
        (other, pod) for other, pod in named if other.number < grant.number
    ][-1:]
    just_before = {pod for other, pod in before if _one_pod(other, grant)}
    return frozenset(pod for _, pod in named) - takers - just_before


def _one_pod(earlier: Grant, later: Grant) -> bool:
    """Whether the two were allocated so soon after each other that they may be of one pod."""
    return later.created - earlier.created < _ONE_POD_SECONDS
