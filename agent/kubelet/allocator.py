"""What the device plugin answers, without gRPC: which tokens to prefer, where a container goes, whether it may start.

The kubelet's choice of tokens is advice. Tokens whose names are a placement that fits are followed; any other set is
counted, and placement decides. What time can mend is never refused here but at the start gate: a refused allocation
fails its pod for good. That goes for annotations too, which a person can change while the pod waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent import units
from agent.discovery.lent import host_memory_left
from agent.discovery.source import Inventory
from agent.errors import TokenError
from agent.kubelet.together import beside_own, on_same_cards
from agent.kubelet.whose import Admitted, Ended, Verdict, owner_of
from agent.model import (
    Infeasible,
    NodeState,
    Placement,
    Pod,
    Request,
    SliceUnit,
    Wish,
    parse_token,
    parse_wish,
)
from agent.placement import Policy, place, place_waiting, preferred_tokens
from agent.providers.provider import RefusedError
from agent.state import gate, shared
from agent.state.reconcile import Answered, from_answer
from agent.state.records import Book, ContainerRef, Grant, GrantPolicy, assign_tokens
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["Allocator", "ImpossibleError", "Settled"]

_RESOURCE = "gigaslice.io/vgpu-memory"
_NOBODY = Ended()
_ONE_POD_SECONDS = 30.0  # far more than a kubelet ever takes between two containers of a pod


class ImpossibleError(RefusedError):
    """A request that this node can never serve; the text reaches the pod's event."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a grant that was undecided. reason: why it cannot go on, None when it can. remake: only a new pod
    can get what is asked for.
    """

    reason: str | None = None
    remake: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a container asks for, ready for placement. mistakes: what of it makes no sense and was left out."""

    request: Request
    wish: Wish
    mistakes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Chosen:
    placement: Placement
    waiting: bool


