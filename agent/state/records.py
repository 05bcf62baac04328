"""The book of the node: every container that was given slices, and which slices those are.

A grant is what one Allocate call handed out. The kubelet speaks in tokens and this agent places slices itself, so a
grant says for each card which tokens are served from it. Three rules of the kubelet shape everything here: there is no
deallocate call, init containers lend their tokens to later containers of the same pod, and what the kubelet has
forgotten it hands out a second time while the first container runs. Values only: each change
is a new book, and nothing here reads a clock or a file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from agent.errors import StateError, TokenError
from agent.model import (
    CORES_PER_CARD,
    DEFAULT_PRIORITY,
    PRIORITIES,
    Allocation,
    Gpu,
    Placement,
    Share,
    Wish,
    parse_token,
)

__all__ = [
    "Book",
    "ContainerRef",
    "Grant",
    "GrantPolicy",
    "Hold",
    "LiveLimit",
    "Owner",
    "assign_tokens",
    "whole_card",
    "whole_token",
]


_WHOLE = "whole:"


def whole_token(uuid: str) -> str:
    """The book's token for the device UUID of the resource of whole cards; never that of a slice."""
    return _WHOLE + uuid


def whole_card(token: str) -> str:
    """The card's UUID in such a token; empty for a slice."""
    return token.removeprefix(_WHOLE) if token.startswith(_WHOLE) else ""


@dataclass(frozen=True, slots=True, order=True)
class ContainerRef:
    """A container by the names people know it by."""

    namespace: str
    pod: str
    container: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The container that a grant was made for, as found out during Allocate. init: a plain init container."""

    uid: str
    namespace: str
    pod: str
    container: str
    init: bool = False

    @property
    def ref(self) -> ContainerRef:
        """The names alone."""
        return ContainerRef(self.namespace, self.pod, self.container)


@dataclass(frozen=True, slots=True)
class GrantPolicy:
    """What was asked for beside memory; kept with the grant, since a pod's annotations can change.

    cores: per cent of each card's compute, 0 for no share; cores_elastic, priority: whether idle compute of others is
    lent, and who gets more. exclusive: its cards are its pod's alone. elastic: may use more while alone, up to
    max_slices of a card if given. oversubscribe: may use lent host memory. turns: takes turns with others who do.
    parts: slices of each card as the annotation says them, empty where it says nothing.
    """

    cores: int = 0
    exclusive: bool = False
    elastic: bool = False
    max_slices: int | None = None
    oversubscribe: bool = False
    turns: bool = True
    parts: tuple[int, ...] = ()
    cores_elastic: bool = False
    priority: str = DEFAULT_PRIORITY

    @classmethod
    def of(cls, wish: Wish) -> GrantPolicy:
        """What the annotations of a pod ask for."""
        return cls(
            cores=wish.cores,
            exclusive=wish.exclusive,
            elastic=wish.elastic,
            max_slices=wish.max_slices,
            oversubscribe=wish.oversubscribe,
            turns=wish.turns,
            parts=wish.parts,
            cores_elastic=wish.cores_elastic,
            priority=wish.priority,
        )

    @property
    def compute(self) -> int:
        """The word of limits pages for how the share of compute is meant; 0 without one."""
        return (PRIORITIES[self.priority] << 8 | int(self.cores_elastic)) if self.cores else 0


@dataclass(frozen=True, slots=True)
class LiveLimit:
    """What a person has made of a card's share since it was given; None where that is still as given."""

    gpu: str
    memory_bytes: int | None = None
    cores: int | None = None


@dataclass(frozen=True)  # without slots, as a grant
class Hold:
    """Slices of one card: one of `slice_bytes` for each of the tokens, whatever card a token is named after.

    physical_bytes: of them in the card's own memory at most, the rest may lie in lent host memory; 0: all of them.
    """

    gpu: str
    slice_bytes: int
    tokens: tuple[str, ...]
    physical_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """What the container may use of this card."""
        return len(self.tokens) * self.slice_bytes


