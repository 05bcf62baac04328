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
from agent.state.lifetime import Evidence, Listed, Listing, Standing, grant_of, is_bare, standings
from agent.state.records import Book, ContainerRef, Grant, GrantPolicy, Hold, whole_card, whole_token

__all__ = [
    "Answered",
    "Listed",
    "Listing",
    "Recovery",
    "Review",
    "from_answer",
    "rebuilt",
    "recover",
    "review",
    "strangers",
]


@dataclass(frozen=True, slots=True)
class Answered:
    """An Allocate of ours that was answered, as the kubelet keeps it. pod: its UID. container: its name.

    tokens: as the book has them. allocation: the id that it was given. directory: the host's directory whose files are
    mounted, empty where none are. gpus: the cards that were named to the runtime.
    """

    pod: str
    container: str
    tokens: frozenset[str]
    allocation: str
    directory: str
    gpus: tuple[str, ...]


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
    released: grants to give up with their directories. adopted: containers nobody had a record of. forgotten: grants
    whose containers live, and are listed without the devices that they have. unlisted: for each id, how many
    looks in a row have left it in doubt; the next look wants it back.
    """

    book: Book
    learned: tuple[Grant, ...] = ()
    released: tuple[Grant, ...] = ()
    adopted: tuple[Grant, ...] = ()
    forgotten: tuple[Grant, ...] = ()
    unlisted: Mapping[str, int] = field(default_factory=dict)


def recover(book: Book, directories: Mapping[str, Grant | None]) -> Recovery:
    """Adds to BOOK the grants that only DIRECTORIES know: all of them after a lost checkpoint, else at most the last.

    A grant that both know has the limits of the record that has seen more changes; the checkpoint may be an old one.
    Of two grants with the same token the one with the larger number has it, as it was when both were made; the other
    counts until something shows that its pod has ended.
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
    evidence: Evidence,
    *,
    young: frozenset[str],
    asked_at: int,
    unlisted: Mapping[str, int],
    patience: int,
    gpus: Sequence[Gpu],
    library: str,
    now: float,
    answers: Iterable[Answered] = (),
) -> Review:
    """Compares BOOK with one answer of the kubelet and with what else is known of its pods.

    young: those of its pods that have not been there for long: a new allocation is for one of them.
    asked_at: the book's next number when the question was sent; younger grants are left for the next look. patience:
    looks in a row that leave a container in doubt until its grant is given up. gpus, library, now: for containers that
    hold devices without a record (state directory lost). answers: what the kubelet was once answered, which says where
    their files have to be; without that they count where their tokens' names say.
    """
    listing = evidence.listing or Listing(settled=False)
    book, learned, strangers = _learn(book, listing, asked_at)
    book = _suspect(book, asked_at, young)
    made_up = [one for one in (rebuilt(one, answers, gpus, library, now) for one in strangers) if one]
    found = standings(book, evidence, asked_at)
    book, forgotten = _forget(book, listing, found)
    unseen = standings(book, replace(evidence, running=frozenset()), asked_at) if evidence.running else found
    missing = _count_doubts(book, listing, unseen, unlisted)
    book = book.counted_out(_left_over(book, evidence, unseen, missing, patience))
    released = _to_release(book, evidence.running, found, missing, patience)
    dropped = frozenset(grant.id for grant in released)
    unnamed = {grant.id for grant in book.grants if grant.ref is None}
    # Processes outlive their pod: given up as soon as those are dead.
    attached = (_lenders(book, dropped) & unnamed) - dropped
    ended = book.replaced(
        replace(grant, forgotten=True, suspects=()) for grant in book.grants if grant.id in attached
    )
    kept = ended.without(dropped)
    for number, grant in enumerate(made_up, start=kept.next_number):
        if kept.find(grant.id) is None:
            kept = kept.with_grant(replace(grant, number=number))
    adopted = tuple(grant for grant in kept.grants if grant.number >= book.next_number)
    return Review(
        book=kept,
        learned=tuple(grant for grant in learned if grant.id not in dropped),
        released=released,
        adopted=adopted,
        forgotten=forgotten,
        unlisted={grant_id: count for grant_id, count in missing.items() if grant_id not in dropped},
    )


def strangers(book: Book, listing: Listing) -> tuple[Listed, ...]:
    """The listed containers that BOOK has no record of."""
    return tuple(one for one in listing.containers if grant_of(book, one) is None)


def _learn(book: Book, listing: Listing, asked_at: int) -> tuple[Book, tuple[Grant, ...], list[Listed]]:
    learned: list[Grant] = []
    strangers: list[Listed] = []
    for one in listing.containers:
        grant = grant_of(book, one)
        if grant is None:
            strangers.append(one)
            continue
        if grant.number >= asked_at:
            continue
        named = replace(grant, container=one.container)
        if (grant.gone or grant.forgotten) and grant.tokens == one.tokens:
            taken = (other for other in book.grants if other.id != grant.id)
            twice = any(not other.held.isdisjoint(one.tokens - grant.lent) for other in taken)
            named = replace(named, gone=False, forgotten=twice)
        if named != grant:
            learned.append(named)
            book = book.replaced([named])
    return book, tuple(learned), strangers


def _suspect(book: Book, asked_at: int, young: frozenset[str]) -> Book:
    """Notes for each grant that is new and still without a container which pods it can be for."""
    return book.replaced(
        replace(grant, suspects=tuple(sorted(young)))
        for grant in book.grants
        if grant.number < asked_at and grant.container is None and grant.suspects is None
    )


