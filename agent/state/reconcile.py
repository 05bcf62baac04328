"""What the book should say, given what the kubelet lists, which processes live and which directories exist.

The kubelet has no deallocate call and never says which pod an Allocate was for, so both are learned from its list of
containers. Every rule leans to keeping: a directory that a container may still start from is never given up, and
slices that cannot be explained count as taken. Decisions only: facts in, repairs out; `store` carries them out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.errors import TokenError
from agent.model import Gpu, parse_token
from agent.state.records import Book, ContainerRef, Grant, GrantPolicy, Hold, whole_card

__all__ = ["Listed", "Listing", "Recovery", "Review", "recover", "review"]

_ONE_POD_SECONDS = 30.0  # far more than a kubelet ever takes between two containers of a pod


@dataclass(frozen=True, slots=True)
class Listed:
    """A container that the kubelet lists with devices of our resource."""

    container: ContainerRef
    tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class Listing:
    """One answer of the kubelet: containers with devices of ours, and all its pods as "namespace/name"."""

    containers: tuple[Listed, ...] = ()
    pods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Recovery:
    """The book after a start. adopted: grants that only a directory knew; strays: directories that say nothing."""

    book: Book
    adopted: tuple[Grant, ...] = ()
    strays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Review:
    """What one look at the kubelet's list changes.

    book: what it should say, released grants left out. learned: grants whose container became known or changed.
    released: grants to give up with their directories. adopted: containers nobody had a record of. unlisted: for each
    id, how many looks in a row did not show it; the next look wants it back.
    """

    book: Book
    learned: tuple[Grant, ...] = ()
    released: tuple[Grant, ...] = ()
    adopted: tuple[Grant, ...] = ()
    unlisted: Mapping[str, int] = field(default_factory=dict)


def recover(book: Book, directories: Mapping[str, Grant | None]) -> Recovery:
    """Adds to BOOK the grants that only DIRECTORIES know: all of them after a lost checkpoint, else at most the last.

    A grant that both know has the limits of the record that has seen more changes; the checkpoint may be an old one.
    Of two grants with the same token the one with the larger number has it, as it was when both were made.
    """
    book = book.replaced(
        replace(grant, policy=later.policy, limits=later.limits, resizes=later.resizes)
        for grant in book.grants
        if (later := directories.get(grant.id)) and later.resizes > grant.resizes
    )
    unknown = {name: grant for name, grant in directories.items() if book.find(name) is None}
    adopted = sorted((grant for grant in unknown.values() if grant), key=lambda grant: grant.number)
    for orphan in adopted:
        older, superseded = book.taken_over(orphan.held, before=orphan.number)
        newer = frozenset(
            token
            for other in book.grants
            if other.number > orphan.number
            for token in other.tokens & orphan.tokens
        )
        supersedes = orphan.supersedes or superseded
        book = older.with_grant(replace(orphan, lent=orphan.lent | newer, supersedes=supersedes))
    strays = tuple(sorted(name for name, grant in unknown.items() if grant is None))
    return Recovery(book, tuple(grant for one in adopted if (grant := book.find(one.id))), strays)


def review(
    book: Book,
    listing: Listing,
    *,
    young: frozenset[str],
    asked_at: int,
    alive: frozenset[str],
    unlisted: Mapping[str, int],
    patience: int,
    gpus: Sequence[Gpu],
    library: str,
    now: float,
) -> Review:
    """Compares BOOK with one answer of the kubelet.

    young: those of its pods that have not been there for long: a new allocation is for one of them.
    asked_at: the book's next number when the question was sent; younger grants are left for the next look. alive: ids
    whose ledgers have a living process. patience: looks in a row without a container until its grant is given up.
    gpus, library, now: for containers that hold devices without a record (state directory lost): they count where
    their tokens' names say.
    """
    book, learned, strangers = _learn(book, listing.containers, asked_at)
    book = _suspect(book, asked_at, young)
    foreign = tuple(grant for one in strangers if (grant := _foreign(one, gpus, library, now)))
    missing = _count_unlisted(book, listing, asked_at, unlisted)
    released = _to_release(book, alive, missing, patience)
    gone = frozenset(grant.id for grant in released)
    attached = (
        _lenders(book, gone) - gone
    )  # processes outlive their pod: give them up as soon as those are dead
    ended = book.replaced(replace(grant, gone=True) for grant in book.grants if grant.id in attached)
    kept = ended.without(gone)
    for number, grant in enumerate(foreign, start=kept.next_number):
        if kept.find(grant.id) is None:
            kept = kept.with_grant(replace(grant, number=number))
    adopted = tuple(grant for grant in kept.grants if grant.number >= book.next_number)
    return Review(
        book=kept,
        learned=tuple(grant for grant in learned if grant.id not in gone),
        released=released,
        adopted=adopted,
        unlisted={grant_id: count for grant_id, count in missing.items() if grant_id not in gone},
    )


def _learn(
    book: Book, listed: Sequence[Listed], asked_at: int
) -> tuple[Book, tuple[Grant, ...], list[Listed]]:
    learned: list[Grant] = []
    strangers: list[Listed] = []
    for one in listed:
        grant = _grant_of(book, one.tokens)
        if grant is None:
            strangers.append(one)
        elif grant.number < asked_at and grant.container != one.container:
            learned.append(replace(grant, container=one.container))
            book = book.replaced(learned[-1:])
    return book, tuple(learned), strangers


def _grant_of(book: Book, tokens: frozenset[str]) -> Grant | None:
    """The grant that a listed container has: the newest with exactly its tokens, or else the newest that shares one."""
    exact = book.of_tokens(tokens)
    if exact is not None:
        return exact
    return next((grant for grant in reversed(book.grants) if grant.tokens & tokens), None)


def _suspect(book: Book, asked_at: int, young: frozenset[str]) -> Book:
    """Notes for each grant that is new and still without a container which pods it can be for."""
    return book.replaced(
        replace(grant, suspects=tuple(sorted(young)))
        for grant in book.grants
        if grant.number < asked_at and grant.container is None and grant.suspects is None
    )


def _count_unlisted(book: Book, listing: Listing, asked_at: int, before: Mapping[str, int]) -> dict[str, int]:
    living = _living(book, listing)
    return {
        grant.id: before.get(grant.id, 0) + 1
        for grant in book.grants
        if grant.number < asked_at and grant.id not in living
    }


def _living(book: Book, listing: Listing) -> frozenset[str]:
    """The grants whose pods the kubelet still has: those it lists, and init containers that it can mean.

    One that has lent all its tokens lives as long as somebody who has them; any other as long as a container that took
    some of them right after it, or a pod of its suspects that `_cleared` does not rule out. The kubelet's list has no
    UIDs, so a pod whose name was there before is no suspect.
    """
    living = {grant.id for one in listing.containers if (grant := _grant_of(book, one.tokens))}
    for grant in reversed(book.grants):
        if grant.gone or grant.container or grant.id in living:
            continue
        takers = {other.id: other for other in book.grants if grant.id in other.supersedes}
        if grant.suspects is None:
            living.add(grant.id)
        elif takers and not grant.held:
            living |= {grant.id} if takers.keys() & living else set()
        else:
            cleared = frozenset[str]() if grant.owner else _cleared(book, grant)
            taken_soon = any(one.id in living and _one_pod(grant, one) for one in takers.values())
            if taken_soon or listing.pods.intersection(grant.suspects) - cleared:
                living.add(grant.id)
    return frozenset(living)


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
    before = [(other, pod) for other, pod in named if other.number < grant.number][-1:]
    just_before = {pod for other, pod in before if _one_pod(other, grant)}
    return frozenset(pod for _, pod in named) - takers - just_before


def _one_pod(earlier: Grant, later: Grant) -> bool:
    """Whether the two were allocated so soon after each other that they may be of one pod."""
    return later.created - earlier.created < _ONE_POD_SECONDS


def _to_release(
    book: Book, alive: frozenset[str], missing: Mapping[str, int], patience: int
) -> tuple[Grant, ...]:
    """Grants whose pod is over: unlisted for long enough, and nobody attached to the ledger.

    A grant that was never listed may be a plain init container, which the kubelet never lists. It ends with the pods
    that it can be for, or with a later container that took tokens over from it.
    """
    over = {
        grant.id for grant in book.grants if missing.get(grant.id, 0) >= patience and grant.id not in alive
    }
    lenders = _lenders(book, over)
    return tuple(
        grant for grant in book.grants if grant.id in over or (grant.id in lenders and grant.id not in alive)
    )


def _lenders(book: Book, over: Iterable[str]) -> frozenset[str]:
    """The grants without a container from which those of OVER took tokens: their pods are over too."""
    ended = frozenset(over)
    ids = {old for grant in book.grants if grant.id in ended for old in grant.supersedes}
    return frozenset(grant.id for grant in book.grants if grant.id in ids and grant.container is None)


def _foreign(one: Listed, gpus: Sequence[Gpu], library: str, now: float) -> Grant | None:
    """A record for a container that holds devices without one: its tokens' names are the only word on its cards."""
    unit = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
    size = {gpu.uuid: gpu.bytes_of(gpu.slices) for gpu in gpus}
    cards = [(card, token) for token in sorted(one.tokens) if (card := whole_card(token)) in size]
    by_card: dict[str, list[str]] = {}
    for token in sorted(one.tokens):
        card = _named_card(token)
        if card in unit:
            by_card.setdefault(card, []).append(token)
    if not by_card and not cards:
        return None
    holds = tuple(Hold(card, unit[card], tuple(tokens)) for card, tokens in by_card.items())
    holds += tuple(Hold(card, size[card], (token,)) for card, token in cards)
    identity = hashlib.sha256("\n".join([str(one.container), *sorted(one.tokens)]).encode()).hexdigest()[:32]
    policy = GrantPolicy(exclusive=bool(cards))
    return Grant(identity, 1, now, holds, library, container=one.container, policy=policy)


def _named_card(token: str) -> str:
    try:
        return parse_token(token).uuid
    except TokenError:
        return ""
