# SPDX-License-Identifier: Apache-2.0
"""Consumers follow the pods, and lost files of the container runtime come back."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace

import pytest

from gigaslice.core.errors import StorageError
from tests.fakes.claims_of_node import claim, claiming, result, user
from vcuda import contract


def names(node):
    return [[str(consumer.ref) for consumer in one.consumers] for one in node.store.table.allocations]


def test_later_pods_are_consumers_as_they_come_and_go(node):
    one = node.reserve(claim("c", result(0, 8)), claiming("a"))
    asyncio.run(node.prepare(one))
    node.cluster.put(claiming("b", user("x", "c"), user("y")))
    node.following.follow()
    assert names(node) == [["default/a/main", "default/b/x"]]
    node.cluster.put(claiming("a", phase="Succeeded"))
    node.following.follow()
    assert names(node) == [["default/b/x"]]
    (allocation,) = node.store.table.allocations
    owner = json.loads((node.store.dirs.path(allocation.id) / contract.OWNER_FILE).read_text())
    assert owner["pod"] == "b"
    node.cluster.pods.clear()
    node.following.follow()
    assert names(node) == [["default/b/x"]], "whose it was is worth more than nobody's"


def test_pods_that_are_not_known_change_nothing(node):
    one = node.reserve(claim("c", result(0, 8)), claiming("a"))
    asyncio.run(node.prepare(one))
    node.cluster.pods.clear()
    node.cluster.put(claiming("b"))
    node.cluster.synced = False
    node.following.follow()
    assert names(node) == [["default/a/main"]]


def test_a_later_pod_that_does_not_fit_is_told_once(node):
    one = node.reserve(claim("c", result(0, 4, "a"), result(1, 4, "b")), claiming("p"))
    asyncio.run(node.prepare(one))
    node.cluster.put(claiming("late", user("x", "c/a")))
    for _ in range(3):
        node.following.follow()
    (sentence,) = node.cluster.said("ClaimNotExecutable")
    assert "container x has only a of claim c" in sentence


def test_files_that_were_wiped_or_changed_are_made_again(node):
    one = node.reserve(claim("c", result(0, 8)), claiming("a"))
    asyncio.run(node.prepare(one))
    path = node.cdi.path(one.uid)
    before = path.read_bytes()
    shutil.rmtree(path.parent)
    node.following.restore_files()
    assert path.read_bytes() == before and path.stat().st_mode & 0o777 == 0o644
    path.write_text("{}")
    node.following.restore_files()
    assert path.read_bytes() == before
    inode = path.stat().st_ino
    node.following.restore_files()
    assert path.stat().st_ino == inode, "a runtime that watches the directory is not woken for nothing"


def test_the_name_that_an_agent_of_0_1_0_has_answered_is_there_too(node):
    one = node.reserve(claim("c", result(0, 4, "a"), result(1, 4, "b")), claiming("p"))
    asyncio.run(node.prepare(one))
    (allocation,) = node.store.table.allocations
    path = node.cdi.path(one.uid)
    prepared = path.read_bytes()
    path.unlink()
    node.following.restore_files()
    assert path.read_bytes() == prepared
    devices = {one["name"]: one["containerEdits"] for one in json.loads(prepared)["devices"]}
    assert devices.keys() == {allocation.id, f"{one.uid}.a", f"{one.uid}.b"}
    assert len({str(edits) for edits in devices.values()}) == 1


def test_files_of_claims_that_there_is_no_record_of_go(node, tmp_path):
    foreign = tmp_path / "cdi" / "nvidia.yaml"
    foreign.parent.mkdir()
    foreign.write_text("kind: nvidia.com/gpu")
    node.cdi.write("stray", {})
    node.following.restore_files()
    assert not node.cdi.claims() and foreign.exists()


def test_pods_of_a_later_claim_of_that_name_are_its_consumers_alone(node):
    one = node.reserve(claim("c", result(0, 8)), claiming("a"))
    asyncio.run(node.prepare(one))
    node.cluster.pods.clear()
    node.cluster.put(claiming("b"))
    node.following.follow()  # before anybody has said which claim that is
    later = node.reserve(replace(one, uid="uid-2"), claiming("b"))
    assert not asyncio.run(node.prepare(later))[0].error
    node.following.follow()
    assert names(node) == [[], ["default/b/main"]]


@pytest.mark.parametrize("name", ["gigaslice.io-vgpu-.json", "gigaslice.io-vgpu-a b.json"])
def test_files_with_names_of_no_claim_are_left_alone(node, name):
    one = node.reserve(claim("c", result(0, 8)), claiming("a"))
    asyncio.run(node.prepare(one))
    stray = node.cdi.path(one.uid).with_name(name)
    stray.write_text("{}")
    node.following.restore_files()
    assert stray.exists() and node.cdi.claims() == {one.uid}


def test_a_file_that_cannot_be_made_keeps_no_other_away(node):
    one = node.reserve(claim("c", result(0, 8)), claiming("a"))
    two = node.reserve(claim("d", result(1, 8)), claiming("b", claims=("d",)))
    asyncio.run(node.prepare(one, two))
    path = node.cdi.path(one.uid)
    shutil.rmtree(path.parent)
    path.mkdir(parents=True)
    with pytest.raises(StorageError):
        node.following.restore_files()
    assert node.cdi.path(two.uid).is_file()
    node.cluster.put(claiming("late"))
    task = node.following.run()

    async def story():
        running = asyncio.ensure_future(task)
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(story())
    assert names(node)[0] == ["default/a/main", "default/late/main"]
