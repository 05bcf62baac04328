"""Says on the pods concerned what has happened to their cards."""

from __future__ import annotations

from collections.abc import Callable

from agent.kube import Cluster
from agent.state.store import Store

__all__ = ["card_news"]


def card_news(cluster: Cluster, store: Store) -> Callable[[str, bool, str], None]:
    """A function that says a sentence about a card on every pod of CLUSTER that holds slices of it by STORE's book."""

    def tell(uuid: str, well: bool, text: str) -> None:
        kind, reason = ("Normal", "GigasliceCardWell") if well else ("Warning", "GigasliceCardSick")
        for grant in store.book.grants:
            owner = grant.container
            if owner is None or grant.gone or uuid not in grant.quota():
                continue
            pod = cluster.pod(owner.namespace, owner.pod)
            if pod is not None:
                cluster.event(pod, kind, reason, text, owner.container)

    return tell
