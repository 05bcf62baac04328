# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory: pods that the test puts in, events and evictions that it looks at."""

from __future__ import annotations

import asyncio

from agent.apiserver import Eviction
from agent.apiserver.own_node import Publishing
from gigaslice.core.model import Pod
from gigaslice.runtime.time_limit import set_within


class MemoryCluster:
    def __init__(self) -> None:
        self.expected = self.synced = self.answering = True
        self.pods: dict[tuple[str, str], Pod] = {}
        self.events: list[tuple[str, str, str, str]] = []  # pod, reason, text, container
        self.evicted: list[Pod] = []
        self.eviction = Eviction()  # what comes of asking for one
        self.woken: list[Pod] = []
        self.wake_problem = ""
        self.published: list[str] = []
        self.publishing: Publishing | None = None
        self._awaited: list[asyncio.Event] = []

    def put(self, pod: Pod) -> Pod:
        self.pods[pod.namespace, pod.name] = pod
        while self._awaited:
            self._awaited.pop().set()
        return pod

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self.pods.get((namespace, name))

    async def read(self, timeout: float) -> dict[tuple[str, str], Pod]:
        del timeout
        return dict(self.pods)

    def event(self, pod: Pod, kind: str, reason: str, text: str, container: str = "") -> None:
        self.events.append((str(pod), reason, text, container))

    def said(self, reason: str) -> list[str]:
        return [text for _, one, text, _ in self.events if one == reason]

    def publish(self, inventory: str) -> None:
        self.published.append(inventory)

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> Eviction:
        if not dry_run and self.eviction.done:
            self.evicted.append(pod)
        return self.eviction

    async def wake(self, pod: Pod) -> str:
        if not self.wake_problem:
            self.woken.append(pod)
        return self.wake_problem

    async def news(self, timeout: float) -> bool:
        event = asyncio.Event()  # of this loop: a test may have several, one after the other
        self._awaited.append(event)
        return await set_within(event, timeout)
