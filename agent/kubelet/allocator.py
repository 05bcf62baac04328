"""What the device plugin answers, without gRPC: which tokens to prefer, where a container goes, whether it may start.

The kubelet's choice of tokens is advice. Tokens whose names are a placement that fits are followed; any other set is
counted, and placement decides. What time can mend is never refused here but at the start gate: a refused allocation
fails its pod for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.discovery.source import Inventory
from agent.errors import GigasliceError, TokenError
from agent.model import Infeasible, NodeState, Placement, Request, parse_token
from agent.placement import Policy, place_slices, place_waiting, preferred_tokens
from agent.state import gate
from agent.state.records import Book, Grant, assign_tokens
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["Allocator", "ImpossibleError"]


class ImpossibleError(GigasliceError):
    """A request that this node can never serve; the text reaches the pod's event."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    placement: Placement
    waiting: bool


class Allocator:
    """Decides over STORE's book and the present inventory. NOW gives Unix time in seconds, NEW_ID 32 hex digits."""

    def __init__(
        self,
        store: Store,
        inventory: Inventory,
        policy: Policy,
        now: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self.inventory = inventory
        self._store = store
        self._policy = policy
        self._now = now
        self._new_id = new_id
        self._log = get_logger("allocator")

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """SIZE tokens named after the cards that placement would choose; fewer or none when in doubt.

        The call also tells which tokens the kubelet holds free, so whoever had one of them in the book is gone.
        """
        book = self._store.book.given_back(frozenset(available) - frozenset(must_include))
        self._store.remember(book)
        after, _ = book.taken_over(must_include)
        return preferred_tokens(self._node(after), available, must_include, size, policy=self._policy)

    def allocate(self, requests: Sequence[Sequence[str]]) -> tuple[Grant, ...]:
        """One grant per request, recorded and with its directory made. All or none.

        Raises ImpossibleError for what can never fit, StorageError when nothing can be recorded.
        """
        book = self._store.book
        fresh: list[Grant] = []
        for tokens in requests:
            book, grant = self._add(book, frozenset(tokens))
            fresh.append(grant)
        self._store.commit(book, fresh)
        for grant in fresh:
            self._log.info(
                "allocated",
                allocation=grant.id,
                slices=len(grant.tokens),
                bytes=grant.quota(),
                supersedes=list(grant.supersedes),
                waiting=grant.waiting,
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
        missing = gate.shortfall(book, grant, self._node(book), used)
        if missing:
            return gate.describe(missing, book, grant, used)
        if grant.waiting:
            self._store.update(book.replaced([replace(grant, waiting=False)]))
        return None

    def _add(self, book: Book, tokens: frozenset[str]) -> tuple[Book, Grant]:
        if not tokens:
            raise ImpossibleError(
                "the kubelet asked for a container without devices; report this with its version"
            )
        after, superseded = book.taken_over(tokens)
        chosen = self._choose(self._node(after), tokens)
        grant = Grant(
            id=self._new_id(),
            number=after.next_number,
            created=round(self._now(), 3),
            holds=assign_tokens(tokens, chosen.placement, self.inventory.gpus),
            library=self._store.library,
            supersedes=superseded,
            waiting=chosen.waiting,
        )
        return after.with_grant(grant), grant

    def _choose(self, node: NodeState, tokens: frozenset[str]) -> _Chosen:
        named = frozenset(uuid for token in tokens if (uuid := _card_name(token)))
        followed = self._place(node, len(tokens), named)
        if isinstance(followed, Placement) and frozenset(followed.uuids) == named:
            return _Chosen(followed, waiting=False)
        for cards in (self._same_numa_node(named), frozenset[str]()):
            placement = self._place(node, len(tokens), cards)
            if isinstance(placement, Placement):
                return _Chosen(placement, waiting=False)
        waiting = place_waiting(node, Request(total=len(tokens)), self._policy)
        if isinstance(waiting, Infeasible):
            raise ImpossibleError(f"{waiting.detail} ({len(tokens)} slices in all)")
        return _Chosen(waiting.placement, waiting=bool(waiting.missing))

    def _place(self, node: NodeState, slices: int, only: frozenset[str]) -> Placement | Infeasible:
        return place_slices(node, slices, Request(only=only), self._policy)

    def _same_numa_node(self, named: frozenset[str]) -> frozenset[str]:
        """The cards of the NUMA node that all named cards share: the kubelet may have aligned CPUs with it."""
        nodes = {gpu.numa_node for gpu in self.inventory.gpus if gpu.uuid in named}
        if len(nodes) != 1 or None in nodes:
            return frozenset()
        return frozenset(gpu.uuid for gpu in self.inventory.gpus if gpu.numa_node in nodes)

    def _node(self, book: Book) -> NodeState:
        gpus = self.inventory.gpus
        return NodeState.build(gpus, self.inventory.topology, book.allocations(gpus))

    def _present(self, book: Book, grant: Grant) -> Mapping[str, Mapping[str, int]]:
        cards = set(grant.quota())
        neighbours = (other for other in book.grants if other.id != grant.id and cards & set(other.quota()))
        return {other.id: self._store.reading(other.id).present() for other in neighbours}


def _card_name(token: str) -> str:
    try:
        return parse_token(token).uuid
    except TokenError:
        return ""
