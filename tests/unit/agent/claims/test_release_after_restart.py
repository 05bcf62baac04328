# SPDX-License-Identifier: Apache-2.0
"""What an earlier agent has left prepared ends as soon as nobody has it, though its call may never come again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.fakes.claims_of_node import claiming


def run(work):
    return asyncio.run(work)


def test_an_attached_pod_that_ends_after_a_restart_leaves_nothing(node, make_node, prepared):
    """The kubelet has had its answer, so no other call comes."""
    pod = node.cluster.put(claiming("late"))
    assert run(node.unprepare(prepared)) == [""]
    after = make_node()
    after.claims.put(prepared)
    after.cluster.synced = False
    run(after.release.look())
    assert after.store.table.allocations, "its container may be about to start"
    after.cluster.put(pod)
    after.cluster.synced = True
    run(after.release.look())
    assert after.store.table.allocations
    after.cluster.pods.clear()
    run(after.release.look())
    assert not after.store.table.allocations and not after.cdi.claims()


def test_a_claim_that_ended_while_the_agent_was_dead_is_released_as_soon_as_the_pods_are_known(
    make_node, prepared
):
    after = make_node()
    after.claims.put(replace(prepared, reserved_for=()))
    after.cluster.synced = False
    run(after.release.look())
    assert after.store.table.allocations
    after.cluster.synced = True
    run(after.release.look())
    assert not after.store.table.allocations


def test_a_claim_that_is_reserved_or_used_survives_a_restart(node, make_node, prepared):
    (allocation,) = node.store.table.allocations
    after = make_node()
    after.claims.put(prepared)
    run(after.release.look())
    assert after.store.table.allocations, "its pod is on its way"
    after = make_node()
    after.mounted = {allocation.id}
    run(after.release.look())
    assert after.store.table.allocations, "it was deleted by force, and its container runs"


def test_a_claim_that_loses_its_pod_after_a_restart_waits_for_the_call(make_node, prepared):
    after = make_node()
    after.cluster.put(claiming("train"))
    run(after.release.look())
    after.cluster.pods.clear()
    run(after.release.look())
    assert after.store.table.allocations
    after.now = 60.0
    run(after.release.look())
    assert not after.store.table.allocations