class Allocator:
    """Decides over STORE's book and the present inventory.

    NOW gives Unix time in seconds, NEW_ID 32 hex digits. RESOURCE is what pods ask for, in slices of SLICE_BYTES.
    HOST_LEFT gives the bytes of memory that the host has left, None where it does not say.
    """

    def __init__(
        self,
        store: Store,
        inventory: Inventory,
        policy: Policy,
        now: Callable[[], float],
        new_id: Callable[[], str],
        *,
        resource: str = _RESOURCE,
        slice_bytes: int = 1 << 30,
        host_left: Callable[[], int | None] = host_memory_left,
    ) -> None:
        self.inventory = inventory
        self.resource = resource
        store.gpu_bytes = lambda: {gpu.uuid: gpu.bytes_of(gpu.slices) for gpu in self.inventory.gpus}
        self._store = store
        self._policy = policy
        self._now = now
        self._new_id = new_id
        self._unit = SliceUnit(slice_bytes, units.parse_bytes)
        self._host_left = host_left
        self._parsed: tuple[Admitted, Wish] | None = None
        self._log = get_logger("allocator")

    def prefer(
        self,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        admitted: Admitted | None = None,
        ended: Ended = _NOBODY,
    ) -> tuple[str, ...]:
        """SIZE tokens named after the cards that placement would choose; fewer or none when in doubt.

        The call also tells which tokens the kubelet holds free. ENDED tells which of their holders are gone; the others
        are forgotten by the kubelet, and count.
        """
        free = frozenset(available) - frozenset(must_include)
        book = self._store.book.counted_out(ended.over).given_back(free, ended.over)
        self._store.remember(book)
        uid = admitted.pod.uid if admitted else ""
        after, _ = self._taken_over(book, must_include, uid, ended)
        node = self._node(after, uid, self._wants_host(admitted), max(1, size))
        asked = self._asked(node, after, admitted, max(1, size))
        if isinstance(asked, Infeasible):
            return ()
        return preferred_tokens(
            node, available, must_include, size, request=asked.request, policy=self._policy
        )

    def allocate(
        self,
        requests: Sequence[Sequence[str]],
        verdict: Verdict | None = None,
        ended: Ended = _NOBODY,
    ) -> tuple[Grant, ...]:
        """One grant per request, recorded and with its directory made. All or none.

        VERDICT says for whom the only request is; None where nobody can know. ENDED: who is gone. Raises
        ImpossibleError for what can never fit, StorageError when nothing can be recorded.
        """
        wanted = frozenset(token for tokens in requests for token in tokens)
        book = self._store.book.counted_out(ended.over - self._lenders(wanted, verdict, ended))
        fresh: list[Grant] = []
        for tokens in requests:
            book, grant = self._add(book, frozenset(tokens), verdict, ended)
            fresh.append(grant)
        self._store.commit(book, fresh)
        for grant in fresh:
            self._log.info(
                "allocated",
                allocation=grant.id,
                container=grant.name,
                slices=len(grant.tokens),
                bytes=grant.quota(),
                supersedes=list(grant.supersedes),
                waiting=grant.waiting,
                undecided=grant.undecided,
            )
        return tuple(fresh)

    def find(self, tokens: Sequence[str]) -> tuple[Grant, ...]:
        """The grants that the kubelet can mean by TOKENS, newest first."""
        return self._store.book.all_of_tokens(frozenset(tokens))

    def may_start(self, grant: Grant) -> str | None:
        """None when the grant's cards have room for it, else a sentence that says what is waited for.

        Reads the ledgers of its neighbours. A waiting grant that passes waits no more.
        """
        book = self._store.book
        used = self._present(book, grant)
        if lack := self.host_lacks(grant):
            return f"waiting for {lack}; starts by itself once there is enough"
        node = NodeState.build(self.inventory.gpus, self.inventory.topology)
        for uuid in () if grant.waiting else self.inventory.cordoned:
            node = node.with_health(uuid, True)  # a container that was there before the cordon may restart
        missing = gate.shortfall(book, grant, node, used)
        if missing:
            return gate.describe(missing, book, grant, used, self.inventory.sick)
        if grant.waiting:
            self._store.update(book.replaced([replace(grant, waiting=False)]))
        return None

    def age(self, grant: Grant) -> float:
        """Seconds since GRANT was made; for ever where that seems to lie ahead: the machine's time was set back."""
        since = self._now() - grant.created
        return since if since >= 0 else math.inf

    def remarks(self, admitted: Admitted, grant: Grant | None = None) -> tuple[str, ...]:
        """What people should know about its annotations: mistakes in one sentence, and what has no effect on GRANT."""
        wish = self._wish(admitted)
        mistakes = wish.mistakes + wish.contradictions(admitted.container.requests.get(self.resource, 1))
        if mistakes:
            return (_to_correct(mistakes), *wish.notes)
        given = [len(hold.tokens) for hold in grant.holds] if grant else []
        return (*wish.notes, *wish.idle(given, any(gpu.host_bytes for gpu in self.inventory.gpus)))

    def unaligned(self, grant: Grant) -> str | None:
        """What people should know when the kubelet chose devices of one NUMA node and they are served from another.

        None where they agree, where a GPU's node is not known, and where the devices are of several nodes: then the
        kubelet has aligned nothing.
        """
        node = {gpu.uuid: gpu.numa_node for gpu in self.inventory.gpus}
        named = {node.get(_card_name(token)) for token in grant.tokens}
        away = [hold.gpu for hold in grant.holds if node.get(hold.gpu) not in named]
        if len(named) != 1 or None in named or not away or any(node.get(gpu) is None for gpu in away):
            return None
        cards = ", ".join(f"{gpu} is on NUMA node {node[gpu]}" for gpu in away)
        return (
            f"{cards}, and the kubelet chose devices of node {named.pop()}: CPUs that it has aligned with them are not "
            "near this GPU; annotations ask for it, or the near ones have no room"
        )

    def settle(self, grant: Grant, admitted: Admitted | None) -> Settled:
        """Looks at an undecided grant again, now that ADMITTED is whom it is for; None: nobody will ever know.

        Its cards stay what they are, since the runtime has been told; all else is brought into agreement with the wish.
        """
        book = self._store.book
        if admitted is None:
            self._store.update(book.replaced([replace(grant, undecided=False)]))
            return Settled()
        wish = self._wish(admitted)
        mistakes = wish.mistakes + wish.contradictions(len(grant.tokens))
        if mistakes:
            return Settled(_to_correct(mistakes))
        others = book.without([grant.id])
        node = self._node(others, admitted.pod.uid, wish.oversubscribe, len(grant.tokens))
        placement = self._as_wished(node, others, grant, admitted)
        if placement is None:
            return Settled(
                "its GPUs were chosen before its annotations could be read or made sense, and these ask for others; "
                "delete the pod, so that it is allocated again",
                remake=True,
            )
        changed = replace(
            grant,
            owner=admitted.owner,
            policy=GrantPolicy.of(wish),
            holds=assign_tokens(grant.tokens, placement, self.inventory.gpus),
            undecided=False,
        )
        self._store.remake(shared.split(others, changed, self.inventory.gpus))
        return Settled()

    def restore(self, answer: Answered, pods: Mapping[tuple[str, str], Pod]) -> bool:
        """Takes up the allocation that ANSWER is of, which the book has lost, under its old id and with its old GPUs.

        PODS: those of this node, as far as known. False where the answer does not say which GPU has how much.
        """
        pod = next((one for one in pods.values() if one.uid == answer.pod), None)
        ref = ContainerRef(pod.namespace, pod.name, answer.container) if pod else None
        gpus = self.inventory.gpus
        grant = from_answer(answer, ref, gpus, self._store.library, round(self._now(), 3))
        if grant is None:
            return False
        self._store.restore(grant)
        return True

    def settle_known(self, grant: Grant, lookup: Callable[[str, str], Pod | None]) -> None:
        """Brings a grant that was made up for a running container into agreement with its pod, where that is known."""
        if grant.undecided and not grant.foreign:
            admitted = owner_of(grant, lookup, self._store.book, self.resource)
            if admitted is not None:
                self.settle(grant, admitted)

    def _lenders(self, tokens: frozenset[str], verdict: Verdict | None, ended: Ended) -> frozenset[str]:
        """Those who have TOKENS and may be init containers of the pod that gets them: they are never listed."""
        admitted = verdict.admitted if verdict else None
        since = self._now() - _ONE_POD_SECONDS
        return self._store.book.lenders(tokens, admitted.pod.uid if admitted else "", ended.started, since)

    def _taken_over(
        self, book: Book, tokens: Iterable[str], uid: str, ended: Ended
    ) -> tuple[Book, tuple[str, ...]]:
        since = self._now() - _ONE_POD_SECONDS
        return book.taken_over(tokens, pod=uid, over=ended.over, started=ended.started, since=since)

    def _add(
        self, book: Book, tokens: frozenset[str], verdict: Verdict | None, ended: Ended
    ) -> tuple[Book, Grant]:
        if not tokens:
            raise ImpossibleError(
                "the kubelet asked for a container without devices; report this with its version"
            )
        admitted = verdict.admitted if verdict else None
        uid = admitted.pod.uid if admitted else ""
        after, superseded = self._taken_over(book, tokens, uid, ended)
        host = self._wants_host(admitted)
        node = self._node(after, uid, host, len(tokens))
        asked = self._asked(node, after, admitted, len(tokens))
        if isinstance(asked, Infeasible):
            raise ImpossibleError(f"{asked.detail} ({len(tokens)} slices in all)")
        chosen = self._choose(node, tokens, asked.request)
        suspects = (str(admitted.pod),) if admitted else (verdict.possible if verdict else ())
        grant = Grant(
            id=self._new_id(),
            number=after.next_number,
            created=round(self._now(), 3),
            holds=assign_tokens(tokens, chosen.placement, self.inventory.gpus),
            library=self._store.library,
            supersedes=superseded,
            waiting=chosen.waiting,
            owner=admitted.owner if admitted else None,
            suspects=suspects or None,
            policy=GrantPolicy.of(asked.wish),
            undecided=bool(asked.mistakes) or (verdict is not None and admitted is None),
        )
        grant = shared.split(after, grant, self.inventory.gpus)
        return after.with_grant(grant), grant

    def _wants_host(self, admitted: Admitted | None) -> bool:
        return admitted is not None and self._wish(admitted).oversubscribe

    def host_lacks(self, grant: Grant) -> str | None:
        """What the host's memory lacks for GRANT to start, or to have its quota; None when nothing does."""
        book = self._store.book
        lent = {gpu.uuid for gpu in self.inventory.gpus if gpu.host_bytes}
        if not lent.intersection(grant.promised):
            return None
        used = {
            other.id: self._store.reading(other.id).present()
            for other in book.grants
            if lent.intersection(other.quota())
        }
        need = shared.host_need(book, grant, used, self.inventory.gpus)
        if need == 0:
            return None
        left = self._host_left()
        if left is None:
            return "/proc/meminfo of the host, which does not say how much memory is left"
        if need <= left:
            return None
        have = f"{units.format_bytes(need)} of host memory, of which {units.format_bytes(left)} are left"
        return f"{have}: what all containers were promised beyond the cards' own memory and do not use yet"

    def _wish(self, admitted: Admitted) -> Wish:
        known = self._parsed
        if known is None or known[0] is not admitted:  # one admission asks several times
            wish = parse_wish(admitted.pod.annotations, admitted.container.name, self._unit)
            known = self._parsed = (admitted, wish)
        return known[1]

    def _asked(
        self, node: NodeState, book: Book, admitted: Admitted | None, slices: int
    ) -> _Asked | Infeasible:
        """What is asked for, or why this node can never have it."""
        if admitted is None:
            return _Asked(Request(total=slices), Wish())
        wish = self._wish(admitted)
        mistakes = wish.mistakes
        if odd := wish.contradictions(slices):
            mistakes += odd
            wish = replace(wish, gpus=None, parts=(), max_slices=None)
        allowed = wish.cards(node.gpus)
        if isinstance(allowed, Infeasible):
            return allowed
        only = allowed if len(allowed) < len(node.gpus) else frozenset[str]()
        request = wish.request(slices, only)
        own = frozenset(gpu for grant in book.of_pod(admitted.pod.uid) for gpu in grant.quota())
        if wish.same_gpu:
            together = self._together(node, book, request, admitted, slices)
            if isinstance(together, Infeasible):
                return together
            request = together
        if wish.exclusive and own:
            beside = replace(request, exclusive=False, only=own & only if only else own)
            if beside.only and isinstance(place(node, beside, self._policy), Placement):
                request = beside
        return _Asked(request, wish, mistakes)

    def _together(
        self, node: NodeState, book: Book, request: Request, admitted: Admitted, slices: int
    ) -> Request | Infeasible:
        """REQUEST on the cards that the pod has already, or on those that have room for all its containers."""
        request = replace(request, gpus=request.gpus if request.gpus or request.parts else 1)
        pod = book.of_pod(admitted.pod.uid)
        if not pod:
            most = max(slices, admitted.pod.most_at_once(self.resource))
            return on_same_cards(node, request, most, self._policy)
        staying = {grant.id for grant in pod if not (grant.owner and grant.owner.init)}
        alone = self._node(
            book.without([grant.id for grant in book.grants if grant.id not in staying]),
            admitted.pod.uid,
            self._wants_host(admitted),
            slices,
        )
        own = frozenset(gpu for grant in pod for gpu in grant.quota())
        return beside_own(alone, request, own, slices, self._policy)

    def _choose(self, node: NodeState, tokens: frozenset[str], request: Request) -> _Chosen:
        named = frozenset(uuid for token in tokens if (uuid := _card_name(token)))
        followed = self._place_on(node, named, request)
        if isinstance(followed, Placement) and frozenset(followed.uuids) == named:
            return _Chosen(followed, waiting=False)
        for cards in (self._same_numa_node(named), frozenset[str]()):
            placement = self._place_on(node, cards, request)
            if isinstance(placement, Placement):
                return _Chosen(placement, waiting=False)
        waiting = place_waiting(node, request, self._policy)
        if isinstance(waiting, Infeasible):
            raise ImpossibleError(f"{waiting.detail} ({len(tokens)} slices in all)")
        return _Chosen(waiting.placement, waiting=bool(waiting.missing))

    def _place_on(self, node: NodeState, cards: frozenset[str], request: Request) -> Placement | None:
        """The placement on CARDS (empty: any) that REQUEST allows."""
        only = cards & request.only if cards and request.only else cards or request.only
        if cards and not only:
            return None
        placed = place(node, replace(request, only=only), self._policy)
        return placed if isinstance(placed, Placement) else None

    def _as_wished(self, node: NodeState, book: Book, grant: Grant, admitted: Admitted) -> Placement | None:
        """How ADMITTED's wish can be had on the very cards that GRANT has; None when it cannot."""
        slices, cards = len(grant.tokens), frozenset(grant.quota())
        asked = self._asked(node, book, admitted, slices)
        if isinstance(asked, Infeasible) or (asked.request.only and not cards <= asked.request.only):
            return None
        gpus = asked.request.gpus if asked.request.gpus or asked.request.parts else len(cards)
        found = place_waiting(node, replace(asked.request, only=cards, gpus=gpus), self._policy)
        if isinstance(found, Infeasible) or frozenset(found.placement.uuids) != cards:
            return None
        return found.placement

    def _same_numa_node(self, named: frozenset[str]) -> frozenset[str]:
        """The cards of the NUMA node that all named cards share: the kubelet may have aligned CPUs with it."""
        nodes = {gpu.numa_node for gpu in self.inventory.gpus if gpu.uuid in named}
        if len(nodes) != 1 or None in nodes:
            return frozenset()
        return frozenset(gpu.uuid for gpu in self.inventory.gpus if gpu.numa_node in nodes)

    def _node(self, book: Book, pod: str, host: bool, slices: int) -> NodeState:
        """The node as a container of POD sees it that asks for SLICES and may use host memory (HOST) or not."""
        memory = slices * self._unit.size
        cards, taken = shared.view(book, self.inventory.gpus, pod, host=host, memory_bytes=memory)
        return NodeState.build(cards, self.inventory.topology, taken)

    def _present(self, book: Book, grant: Grant) -> Mapping[str, Mapping[str, int]]:
        cards = set(grant.quota())
        neighbours = (other for other in book.grants if other.id != grant.id and cards & set(other.quota()))
        return {other.id: self._store.reading(other.id).present() for other in neighbours}


def _to_correct(mistakes: Sequence[str]) -> str:
    return f"annotations to be corrected: {'; '.join(mistakes)}; kubectl annotate --overwrite will do, the pod waits"


def _card_name(token: str) -> str:
    try:
        return parse_token(token).uuid
    except TokenError:
        return ""