def _forget(book: Book, listing: Listing, found: Mapping[str, Standing]) -> tuple[Book, tuple[Grant, ...]]:
    """Notes whose devices the kubelet does not know any more, though it lists the container itself."""
    changed = tuple(
        replace(grant, forgotten=True)
        for grant in book.grants
        if not grant.gone
        and listing.settled
        and found[grant.id] is Standing.ALIVE
        and is_bare(grant, listing)
    )
    return book.replaced(one for one in changed if one != book.find(one.id)), changed


def _count_doubts(
    book: Book, listing: Listing, found: Mapping[str, Standing], before: Mapping[str, int]
) -> dict[str, int]:
    """How many looks in a row have left a grant in doubt, processes apart: it ends soon after these.

    A look that means nothing neither counts nor clears.
    """
    return {
        grant.id: before.get(grant.id, 0) + listing.settled
        for grant in book.grants
        if found[grant.id] is not Standing.ALIVE
    }


def _left_over(
    book: Book,
    evidence: Evidence,
    unseen: Mapping[str, Standing],
    missing: Mapping[str, int],
    patience: int,
) -> frozenset[str]:
    """Grants of which only processes with slots are left: their pods are over by all that is known apart from those
    (UNSEEN). What these hold counts, and no longer what was promised. A container that runs and has used no GPU yet may
    still take all that it was promised; so may one that is listed without its devices.
    """
    listing = evidence.listing or Listing(settled=False)
    return frozenset(
        grant.id
        for grant in book.grants
        if grant.id in evidence.attached
        and grant.ref is not None
        and not is_bare(grant, listing)
        and _is_over(grant.id, unseen, missing, patience)
    )


def _is_over(key: str, found: Mapping[str, Standing], missing: Mapping[str, int], patience: int) -> bool:
    return found[key] is Standing.OVER or (
        found[key] is Standing.DOUBTFUL and missing.get(key, 0) >= patience
    )


def _to_release(
    book: Book,
    running: frozenset[str],
    found: Mapping[str, Standing],
    missing: Mapping[str, int],
    patience: int,
) -> tuple[Grant, ...]:
    """Grants whose pod is over, or in doubt for long enough.

    A grant that was never listed may be a plain init container, which the kubelet never lists. It ends with the pods
    that it can be for, or with a later container that took tokens over from it.
    """
    over = {grant.id for grant in book.grants if _is_over(grant.id, found, missing, patience)}
    named = {one.id for one in book.grants if one.ref is not None and found[one.id] is Standing.ALIVE}
    lenders = _lenders(book, over) - running - named
    return tuple(grant for grant in book.grants if grant.id in over or grant.id in lenders)


def _lenders(book: Book, over: Iterable[str]) -> frozenset[str]:
    """The grants without a container from which those of OVER took tokens: their pods are over too."""
    ended = frozenset(over)
    ids = {old for grant in book.grants if grant.id in ended for old in grant.supersedes}
    return frozenset(grant.id for grant in book.grants if grant.id in ids and grant.container is None)


def rebuilt(
    one: Listed, answers: Iterable[Answered], gpus: Sequence[Gpu], library: str, now: float
) -> Grant | None:
    """A record for a container that holds devices without one.

    With the answer that the kubelet has kept it gets its old id, and so its old directory, and its old cards. Without
    it, the tokens' names are the only word on the cards, and its files are not those that the container mounts.
    """
    for answer in answers:
        if answer.tokens == one.tokens and answer.container == one.container.container:
            return from_answer(answer, one.container, gpus, library, now) or _foreign(one, gpus, library, now)
    return _foreign(one, gpus, library, now)


def from_answer(
    answer: Answered, container: ContainerRef | None, gpus: Sequence[Gpu], library: str, now: float
) -> Grant | None:
    """The grant that the kubelet was given ANSWER for; None where that does not say which card has how much."""
    cards = {gpu.uuid: gpu for gpu in gpus}
    if not answer.gpus or not cards.keys() >= set(answer.gpus):
        return None
    whole = [token for token in answer.tokens if whole_card(token)]
    if whole:
        if len(whole) != len(answer.gpus) or len(whole) != len(answer.tokens):
            return None
        named = [whole_token(gpu) for gpu in answer.gpus if whole_token(gpu) in whole]
        others = sorted(set(whole) - set(named))
        holds = tuple(
            Hold(
                gpu,
                cards[gpu].bytes_of(cards[gpu].slices),
                (whole_token(gpu) if whole_token(gpu) in named else others.pop(0),),
            )
            for gpu in answer.gpus
        )
    else:
        by_card: dict[str, list[str]] = {}
        for token in sorted(answer.tokens):
            by_card.setdefault(_named_card(token), []).append(token)
        if len(answer.gpus) == 1:
            by_card = {answer.gpus[0]: sorted(answer.tokens)}
        if set(by_card) != set(answer.gpus):
            return None  # the tokens are served from other cards than their names say: how many from which?
        holds = tuple(Hold(gpu, cards[gpu].slice_bytes, tuple(by_card[gpu])) for gpu in answer.gpus)
    policy = GrantPolicy(exclusive=bool(whole))
    return Grant(
        answer.allocation, 1, now, holds, library, container=container, policy=policy, undecided=not whole
    )


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
    foreign = not cards  # whole cards have no files in their containers
    return Grant(identity, 1, now, holds, library, container=one.container, policy=policy, foreign=foreign)


def _named_card(token: str) -> str:
    try:
        return parse_token(token).uuid
    except TokenError:
        return ""
