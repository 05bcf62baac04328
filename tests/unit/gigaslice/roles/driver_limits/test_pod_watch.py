# SPDX-License-Identifier: Apache-2.0
"""Pods' cgroups that come and go: on ordinary directories, and on the kernel's own where this machine has it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

import pytest

from gigaslice.core.limits.driver_limit_messages import WatchAnswer
from gigaslice.roles.driver_limits import pod_watch
from gigaslice.roles.driver_limits.cgroup_tree import CgroupTree
from gigaslice.roles.driver_limits.pod_watch import PodWatch
from gigaslice.runtime.inotify import OVERFLOW, Event, Inotify
from tests.fakes.cgroup_trees import LAYOUTS, make_cgroup, make_root
from tests.fakes.eventually import run_beside

UID, OTHER = "2c48913c-b29f-11e7-9350-020968147796", "3c48913c-b29f-11e7-9350-020968147796"
ID = "a1" * 32
NEVER = 3600.0  # seconds between two walks: what is found was told by inotify
KERNEL = Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")


def watched(root: Path, story, walk_seconds: float = NEVER) -> None:
    """Runs STORY(watch) beside a watch of ROOT."""

    async def main():
        watch = PodWatch(CgroupTree(root), walk_seconds)
        await run_beside(watch.run(), story(watch))

    asyncio.run(main())


async def follow(watch: PodWatch, answer: WatchAnswer, *uids: str) -> WatchAnswer:
    """Watches on from ANSWER until there are these pods."""
    while set(answer.uids) != set(uids):
        following = await watch.changed(answer.sequence, 60)
        assert following.sequence > answer.sequence
        answer = following
    return answer


@pytest.fixture
def root(tmp_path, version_2_at):
    version_2_at.append(tmp_path / "cgroup")
    return make_root(tmp_path / "cgroup")


def test_the_first_question_is_answered_at_once(root):
    make_cgroup(root, f"kubepods/pod{UID}/{ID}")

    async def story(watch):
        answer = await watch.changed(0, 60)
        assert answer.uids == (UID,) and answer.sequence > 0
        assert await watch.changed(answer.sequence - 1, 60) == answer

    watched(root, story)


def test_without_a_change_the_answer_is_the_same_after_the_time(root):
    async def story(watch):
        answer = await watch.changed(0, 60)
        assert await watch.changed(answer.sequence, 0.05) == answer

    watched(root, story)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_pods_that_come_and_go_are_told(root, layout):
    make_cgroup(root, str(Path(layout.pod_path(UID)).parent))

    async def story(watch):
        answer = await watch.changed(0, 60)
        assert answer.uids == ()
        pod = make_cgroup(root, layout.pod_path(UID))
        answer = await follow(watch, answer, UID)
        make_cgroup(root, layout.container_path(OTHER, ID))
        answer = await follow(watch, answer, UID, OTHER)
        shutil.rmtree(pod)
        await follow(watch, answer, OTHER)

    watched(root, story)


def test_pods_in_a_place_where_none_were_are_found(root):
    """The kubelet's first pod of a class makes the directories around it, too."""

    async def story(watch):
        answer = await watch.changed(0, 60)
        make_cgroup(root, f"kubelet/kubepods/besteffort/pod{UID}/{ID}")
        await follow(watch, answer, UID)

    watched(root, story)


def test_what_inotify_does_not_tell_is_walked(root, monkeypatch):
    monkeypatch.setattr(Inotify, "add", lambda self, path, mask: 1)

    async def story(watch):
        answer = await watch.changed(0, 60)
        make_cgroup(root, f"kubepods/pod{UID}")
        await follow(watch, answer, UID)

    watched(root, story, 0.05)


def test_without_inotify_it_is_walked(root, monkeypatch):
    def failure(self):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(pod_watch.Inotify, "__init__", failure)

    async def story(watch):
        answer = await watch.changed(0, 60)
        make_cgroup(root, f"kubepods/pod{UID}")
        await follow(watch, answer, UID)

    watched(root, story, 0.05)


def test_events_that_were_lost_have_it_walked(root, monkeypatch):
    real, lost = Inotify.read, [Event(-1, OVERFLOW)]
    make_cgroup(root, "kubepods")

    def read(self):
        real(self)
        return [lost.pop()] if lost else []

    monkeypatch.setattr(Inotify, "read", read)

    async def story(watch):
        answer = await watch.changed(0, 60)
        make_cgroup(root, f"kubepods/pod{UID}")
        await follow(watch, answer, UID)

    watched(root, story)


def test_a_pod_that_was_made_again_is_a_change(root):
    pod = make_cgroup(root, f"kubepods/pod{UID}")

    async def story(watch):
        answer = await watch.changed(0, 60)
        pod.rename(root.parent / "old")  # so that its inode is not the new one's
        make_cgroup(root, f"kubepods/pod{UID}")
        following = await watch.changed(answer.sequence, 60)
        assert following.uids == answer.uids and following.sequence > answer.sequence

    watched(root, story)


def test_numbers_go_on_after_a_restart(root):
    numbers = []

    async def story(watch):
        numbers.append((await watch.changed(0, 60)).sequence)

    for _ in range(2):
        watched(root, story)
    assert numbers[0] != numbers[1]


@pytest.fixture
def kernels():
    """A cgroup of the kernel, removed at the end with all below it."""
    mount = next(
        (path for path in KERNEL if CgroupTree(path).root == str(path) and CgroupTree(path).version_2), None
    )
    if mount is None:
        pytest.skip("no cgroup v2 is mounted here")
    top = mount / f"gigaslice-test-{os.getpid()}"
    try:
        top.mkdir()
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    yield top
    for path in sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()
    top.rmdir()


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_kernel_tells_of_pods_cgroups(kernels, layout):
    def remove(path):
        for directory in [*sorted((each for each in path.rglob("*") if each.is_dir()), reverse=True), path]:
            directory.rmdir()

    Path(kernels, layout.pod_path(UID)).parent.mkdir(parents=True)

    async def story(watch):
        answer = await watch.changed(0, 60)
        assert answer.uids == ()
        Path(kernels, layout.container_path(UID, ID)).mkdir(parents=True)
        answer = await follow(watch, answer, UID)
        Path(kernels, layout.container_path(OTHER, ID)).mkdir(parents=True)
        answer = await follow(watch, answer, UID, OTHER)
        remove(kernels / layout.pod_path(UID))
        await follow(watch, answer, OTHER)

    watched(kernels, story)
