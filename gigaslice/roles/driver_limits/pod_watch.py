# SPDX-License-Identifier: Apache-2.0
"""Which pods have a cgroup, and who waits for that to change.

inotify tells of new and of deleted directories within milliseconds. It watches the directories that hold pods' cgroups
or may come to hold some, and whatever it tells of has the whole tree walked: events may be lost, and a kubelet may put
pods where none were before. For both there is a walk every few seconds anyway.
Tests: tests/unit/gigaslice/roles/driver_limits/test_pod_watch.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from gigaslice.core.limits.driver_limit_messages import WatchAnswer
from gigaslice.roles.driver_limits.cgroup_tree import CgroupTree, PodCgroups
from gigaslice.runtime.inotify import CREATED, DELETED, ONLY_DIRECTORY, Inotify
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.time_limit import set_within

__all__ = ["PodWatch"]

_WALK_SECONDS = 5.0
_PAUSE = 0.02  # between two walks: one pod's start makes several events
_MASK = CREATED | DELETED | ONLY_DIRECTORY


class PodWatch:
    """Follows the pods' cgroups of TREE."""

    def __init__(self, tree: CgroupTree, walk_seconds: float = _WALK_SECONDS) -> None:
        self._tree = tree
        self._walk_seconds = walk_seconds
        self._sequence = 1 + secrets.randbits(
            48
        )  # none of an earlier process: only whether two are the same counts
        self._pods: PodCgroups | None = None
        self._watches: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._log = get_logger("driver-limits")

    async def changed(self, sequence: int, seconds: float) -> WatchAnswer:
        """The pods, as soon as their number is not SEQUENCE, and after SECONDS anyway."""
        if self._pods is None or self._sequence == sequence:
            await set_within(self._changed, seconds)
        uids = () if self._pods is None else tuple(sorted(self._pods.paths))
        return WatchAnswer(self._sequence, uids)

    async def run(self) -> None:
        """Works until cancelled."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        try:
            notify = Inotify()
        except OSError as error:
            self._log.warning("cgroups not watched", detail=f"{error.strerror}; they are walked instead")
            await self._walk_again_and_again(woken, None)
            return
        loop.add_reader(notify, woken.set)
        try:
            await self._walk_again_and_again(woken, notify)
        finally:
            loop.remove_reader(notify)
            notify.close()

    async def _walk_again_and_again(self, woken: asyncio.Event, notify: Inotify | None) -> None:
        while True:
            pods = await asyncio.to_thread(self._tree.pods)
            if notify is not None and self._watch(notify, pods):
                continue  # what came between the walk and the watch is found by another one
            self._put(pods)
            await set_within(woken, self._walk_seconds)
            await asyncio.sleep(_PAUSE)
            woken.clear()
            while notify is not None and notify.read():
                pass

    def _watch(self, notify: Inotify, pods: PodCgroups) -> bool:
        """Watches the directories that hold pods; whether one is new."""
        watches: dict[str, int] = {}
        for directory in pods.parents:
            with contextlib.suppress(OSError):  # gone meanwhile, or one more than the kernel allows
                watches[directory] = notify.add(directory, _MASK)
        new = not set(watches.values()) <= set(self._watches.values())
        for watch in set(self._watches.values()) - set(watches.values()):
            notify.remove(watch)
        self._watches = watches
        return new

    def _put(self, pods: PodCgroups) -> None:
        if self._pods is not None and pods.identities == self._pods.identities:
            return
        self._pods = pods
        self._sequence += 1
        self._changed.set()
        self._changed = asyncio.Event()
