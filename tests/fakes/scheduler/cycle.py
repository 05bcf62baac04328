# SPDX-License-Identifier: Apache-2.0
"""The cycle of kube-scheduler 1.36, as far as an extender can see it: held against recorded conversations.

Filter, prioritize, assume, then the next pod, while the binding of the first runs. A refused pod waits for an event:
a change of its own, of a node (heartbeats apart), a new node, a pod that is gone from a node, or that was assumed there
and whose binding has failed. A failed attempt waits for its back-off instead. The PATCH of the pod's own condition is
such an event too, unless the node's numbers are what it waits for. A pod that asks for nothing of the extender's is
bound without a word to it.

What differs from the real one: resources are counted, nothing else is filtered; a victim is gone at once; the first
second of the back-off is SECOND long, so that a test need not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import deque
from collections.abc import Collection
from typing import Any

import aiohttp

from tests.fakes.kubeapi import ApiServer
from tests.fakes.kubeapi.store import Document

Key = tuple[str, str]
NAME = "gigaslice-scheduler"
IGNORED = "gpuclass.gigaslice.io/"
MANAGED = ("gigaslice.io/vgpu-memory", "gigaslice.io/gpu")


class SchedulerStandIn:
    """Schedules the pods of API that name it.

    `said`: every call of the extender as (verb, pod, request, status, reply), in the order in which they were sent;
    `failures`: bindings that failed, by pod.
    """

    def __init__(
        self,
        api: ApiServer,
        extender: str,
        *,
        seed: int = 0,
        second: float = 0.02,
        timeout: float = 2.0,
        annotations_wake: bool = True,
        second_bind: bool = False,
        managed: Collection[str] = MANAGED,
    ) -> None:
        self.said: list[tuple[str, str, Any, int, Any]] = []
        self.failures: list[tuple[str, str]] = []
        self.events = 0
        self._api = api
        self._extender = extender
        self._random = random.Random(seed)
        self._second = second
        self._timeout = timeout
        self._annotations_wake = annotations_wake
        self._second_bind = second_bind
        self._managed = managed
        self._active: deque[Key] = deque()
        self._waiting: set[Key] = set()
        self._insufficient: set[Key] = set()  # of those that wait: no node's numbers were enough
        self._assumed: dict[str, tuple[str, Document]] = {}  # by UID: node and pod
        self._attempts: dict[Key, int] = {}
        self._nominated: dict[Key, str] = {}
        self._nodes: dict[str, str] = {}
        self._ring = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    @property
    def calls(self) -> list[str]:
        """The verbs that were called and answered, in order."""
        return [verb for verb, _, _, _, reply in self.said if reply is not None]

    async def __aenter__(self) -> SchedulerStandIn:
        self._session = aiohttp.ClientSession()
        self._api.store.listeners.append(self._event)
        for node in self._api.all("nodes"):
            self._nodes[node["metadata"]["name"]] = _relevant(node, self._annotations_wake)
        for pod in self._api.all("pods"):
            self._event("pods", "ADDED", pod)
        self._spawn(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._api.store.listeners.remove(self._event)
        for one in list(self._tasks):
            one.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the queue ----------------------------------------------------------------------------------------------

    def _event(self, resource: str, kind: str, one: Document) -> None:
        metadata = one["metadata"]
        if resource == "nodes":
            if kind == "DELETED":
                self._nodes.pop(metadata["name"], None)
                return
            now = _relevant(one, self._annotations_wake)
            if self._nodes.get(metadata["name"]) != now:
                self._nodes[metadata["name"]] = now
                self._wake_all()
        elif resource == "pods":
            key = (metadata["namespace"], metadata["name"])
            if kind == "DELETED":
                self._assumed.pop(metadata["uid"], None)
                self._waiting.discard(key)
                if one["spec"].get("nodeName"):
                    self._wake_all()
            elif one["spec"].get("nodeName"):
                self._waiting.discard(key)
            elif one["spec"].get("schedulerName") == NAME and (
                kind == "ADDED" or key in self._waiting - self._insufficient
            ):
                self._push(key)

    def _wake_all(self) -> None:
        self.events += 1
        for key in sorted(self._waiting):
            self._push(key)

    def _push(self, key: Key) -> None:
        self._waiting.discard(key)
        self._insufficient.discard(key)
        if key not in self._active:
            self._active.append(key)
        self._ring.set()

    def _back_off(self, key: Key) -> None:
        self._attempts[key] = self._attempts.get(key, 0) + 1
        pause = self._second * min(10, 2 ** (self._attempts[key] - 1)) * self._random.uniform(1.1, 1.9)
        asyncio.get_running_loop().call_later(pause, self._push, key)

    # --- the cycle ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            while self._active:
                key = max(self._active, key=self._priority)
                self._active.remove(key)
                pod = self._api.store.objects["pods"].get(key)
                if (
                    pod is not None
                    and not pod["spec"].get("nodeName")
                    and pod["metadata"]["uid"] not in self._assumed
                ):
                    await self._schedule(key, pod)
            self._ring.clear()
            await self._ring.wait()

    def _priority(self, key: Key) -> int:
        pod = self._api.store.objects["pods"].get(key)
        return pod["spec"].get("priority", 0) if pod else 0

    async def _schedule(self, key: Key, pod: Document) -> None:
        names = [name for name in self._nodes if self._fits(pod, name)]
        self._random.shuffle(names)
        if not names:
            await self._preempt(key, pod)
            return
        nominated = self._nominated.pop(key, "")
        if nominated in names:
            names = [nominated]
        if not any(name in self._managed for name in _requests(pod)):
            metadata = pod["metadata"]
            patch = {"spec": {"nodeName": self._random.choice(names)}}
            self._api.change("pods", metadata["name"], patch, metadata["namespace"])
            return
        status, reply = await self._call("filter", pod, {"Pod": pod, "Nodes": None, "NodeNames": names})
        if status != 200 or reply.get("Error"):
            self._condition(pod, "SchedulerError", reply.get("Error") or f"status {status}")
            self._back_off(key)
            return
        failed = {**reply["FailedNodes"], **reply["FailedAndUnresolvableNodes"]}
        fitting = reply["NodeNames"] or []
        if not fitting:
            self._waiting.add(key)
            texts = sorted({text: list(failed.values()).count(text) for text in failed.values()}.items())
            message = ", ".join(f"{count} {text}" for text, count in texts)
            self._condition(pod, "Unschedulable", f"0/{len(names)} nodes are available: {message}.")
            return
        names = fitting
        node = names[0]
        if len(names) > 1:
            status, scores = await self._call(
                "prioritize", pod, {"Pod": pod, "Nodes": None, "NodeNames": names}
            )
            total = {one["Host"]: one["Score"] * 10 for one in scores} if status == 200 else {}
            node = max(names, key=lambda name: total.get(name, 0) + self._random.randrange(1600))
        self._assumed[pod["metadata"]["uid"]] = node, pod
        self._spawn(self._bind(key, pod, node))
        await asyncio.sleep(0)  # its call goes out before the next pod's first

    async def _bind(self, key: Key, pod: Document, node: str) -> None:
        metadata = pod["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        status, reply = await self._call("bind", pod, body)
        if status == 200 and not reply.get("Error"):
            return
        self._assumed.pop(metadata["uid"], None)
        self._wake_all()
        self.failures.append((metadata["name"], str(reply.get("Error") or f"status {status}")))
        if key in self._api.store.objects["pods"]:
            self._condition(pod, "SchedulerError", self.failures[-1][1])
            self._push(key) if self._second_bind else self._back_off(key)

    async def _preempt(self, key: Key, pod: Document) -> None:
        candidates = {}
        for node in self._nodes:
            lower = [
                one
                for one in self._on(node)
                if one["spec"].get("priority", 0) < pod["spec"].get("priority", 0)
            ]
            lower.sort(key=lambda one: one["spec"].get("priority", 0))
            gone: list[Document] = []
            while lower and not self._fits(pod, node, gone):
                gone.append(lower.pop(0))
            if gone and self._fits(pod, node, gone):
                victims = [{"UID": one["metadata"]["uid"]} for one in gone]
                candidates[node] = {"Pods": victims, "NumPDBViolations": 0}
        chosen: dict[str, Any] = {}
        if candidates:
            body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": candidates}
            status, reply = await self._call("preempt", pod, body)
            chosen = (reply.get("NodeNameToMetaVictims") or {}) if status == 200 else {}
        self._waiting.add(key)
        self._insufficient.add(key)
        if chosen:
            node = min(chosen, key=lambda name: (len(chosen[name]["Pods"]), name))
            self._nominated[key] = node
            metadata = pod["metadata"]
            nominated = {"status": {"nominatedNodeName": node}}
            self._api.change("pods", metadata["name"], nominated, metadata["namespace"])
            uids = {one["UID"] for one in chosen[node]["Pods"]}
            for one in [one for one in self._on(node) if one["metadata"]["uid"] in uids]:
                self._api.delete("pods", one["metadata"]["name"], one["metadata"]["namespace"])
        else:
            self._condition(pod, "Unschedulable", f"0/{len(self._nodes)} nodes are available: Insufficient.")

    async def _call(self, verb: str, pod: Document, body: Any) -> tuple[int, Any]:
        number = len(self.said)
        self.said.append((verb, pod["metadata"]["name"], body, 0, None))
        status, reply = 0, {}
        assert self._session is not None
        with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
            timeout = aiohttp.ClientTimeout(total=self._timeout)
            url = f"{self._extender}/scheduler/{verb}"
            async with self._session.post(url, data=json.dumps(body), timeout=timeout) as answer:
                text = await answer.text()
                status, reply = answer.status, json.loads(text) if answer.status == 200 else {}
        self.said[number] = verb, pod["metadata"]["name"], body, status, reply
        return status, reply

    # --- numbers ------------------------------------------------------------------------------------------------

    def _on(self, node: str) -> list[Document]:
        bound = [one for one in self._api.all("pods") if one["spec"].get("nodeName") == node]
        seen = {one["metadata"]["uid"] for one in bound}
        return [*bound, *(pod for uid, (on, pod) in self._assumed.items() if on == node and uid not in seen)]

    def _fits(self, pod: Document, node: str, gone: list[Document] | None = None) -> bool:
        wanted = {k: v for k, v in _requests(pod).items() if not k.startswith(IGNORED)}
        selector = pod["spec"].get("nodeSelector") or {}
        one = self._api.store.objects["nodes"].get(("", node))
        if one is None or one["spec"].get("unschedulable"):
            return False
        labels = {"kubernetes.io/hostname": node, **(one["metadata"].get("labels") or {})}
        if any(labels.get(key) != value for key, value in selector.items()):
            return False
        absent = {other["metadata"]["uid"] for other in gone or ()}
        left = {key: int(value) for key, value in one["status"]["allocatable"].items()}
        for other in self._on(node):
            if other["metadata"]["uid"] not in absent:
                for key, count in _requests(other).items():
                    left[key] = left.get(key, 0) - count
        return all(left.get(key, 0) >= count for key, count in wanted.items())

    def _condition(self, pod: Document, reason: str, message: str) -> None:
        """The PATCH of the pod's status: only where it changes anything."""
        metadata = pod["metadata"]
        if (metadata["namespace"], metadata["name"]) in self._api.store.objects["pods"]:
            condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
            patch = {"status": {"conditions": [condition]}}
            self._api.change("pods", metadata["name"], patch, metadata["namespace"])


def _requests(pod: Document) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in pod["spec"].get("containers") or ():
        for key, value in (one.get("resources", {}).get("limits") or {}).items():
            found[key] = found.get(key, 0) + int(value)
    for one in pod["spec"].get("initContainers") or ():
        for key, value in (one.get("resources", {}).get("limits") or {}).items():
            found[key] = max(found.get(key, 0), int(value))
    return found


def _relevant(node: Document, annotations: bool) -> str:
    """What of a node an event is made of: not its heartbeats; before 1.26 not its annotations."""
    metadata = node["metadata"]
    parts = [metadata.get("labels"), node["spec"], node["status"].get("allocatable")]
    return json.dumps([*parts, metadata.get("annotations") if annotations else None], sort_keys=True)
