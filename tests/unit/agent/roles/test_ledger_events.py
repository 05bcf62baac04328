# SPDX-License-Identifier: Apache-2.0
"""Who is told that a node loses the locks of processes, and how often."""

from dataclasses import replace
from types import SimpleNamespace

from agent.roles.ledger_events import LedgerEvents
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.model import Pod
from tests.fakes.nodes import allocation

ONE = allocation(1, (0, range(2)), container=ContainerRef("default", "p", "main"))
NAMELESS = allocation(2, (1, range(2)))


class Pods:
    """The pods that are known, by name, and the events that were sent."""

    def __init__(self):
        self.pods = {}
        self.sent = []

    def pod(self, namespace, name):
        return self.pods.get((namespace, name))

    def event(self, *words):
        self.sent.append(words)


def test_each_container_is_told_once_as_soon_as_its_pod_is_known():
    cluster = Pods()
    store = SimpleNamespace(
        table=AllocationTable().with_allocation(ONE).with_allocation(NAMELESS),
        dirs=SimpleNamespace(ledger_files=SimpleNamespace(unsafe="/state: it does not keep a lock")),
    )
    events = LedgerEvents(cluster, store)
    events.send()
    assert cluster.sent == []
    the_pod = cluster.pods["default", "p"] = Pod("default", "p", "uid-p")
    events.send()
    events.send()
    ((pod, kind, reason, text, container),) = cluster.sent
    assert (pod, kind, reason, container) == (the_pod, "Warning", "LedgerMayOvercount", "main")
    assert "/state: it does not keep a lock" in text
    again = replace(ONE, id="f" * 32)
    store.table = AllocationTable().with_allocation(again)
    events.send()
    assert len(cluster.sent) == 2
    store.table = AllocationTable().with_allocation(replace(again, id="e" * 32, ended=True))
    events.send()
    assert len(cluster.sent) == 2
