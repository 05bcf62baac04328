# SPDX-License-Identifier: Apache-2.0
"""Claims end by the kubelet's call, or without it; what processes still hold counts on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from agent.accounting.presence import Presence
from agent.claims import release as release_module
from agent.claims.messages import ClaimName
from gigaslice.core.claims.origin import with_unprepared
from gigaslice.core.errors import StorageError
from gigaslice.kubeapi.failures import ApiFailure
from tests.fakes.claims_of_node import claim, claiming, result
from tests.fakes.eventually import until


def run(work):
    return asyncio.run(work)


def alive(node, monkeypatch, *ids):
    """Has the ledgers of these allocations show a process."""
    real = type(node.store).reading

    def reading(store, allocation_id):
        return (
            SimpleNamespace(alive=True, present=dict) if allocation_id in ids else real(store, allocation_id)
        )

    monkeypatch.setattr(type(node.store), "reading", reading)


def test_it_ends_with_its_directory_and_its_file(node, prepared):
    (allocation,) = node.store.table.allocations
    assert run(node.unprepare(prepared)) == [""]
    assert not node.store.table.allocations and not node.cdi.claims()
    assert not node.store.dirs.path(allocation.id).exists()


def test_a_claim_that_was_never_seen_and_one_that_ended_are_unprepared(node, prepared):
    assert run(node.unprepare(claim("never"))) == [""]
    assert run(node.unprepare(prepared)) == run(node.unprepare(prepared)) == [""]


def test_memory_that_a_process_holds_counts_until_it_ends(node, prepared, monkeypatch):
    (allocation,) = node.store.table.allocations
    alive(node, monkeypatch, allocation.id)
    assert run(node.unprepare(prepared)) == [""]
    assert [left.ended for left in node.store.table.allocations] == [True]
    assert not node.cdi.claims(), "no container begins with it any more"
    run(node.release.look())
    assert node.store.table.allocations
    monkeypatch.undo()
    run(node.release.look())
    assert not node.store.table.allocations


def test_what_leaves_is_looked_at_more_often_while_a_pod_waits_for_memory(node, prepared):
    (allocation,) = node.store.table.allocations
    node.preparation.refusals.waiting["uid-next"] = None
    assert node.release.pause() == 1.0, "nothing leaves"
    node.mounted.add(allocation.id)
    run(node.unprepare(prepared))
    assert node.release.pause() == 0.25
    node.preparation.refusals.waiting.clear()
    assert node.release.pause() == 1.0, "nobody waits"


def test_prepared_again_it_is_a_new_allocation_beside_what_still_lives(node, prepared, monkeypatch):
    (before,) = node.store.table.allocations
    alive(node, monkeypatch, before.id)
    run(node.unprepare(prepared))
    node.reserve(prepared, claiming("next"))
    (answer,) = run(node.prepare(prepared))
    assert not answer.error and run(node.prepare(prepared)) == [answer]
    assert [(one.id == before.id, one.ended) for one in node.store.table.allocations] == [
        (True, True), (False, False)
    ]  # fmt: skip


def test_a_pod_that_attaches_while_it_is_unprepared_keeps_it(node, prepared):
    node.cluster.put(claiming("late"))
    assert run(node.unprepare(prepared)) == [""]
    run(node.release.look())
    assert node.store.table.allocations and node.cdi.claims() == {prepared.uid}
    node.cluster.put(claiming("late", phase="Succeeded"))
    run(node.release.look())
    assert not node.store.table.allocations and not node.cdi.claims()


@pytest.fixture
def patient(monkeypatch):
    """The watch has as long as a loaded machine may need."""
    monkeypatch.setattr(release_module, "_NEWS_SECONDS", 60.0)


@pytest.mark.usefixtures("patient")
def test_a_pod_whose_deletion_the_watch_shows_after_the_call_keeps_nothing(node, prepared):
    node.cluster.put(claiming("deleted"))

    async def shown_late():
        answer = asyncio.create_task(
            node.release.unprepare(ClaimName(prepared.namespace, prepared.name, prepared.uid))
        )
        await asyncio.sleep(0.02)
        assert not answer.done()
        node.cluster.put(claiming("deleted", ending=True))
        return await answer

    assert run(shown_late()) == ""
    assert not node.store.table.allocations, "released before the answer"


@pytest.mark.usefixtures("patient")
def test_so_does_one_that_is_first_shown_while_the_call_is_answered(node, prepared):
    """The agent has just started: its list of the pods is older than the call."""
    name = ClaimName(prepared.namespace, prepared.name, prepared.uid)
    node.cluster.synced = False

    def present(ids):
        if not node.cluster.synced:
            node.cluster.put(claiming("deleted"))
            node.cluster.synced = True
        return Presence(frozenset(), others=True)

    node.release._present = present

    async def shown_late():
        answer = asyncio.create_task(node.release.unprepare(name))
        await until(lambda: node.cluster.synced)
        await asyncio.sleep(0.05)
        assert not answer.done()
        node.cluster.put(claiming("deleted", ending=True))
        return await answer

    assert run(shown_late()) == ""
    assert not node.store.table.allocations


def test_nor_does_one_whose_deletion_is_shown_while_its_claim_is_compared(node, prepared, monkeypatch):
    node.cluster.put(claiming("deleted"))
    real = node.claims.read

    async def read(namespace, name, seconds):
        node.cluster.put(claiming("deleted", ending=True))
        return await real(namespace, name, seconds)

    monkeypatch.setattr(node.claims, "read", read)
    assert run(node.unprepare(prepared)) == [""]
    assert not node.store.table.allocations


@pytest.mark.parametrize("says", ["ending", "terminal", "gone", "another of its name"])
def test_a_pod_that_has_ended_by_the_api_server_alone_keeps_nothing(node, prepared, says, monkeypatch):
    """The watch is behind for longer than it is waited for."""
    pod = node.cluster.put(claiming("deleted"))
    later = {
        "ending": replace(pod, ending=True),
        "terminal": replace(pod, phase="Succeeded"),
        "another of its name": replace(pod, uid="uid-later", claims=()),
    }
    reads = []

    async def read(timeout):
        reads.append(timeout)
        return {(pod.namespace, pod.name): later[says]} if says in later else {}

    monkeypatch.setattr(node.cluster, "read", read)
    assert run(node.unprepare(prepared)) == [""]
    assert not node.store.table.allocations and len(reads) == 1


@pytest.mark.parametrize("answers", [True, False])
def test_one_that_lives_by_the_api_server_keeps_it_and_so_does_one_of_which_it_says_nothing(
    node, prepared, answers, monkeypatch
):
    pod = node.cluster.put(claiming("other", phase="Running"))

    async def read(timeout):
        del timeout
        return {(pod.namespace, pod.name): pod} if answers else None

    monkeypatch.setattr(node.cluster, "read", read)
    assert run(node.unprepare(prepared)) == [""]
    assert node.store.table.allocations and node.cdi.claims() == {prepared.uid}


def test_a_pod_that_has_just_come_keeps_it_by_one_error(node, prepared):
    """A kubelet of 1.36 would forget the claim for both. It is repeated once, for the pod may be the one that ends."""
    node.cluster.put(claiming("train", ending=True))
    assert run(node.unprepare(prepared)) == [""], "alone it ends"
    assert not run(node.prepare(node.reserve(prepared, claiming("train"))))[0].error
    node.cluster.put(claiming("train", ending=True))
    late = node.cluster.put(claiming("late"))
    (error,) = run(node.unprepare(prepared))
    assert error == "claim default/c: pod default/late may just have been given it; asked again by itself"
    assert node.store.table.allocations and node.cdi.claims()
    assert run(node.unprepare(prepared)) == [""]
    assert node.store.table.allocations, "that pod has it"
    node.cluster.put(claiming("later"))
    assert "pod default/later" in run(node.unprepare(prepared))[0]
    for pod in ("late", "later"):
        node.cluster.put(replace(late, name=pod, uid=f"uid-{pod}", ending=True))
    assert run(node.unprepare(prepared)) == [""]
    assert not node.store.table.allocations


@pytest.mark.parametrize("others", [(), ("Running",)])
def test_a_pod_alone_and_one_that_runs_get_no_error(node, prepared, others):
    """The first is the one that ends: before its last phase is shown, a pod whose init container failed is Pending."""
    for phase in others:
        node.cluster.put(claiming("train", ending=True))
        node.cluster.put(claiming("other", phase=phase))
    if not others:
        node.cluster.put(claiming("train"))
    assert run(node.unprepare(prepared)) == [""]


def test_prepared_again_while_a_pod_was_attached_it_stays(node, prepared):
    pod = node.cluster.put(claiming("late"))
    run(node.unprepare(prepared))
    node.reserve(prepared, pod)
    assert not run(node.prepare(prepared))[0].error
    node.cluster.pods.clear()
    run(node.release.look())
    assert node.store.table.allocations, "its own call will come"


@pytest.mark.parametrize("change", ["gone", "another", "unreserved"])
def test_what_ended_without_a_call_is_found_by_comparing(node, prepared, change):
    if change == "gone":
        node.claims.by_name.clear()
    elif change == "another":
        node.claims.put(replace(prepared, uid="uid-2"))
    else:
        node.claims.put(replace(prepared, reserved_for=()))
    run(node.release.look())
    assert node.store.table.allocations, "the kubelet's call may be on its way"
    node.now = 60.0
    run(node.release.look())
    assert not node.store.table.allocations


def test_a_container_of_a_pod_that_was_deleted_by_force_keeps_what_it_has(node, prepared):
    """Its object and its claim are gone at once, and it may open the GPU until the kubelet has stopped it."""
    (allocation,) = node.store.table.allocations
    node.claims.by_name.clear()
    node.mounted = {allocation.id}
    for node.now in (0.0, 60.0, 120.0):
        run(node.release.look())
    assert node.store.table.allocations and node.cdi.claims()
    node.mounted = set()
    node.now = 180.0
    run(node.release.look())
    assert not node.store.table.allocations


def test_a_container_that_runs_with_it_keeps_what_is_unprepared(node, prepared):
    """The pod that attached may have been deleted since, or the API server may be away."""
    (allocation,) = node.store.table.allocations
    node.mounted = {allocation.id}
    node.cluster.synced = False
    assert run(node.unprepare(prepared)) == [""]
    run(node.release.look())
    assert node.store.table.allocations
    node.mounted = set()
    run(node.release.look())
    assert not node.store.table.allocations


def test_what_is_reserved_or_not_known_is_kept(node, prepared):
    run(node.release.look())
    node.now = 61.0
    run(node.release.look())
    assert node.store.table.allocations, "reserved for a pod that the watch does not show yet"
    node.claims.failure = ApiFailure("away")
    node.now = 122.0
    run(node.release.look())
    node.claims.failure = ValueError("nonsense")
    node.now = 183.0
    run(node.release.look())
    node.claims.failure = None
    node.claims.by_name.clear()
    node.cluster.synced = False
    node.now = 244.0
    run(node.release.look())
    assert node.store.table.allocations
    node.cluster.synced = True
    run(node.release.look())
    assert not node.store.table.allocations


def test_claims_are_compared_once_a_minute(node, prepared):
    before = node.claims.reads
    for node.now in (0.0, 1.0, 60.0, 61.0, 119.0):
        run(node.release.look())
    assert node.claims.reads == before + 1


def test_where_the_api_server_does_not_say_it_is_asked_again_soon(node, prepared):
    node.claims.failure = ApiFailure("away")
    for node.now in (0.0, 60.0):
        run(node.release.look())
    node.claims.failure = None
    node.claims.by_name.clear()
    node.now = 64.9
    run(node.release.look())
    assert node.store.table.allocations
    node.now = 65.0
    run(node.release.look())
    assert not node.store.table.allocations


def test_a_claim_that_is_being_prepared_is_not_compared(make_node):
    node = make_node(gpus=1)
    first = node.reserve(claim("c", result(0, 20)), claiming("first"))
    late = node.reserve(claim("d", result(0, 20)), claiming("late", claims=("d",)))

    async def story():
        await node.prepare(first)
        asked = asyncio.create_task(node.prepare(late))
        await asyncio.sleep(0.05)
        node.claims.put(replace(late, reserved_for=()))
        node.cluster.pods.pop(("default", "late"))
        await node.release.look()
        assert len(node.store.table.allocations) == 2
        await asked

    run(story())


def test_pods_of_a_later_claim_of_that_name_keep_nothing(node, prepared):
    """A pod was deleted by force and made anew with its claim before the kubelet has ended the first."""
    later = node.reserve(replace(prepared, uid="uid-2"), claiming("next"))
    assert run(node.unprepare(prepared)) == [""]
    assert not node.store.table.allocations
    assert not run(node.prepare(later))[0].error


def test_which_claim_a_pod_has_is_asked_again_where_nothing_could_be_read(node, prepared):
    node.reserve(replace(prepared, uid="uid-2"), claiming("next"))
    node.claims.failure = ApiFailure("away")
    assert run(node.unprepare(prepared)) == [""]
    assert node.store.table.allocations
    node.claims.failure = None
    for node.now in (0.0, 59.0):
        run(node.release.look())
    assert node.store.table.allocations, "once a minute"
    node.now = 60.0
    run(node.release.look())
    assert not node.store.table.allocations


def test_without_a_call_a_claim_ends_though_pods_have_a_later_one_of_that_name(node, prepared):
    later = node.reserve(replace(prepared, uid="uid-2"), claiming("next"))
    assert not run(node.prepare(later))[0].error
    for node.now in (0.0, 60.0):
        run(node.release.look())
    assert [allocation.origin.uid for allocation in node.store.table.allocations] == ["uid-2"]


def test_a_pod_that_comes_while_processes_are_looked_for_keeps_it(node, prepared, monkeypatch):
    def present(ids):
        node.cluster.put(claiming("late"))
        return Presence(frozenset(), others=True)

    monkeypatch.setattr(node.release, "_present", present)
    assert run(node.unprepare(prepared)) == [""]
    assert node.store.table.allocations


def test_what_could_not_be_recorded_is_tried_again(node, prepared, monkeypatch):
    node.cluster.put(claiming("late"))
    run(node.unprepare(prepared))
    node.cluster.pods.clear()
    with monkeypatch.context() as broken:
        broken.setattr(node.store, "release", _fails)
        with pytest.raises(StorageError):
            run(node.release.look())
        assert node.store.table.allocations
    run(node.release.look())
    assert not node.store.table.allocations and not node.cdi.claims()


def test_a_call_that_fails_does_not_keep_what_was_unprepared(node, prepared):
    node.cluster.put(claiming("late"))
    run(node.unprepare(prepared))
    node.claims.failure = ValueError("nonsense")
    assert run(node.prepare(prepared))[0].error
    node.claims.failure = None
    node.cluster.pods.clear()
    run(node.release.look())
    assert not node.store.table.allocations


def test_nothing_is_written_while_its_processes_live(node, prepared, monkeypatch):
    (allocation,) = node.store.table.allocations
    alive(node, monkeypatch, allocation.id)
    run(node.unprepare(prepared))
    monkeypatch.setattr(node.store, "release", _fails)
    run(node.release.look())


def test_a_call_that_comes_while_claims_are_compared_keeps_it(node, prepared, monkeypatch):
    node.claims.by_name.clear()
    preparing = []
    monkeypatch.setattr(node.release, "_preparing", lambda uid: uid in preparing)
    monkeypatch.setattr(
        node.release,
        "_present",
        lambda ids: preparing.append(prepared.uid) or Presence(frozenset(), others=True),
    )
    for node.now in (0.0, 60.0):
        run(node.release.look())
    assert preparing and node.store.table.allocations


def test_what_is_prepared_again_while_processes_are_looked_for_stays(node, prepared, monkeypatch):
    def asked_again():
        table = node.store.table
        node.store.update(table.replaced(with_unprepared(one, False) for one in table.allocations))

    node.cluster.put(claiming("late"))
    run(node.unprepare(prepared))
    node.cluster.pods.clear()
    monkeypatch.setattr(
        node.release,
        "_present",
        lambda ids: asked_again() or Presence(frozenset(), others=True),
    )
    run(node.release.look())
    assert node.store.table.allocations


def test_what_cannot_be_recorded_is_not_given_up(node, prepared, monkeypatch):
    node.cluster.put(claiming("late"))
    with monkeypatch.context() as broken:
        broken.setattr(node.store, "update", _fails)
        assert run(node.unprepare(prepared)) == ["the disk is full"], "the kubelet asks again"
    assert run(node.unprepare(prepared)) == [""]
    node.cluster.pods.clear()
    run(node.release.look())
    assert not node.store.table.allocations


def _fails(*_args):
    raise StorageError("the disk is full")