@dataclass(frozen=True)  # without slots: what follows from the fields is worked out once per grant
class Grant:
    """What one container was given.

    id: 32 hex digits, name of its directory. number: order of the Allocate calls, never used twice. created: Unix time
    in seconds. holds: one per card. library: file name that its preload line names. lent: tokens that a later container
    of the same pod, or an unknown one, has taken over. supersedes: ids of grants it took tokens from. container: known
    once the kubelet has listed it. suspects: until then, the pods ("namespace/name") one of which it is for; None
    before the kubelet was asked. gone: its pod has ended by all that is known, so its slices count no more.
    forgotten: the kubelet counts its devices as free, and nothing shows that its pod has ended, so its slices still
    count. foreign: made up for a container whose mounts are not these files: it counts, and nothing starts from it.
    waiting: a card had no room for it at Allocate, and the start gate has not let it pass yet. owner: whom it was made
    for, where that was found out during Allocate; a listed container is in `container` besides. undecided: its
    annotations were not known, or made no sense, and the start gate looks at them again. limits: cards whose share was
    changed since, at most once each. resizes: how many changes there were, so that of two records the later is known.
    """

    id: str
    number: int
    created: float
    holds: tuple[Hold, ...]
    library: str
    lent: frozenset[str] = frozenset()
    supersedes: tuple[str, ...] = ()
    container: ContainerRef | None = None
    suspects: tuple[str, ...] | None = None
    gone: bool = False
    waiting: bool = False
    owner: Owner | None = None
    policy: GrantPolicy = GrantPolicy()
    undecided: bool = False
    limits: tuple[LiveLimit, ...] = ()
    resizes: int = 0
    forgotten: bool = False
    foreign: bool = False

    @cached_property
    def tokens(self) -> frozenset[str]:
        """Every token of the answer, lent ones included."""
        return frozenset(token for hold in self.holds for token in hold.tokens)

    @cached_property
    def kept(self) -> frozenset[str]:
        """The tokens whose slices still count for it, whatever the kubelet makes of the tokens."""
        return frozenset() if self.gone else self.tokens - self.lent

    @cached_property
    def held(self) -> frozenset[str]:
        """The tokens that are its own in the kubelet's count too: no two grants hold the same one."""
        return frozenset() if self.forgotten else self.kept

    @cached_property
    def whole(self) -> bool:
        """Whether it is of whole cards, which have neither library nor limits in the container."""
        return any(whole_card(token) for token in self.tokens)

    @property
    def name(self) -> str:
        """How people know it: its container, or its id before the kubelet has named one."""
        known = self.ref
        return str(known) if known else f"allocation {self.id[:8]}"

    @property
    def ref(self) -> ContainerRef | None:
        """The container it is for, listed or not; None while nobody knows."""
        return self.container or (self.owner.ref if self.owner else None)

    def is_of(self, uid: str) -> bool:
        """Whether it was made for the pod of that UID."""
        return self.owner is not None and self.owner.uid == uid

    def quota(self) -> dict[str, int]:
        """Bytes it may use of each card: its slices, or what they were changed to."""
        given = {hold.gpu: hold.memory_bytes for hold in self.holds}
        changed = {one.gpu: one.memory_bytes for one in self.limits if one.memory_bytes is not None}
        return {**given, **changed}

    @cached_property
    def physical(self) -> Mapping[str, int]:
        """Bytes of its quota that may be in the card's own memory, for the cards whose lent memory it may use."""
        quota = self.quota()
        return {
            hold.gpu: min(hold.physical_bytes, quota[hold.gpu]) for hold in self.holds if hold.physical_bytes
        }

    def cores_of(self, gpu: str) -> int:
        """Per cent of a card's compute that it may use, 0 for no share."""
        changed = (one.cores for one in self.limits if one.gpu == gpu and one.cores is not None)
        return next(changed, self.policy.cores)

    @cached_property
    def promised(self) -> Mapping[str, int]:
        """Bytes of each card that nobody else may be promised: its quota, without slices that it has lent."""
        if not self.kept:
            return {}
        if not self.lent and not self.limits:
            return self.quota()
        quota = self.quota()
        left = {
            hold.gpu: max(0, quota[hold.gpu] - len(self.lent.intersection(hold.tokens)) * hold.slice_bytes)
            for hold in self.holds
        }
        return {gpu: count for gpu, count in left.items() if count}

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """Slices that count on each card, in the size they had when they were given."""
        return tuple(
            Share(hold.gpu, -(-self.promised[hold.gpu] // hold.slice_bytes))
            for hold in self.holds
            if hold.gpu in self.promised
        )

    @cached_property
    def counted(self) -> tuple[Allocation, ...]:
        """The same as one allocation, where no policy makes it another; nothing when nothing counts."""
        return (Allocation(self.id, self.shares),) if self.shares else ()

    def shares_of(self, unit: Mapping[str, int]) -> tuple[Share, ...]:
        """The same in slices of UNIT bytes (by card), rounded up: the slice size may have been changed since."""
        for hold in self.holds:
            if unit.get(hold.gpu, hold.slice_bytes) != hold.slice_bytes:
                break
        else:
            return self.shares
        size = {hold.gpu: hold.slice_bytes for hold in self.holds}
        return tuple(
            Share(gpu, -(-count // unit.get(gpu, size[gpu]))) for gpu, count in self.promised.items()
        )


@dataclass(frozen=True, slots=True)
class Book:
    """All grants of the node in the order of their numbers, and the number of the next."""

    grants: tuple[Grant, ...] = ()
    next_number: int = 1

    def find(self, grant_id: str) -> Grant | None:
        """The grant of that id, if there is one."""
        return next((grant for grant in self.grants if grant.id == grant_id), None)

    def all_of_tokens(self, tokens: frozenset[str]) -> tuple[Grant, ...]:
        """The grants that were answered to exactly these tokens, newest first."""
        return tuple(grant for grant in reversed(self.grants) if grant.tokens == tokens)

    def of_tokens(self, tokens: frozenset[str]) -> Grant | None:
        """The newest of them: the container that the kubelet means by these tokens now."""
        return next(iter(self.all_of_tokens(tokens)), None)

    def with_grant(self, grant: Grant) -> Book:
        """The book with one more grant; StateError when its id is there already."""
        if self.find(grant.id):
            raise StateError(f"allocation {grant.id} is recorded twice")
        grants = tuple(sorted((*self.grants, grant), key=lambda one: one.number))
        return Book(grants, max(self.next_number, grant.number + 1))

    def replaced(self, changed: Iterable[Grant]) -> Book:
        """The book with the grants of the same ids exchanged for these."""
        by_id = {grant.id: grant for grant in changed}
        if not by_id:
            return self
        return replace(self, grants=tuple(by_id.get(grant.id, grant) for grant in self.grants))

    def without(self, ids: Iterable[str]) -> Book:
        """The book after grants were released."""
        dropped = frozenset(ids)
        return replace(self, grants=tuple(grant for grant in self.grants if grant.id not in dropped))

    def taken_over(
        self,
        tokens: Iterable[str],
        before: int | None = None,
        pod: str = "",
        *,
        over: Collection[str] = (),
        started: Collection[str] = (),
        since: float = -math.inf,
    ) -> tuple[Book, tuple[str, ...]]:
        """The book after the kubelet hands TOKENS to a new container, and the ids of the grants that had them.

        One that may be of an init container of the same pod lends just these. Of the others those in OVER are gone;
        the rest may live, so they are forgotten, and count. POD: UID of the new container's pod, where that is known.
        BEFORE restricts all this to grants with smaller numbers. STARTED: grants that processes have used, and SINCE:
        the least `created` of a lender: the kubelet allocates all containers of a pod at once and before it starts one.
        """
        wanted = frozenset(tokens)
        changed = []
        for grant in self.grants:
            common = grant.held & wanted
            if not common or (before is not None and grant.number >= before):
                continue
            if _lends(grant, pod, started, since):
                changed.append(replace(grant, lent=grant.lent | common))
            else:
                changed.append(_ended(grant, over))
        return self.replaced(changed), tuple(grant.id for grant in changed)

    def lenders(
        self, tokens: frozenset[str], pod: str, started: Collection[str], since: float
    ) -> frozenset[str]:
        """Ids of the grants that would lend TOKENS rather than lose them: see `taken_over`."""
        return frozenset(
            grant.id
            for grant in self.grants
            if not grant.held.isdisjoint(tokens) and _lends(grant, pod, started, since)
        )

    def given_back(self, free_tokens: Iterable[str], over: Collection[str] = ()) -> Book:
        """The book after the kubelet shows FREE_TOKENS as free: their holders are gone if OVER names them, or else
        forgotten. A kubelet that has lost its checkpoint shows the devices of running containers as free.
        """
        free = frozenset(free_tokens)
        return self.replaced(_ended(grant, over) for grant in self.grants if not grant.held.isdisjoint(free))

    def counted_out(self, over: Collection[str]) -> Book:
        """The book after the pods of the grants OVER have ended."""
        return self.replaced(
            replace(grant, gone=True) for grant in self.grants if grant.id in over and not grant.gone
        )

    def allocations(self, gpus: Sequence[Gpu], pod: str = "") -> tuple[Allocation, ...]:
        """What counts on the cards, in their present slices, for `agent.model.NodeState`.

        A card that another pod than the one with the UID POD has for itself counts as taken altogether.
        """
        unit = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
        whole = {gpu.uuid: gpu.slices for gpu in gpus}
        found: list[Allocation] = []
        for grant in self.grants:
            shares = grant.shares_of(unit) if grant.shares else ()
            if shares is grant.shares and not (
                grant.policy.exclusive or grant.policy.cores or grant.limits
            ):  # as most are
                found += grant.counted
                continue
            if shares and grant.policy.exclusive and not grant.is_of(pod):
                shares = tuple(
                    Share(share.gpu, max(share.slices, whole.get(share.gpu, 0)), CORES_PER_CARD)
                    for share in shares
                )
            elif shares and (grant.policy.cores or grant.limits):
                shares = tuple(Share(one.gpu, one.slices, grant.cores_of(one.gpu)) for one in shares)
            if shares:
                found.append(Allocation(grant.id, shares))
        return tuple(found)

    def of_pod(self, uid: str) -> tuple[Grant, ...]:
        """The grants that count for the pod of that UID, in order."""
        return tuple(grant for grant in self.grants if grant.is_of(uid) and not grant.gone)


def _ended(grant: Grant, over: Collection[str]) -> Grant:
    return replace(grant, gone=True) if grant.id in over else replace(grant, forgotten=True)


def _lends(grant: Grant, pod: str, started: Collection[str], since: float) -> bool:
    if grant.owner is not None and pod:
        return grant.owner.init and grant.owner.uid == pod
    if grant.container is not None or grant.id in started or grant.created < since:
        return False
    return grant.owner is None or grant.owner.init


def assign_tokens(tokens: Iterable[str], placement: Placement, gpus: Sequence[Gpu]) -> tuple[Hold, ...]:
    """Serves each token from a card of PLACEMENT: from the one it is named after where that has room, else in order.

    The number of tokens and of slices must be the same; StateError otherwise.
    """
    rest = sorted(set(tokens), key=_order)
    if len(rest) != placement.slices:
        raise StateError(f"{placement.slices} slices were placed for {len(rest)} devices")
    unit = {gpu.uuid: gpu.slice_bytes for gpu in gpus}
    own: dict[str, list[str]] = {}
    for share in placement.shares:
        named = [token for token in rest if token.startswith(share.gpu + "/")][: share.slices]
        own[share.gpu] = named
        taken = frozenset(named)
        rest = [token for token in rest if token not in taken]
    holds = []
    for share in placement.shares:
        missing = share.slices - len(own[share.gpu])
        served, rest = [*own[share.gpu], *rest[:missing]], rest[missing:]
        holds.append(Hold(share.gpu, unit[share.gpu], tuple(served)))
    return tuple(holds)


def _order(token: str) -> tuple[str, int, str]:
    try:
        parsed = parse_token(token)
    except TokenError:
        return token, 0, token
    return parsed.uuid, parsed.number, token
