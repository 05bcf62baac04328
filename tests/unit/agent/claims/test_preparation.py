# SPDX-License-Identifier: Apache-2.0
"""What the kubelet is answered about a claim, and what is there afterwards."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

import vcuda
from agent.allocation.start_wait import StartTimes
from agent.claims.cdi_files import cdi_name
from gigaslice.core.claims.names import device_name
from gigaslice.core.claims.origin import claim_of
from gigaslice.core.claims.resource_claim import ClaimConfig
from gigaslice.core.model import AnnotationRights, ContainerKind
from gigaslice.kubeapi.failures import ApiFailure
from tests.fakes.claims_of_node import NODE, claim, claiming, result, user
from tests.fakes.gpus import GIB, uuid
from vcuda import contract

PARAMETERS = {"apiVersion": "config.gigaslice.io/v1alpha1", "kind": "VGPU"}


def run(work):
    return asyncio.run(work)


def page(node, allocation):
    limits = vcuda.read_limits(node.store.dirs.path(allocation.id) / contract.LIMITS_FILE)
    return {gpu.uuid: gpu.memory_bytes for gpu in limits.gpus}


def files(node, uid):
    """The devices of a claim's file by name: the environment, and the mounts by their paths in the container."""
    document = json.loads(node.cdi.path(uid).read_text())
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "gigaslice.io/vgpu")
    devices = {}
    for device in document["devices"]:
        edits = device["containerEdits"]
        devices[device["name"]] = edits["env"], {m["containerPath"]: m["hostPath"] for m in edits["mounts"]}
    return devices


def test_a_claim_becomes_an_allocation_with_its_page_and_its_file(node):
    one = node.reserve(claim("c", result(1, 8, cores=30)), claiming("train"))
    (answer,) = run(node.prepare(one))
    (allocation,) = node.store.table.allocations
    (device,) = answer.devices
    assert not answer.error
    assert (device.requests, device.pool, device.device) == (("gpu",), NODE, device_name(uuid(1)))
    assert device.share_id == "share-1-gpu"
    assert device.cdi == (cdi_name(one.uid, "gpu"),)
    assert page(node, allocation) == {uuid(1): 8 * GIB}
    assert allocation.cores_of(uuid(1)) == 30
    environment, mounts = files(node, one.uid)[f"{one.uid}.gpu"]
    assert environment == [f"NVIDIA_VISIBLE_DEVICES={uuid(1)}"]
    assert mounts[contract.CONTAINER_LIMITS].endswith(f"{allocation.id}/limits")
    by_name = mounts[f"{contract.CONTAINER_ALLOCATIONS}/{allocation.id}"]
    assert by_name == mounts[contract.CONTAINER_LIMITS], "which no other claim's mount hides"
    assert allocation.name == "default/train/main"


def test_a_claims_container_may_write_its_ledger_alone(node):
    one = node.reserve(claim("c", result(1, 8, cores=30)), claiming("train"))
    run(node.prepare(one))
    devices = json.loads(node.cdi.path(one.uid).read_text())["devices"]
    assert devices
    for device in devices:
        options = {mount["containerPath"]: mount["options"] for mount in device["containerEdits"]["mounts"]}
        writable = {path for path, words in options.items() if "ro" not in words}
        assert contract.CONTAINER_LIMITS in options and writable == {contract.CONTAINER_LEDGER}


def test_asked_again_it_answers_the_same_and_makes_nothing(node):
    one = node.reserve(claim("c", result(0, 8)), claiming("train"))

    async def story():
        first = await node.prepare(one)
        both = await asyncio.gather(node.prepare(one), node.prepare(one))
        assert [first, first] == both

    run(story())
    assert len(node.store.table.allocations) == 1


def test_two_calls_at_once_for_a_claim_make_one_allocation(node):
    one = node.reserve(claim("c", result(0, 8)), claiming("a"), claiming("b"))

    async def story():
        first, second = await asyncio.gather(node.prepare(one), node.prepare(one))
        assert first == second

    run(story())
    (allocation,) = node.store.table.allocations
    assert [str(consumer.ref) for consumer in allocation.consumers] == ["default/a/main", "default/b/main"]


def test_calls_for_a_claim_come_one_after_the_other(node, monkeypatch):
    """What the first has decided over its requests holds for the second."""
    one = node.reserve(claim("c", result(0, 8)), claiming("a"), claiming("b"))
    real, reading = node.claims.read, []

    async def read(namespace, name, seconds):
        assert not reading
        reading.append(name)
        await asyncio.sleep(0.01)
        reading.pop()
        return await real(namespace, name, seconds)

    monkeypatch.setattr(node.claims, "read", read)

    async def story():
        return await asyncio.gather(node.prepare(one), node.prepare(one))

    first, second = run(story())
    assert first == second and not first[0].error


def test_a_device_without_an_amount_is_the_whole_gpu(node):
    one = node.reserve(claim("c", result(0, None)), claiming("train"))
    run(node.prepare(one))
    assert page(node, node.store.table.allocations[0]) == {uuid(0): 24 * GIB}


def test_requests_of_one_container_are_one_quota_and_of_two_are_two(node):
    results = (result(0, 4, "a"), result(1, 6, "b"), result(1, 2, "b2"))
    together = node.reserve(claim("c", *results), claiming("one", user("main", "c")))
    (answer,) = run(node.prepare(together))
    (allocation,) = node.store.table.allocations
    assert page(node, allocation) == {uuid(0): 4 * GIB, uuid(1): 8 * GIB}
    assert [device.cdi for device in answer.devices] == [
        (cdi_name("uid-c", name),) for name in ("a", "b", "b2")
    ]
    assert len({str(edits) for edits in files(node, "uid-c").values()}) == 1
    node.cluster.pods.clear()
    run(node.unprepare(together))
    apart = node.reserve(
        replace(together, name="d", uid="uid-d"),
        claiming("two", user("x", "d/a"), user("y", "d/b", "d/b2"), claims=("d",)),
    )
    (answer,) = run(node.prepare(apart))
    first, second = node.store.table.allocations
    assert page(node, first) == {uuid(0): 4 * GIB} and page(node, second) == {uuid(1): 8 * GIB}
    assert [device.cdi for device in answer.devices] == [
        (cdi_name("uid-d", name),) for name in ("a", "b", "b2")
    ]  # fmt: skip
    mounted = {name: mounts[contract.CONTAINER_LIMITS] for name, (_, mounts) in files(node, "uid-d").items()}
    pages = [str(node.store.dirs.path(one.id) / contract.LIMITS_FILE) for one in (first, second, second)]
    assert [mounted[f"uid-d.{name}"] for name in ("a", "b", "b2")] == pages
    assert [consumer.ref.container for consumer in second.consumers] == ["y"]


@pytest.mark.parametrize(
    ("containers", "claims", "sentence"),
    [
        ((user("x", "c/a", "c/b"), user("y", "c/a")), ("c",), "container y has only a of claim c"),
        ((user("x", "c"), user("y", "c/b")), ("c",), "name the same requests in both, or none"),
        ((user("x", "c", "other"),), ("c", "other"), "a container can have that of one claim"),
    ],
)
def test_what_would_be_two_pages_in_a_container_is_refused(node, containers, claims, sentence):
    node.claims.put(claim("other", result(1, 1)))
    one = node.reserve(
        claim("c", result(0, 4, "a"), result(1, 6, "b")), claiming("train", *containers, claims=claims)
    )
    (answer,) = run(node.prepare(one))
    assert sentence in answer.error
    assert node.cluster.said("ClaimNotExecutable") == [answer.error]
    assert not node.store.table.allocations and not node.cdi.claims()


def test_a_claim_of_another_driver_may_stand_beside(node):
    node.claims.put(claim("other"))
    one = node.reserve(
        claim("c", result(0, 4)), claiming("p", user("x", "c", "other"), claims=("c", "other"))
    )
    assert not run(node.prepare(one))[0].error


def test_parameters_are_options_and_mistakes_in_them_are_told(node):
    config = ClaimConfig(("gpu",), {**PARAMETERS, "priority": "best-effort"})
    one = node.reserve(claim("c", result(0, 4), configs=(config,)), claiming("train"))
    run(node.prepare(one))
    assert node.store.table.allocations[0].policy.priority == "best-effort"
    wrong = ClaimConfig((), {**PARAMETERS, "priorty": "best-effort"})
    two = node.reserve(claim("d", result(0, 4), configs=(wrong,)), claiming("late", claims=("d",)))
    (answer,) = run(node.prepare(two))
    assert 'did you mean "priority"?' in answer.error
    assert len(node.store.table.allocations) == 1


def test_a_claim_made_from_one_line_follows_its_pods_annotations(node):
    pod = claiming("train", annotations={"gigaslice.io/priority": "best-effort"})
    one = node.reserve(claim("c", result(0, 4), follows_pod=True), pod)
    run(node.prepare(one))
    (allocation,) = node.store.table.allocations
    assert allocation.policy.priority == "best-effort" and allocation.origin.follows_annotations
    shared = node.reserve(
        claim("d", result(0, 4), follows_pod=True), *(claiming(n, claims=("d",)) for n in "ab")
    )
    run(node.prepare(shared))
    assert not node.store.table.allocations[1].origin.follows_annotations, "whose would they be"


def test_annotations_are_those_of_the_pod_that_uses_it(node):
    """Both are reserved for, and each has one of the requests."""
    first, second = (
        claiming(name, user("main", f"c/{request}"), annotations={"gigaslice.io/priority": priority})
        for name, request, priority in (("one", "a", "burstable"), ("two", "b", "best-effort"))
    )
    one = node.reserve(claim("c", result(0, 4, "a"), result(1, 4, "b"), follows_pod=True), first, second)
    assert not run(node.prepare(one))[0].error
    assert [allocation.policy.priority for allocation in node.store.table.allocations] == [
        "burstable", "best-effort"
    ]  # fmt: skip


def test_a_container_has_no_more_than_the_compute_of_a_gpu(node):
    results = (result(0, 4, "a", cores=60), result(0, 4, "b", cores=60))
    one = node.reserve(claim("c", *results, follows_pod=True), claiming("train"))
    assert not run(node.prepare(one))[0].error
    assert node.store.table.allocations[0].cores_of(uuid(0)) == 100


@pytest.mark.parametrize(("gib", "alone"), [(4, False), (24, True), (None, True)])
def test_a_part_of_a_gpu_is_not_made_exclusive_by_an_annotation(make_node, gib, alone):
    """The cluster has counted the part, and gives out the rest."""
    node = make_node()
    node.preparation._rights = AnnotationRights.CHECKED
    pod = claiming("train", annotations={"gigaslice.io/exclusive": "true"})
    one = node.reserve(claim("c", result(0, gib), follows_pod=True), pod)
    assert not run(node.prepare(one))[0].error
    (allocation,) = node.store.table.allocations
    assert allocation.policy.exclusive is alone


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda node, one: node.claims.by_name.clear(), "is gone; nothing to prepare"),
        (lambda node, one: node.claims.put(replace(one, uid="another")), "is gone; nothing to prepare"),
        (lambda node, one: node.claims.put(replace(one, results=())), "has no device of this driver"),
        (lambda node, one: node.claims.put(replace(one, reserved_for=())), "not reserved for a pod"),
        (
            lambda node, one: node.claims.put(
                replace(one, results=(replace(one.results[0], admin_access=True),))
            ),
            "adminAccess",
        ),
        (
            lambda node, one: node.claims.put(
                replace(one, results=(replace(one.results[0], device="gpu-x"),))
            ),
            "has no GPU gpu-x now",
        ),
        (
            lambda node, one: node.claims.put(
                replace(one, results=(replace(one.results[0], memory_bytes=0),))
            ),
            "no memory of a GPU",
        ),
        (
            lambda node, one: node.claims.put(
                replace(one, results=(replace(one.results[0], memory_bytes=25 * GIB),))
            ),
            "25 slices of GPU-",
        ),
        (
            lambda node, one: node.claims.put(
                replace(
                    one,
                    results=(replace(one.results[0], memory_bytes=None, share_id=""),),
                    asking_capacity=frozenset({"gpu"}),
                )
            ),
            "switch on its feature gate DRAConsumableCapacity",
        ),
        (lambda node, one: setattr(node.claims, "failure", ValueError("metadata: none")), "makes no sense"),
        (lambda node, one: node.cluster.put(claiming("train", ending=True)), "not reserved for a pod"),
        (lambda node, one: node.cluster.pods.clear(), "reserved for no pod that exists"),
    ],
)
def test_what_cannot_be_is_said_and_leaves_nothing(node, change, sentence):
    one = node.reserve(claim("c", result(0, 4)), claiming("train"))
    change(node, one)
    (answer,) = run(node.prepare(one))
    assert sentence in answer.error and not answer.devices
    assert not node.store.table.allocations and not node.cdi.claims()
    assert one.uid in node.preparation.refusals.waiting


def test_a_late_call_after_the_end_of_its_pods_prepares_nothing(node):
    one = node.reserve(claim("c", result(0, 4)), claiming("train"))
    run(node.prepare(one))
    node.cluster.put(claiming("train", phase="Succeeded"))
    run(node.unprepare(one))
    assert run(node.prepare(one))[0].error
    assert not node.store.table.allocations


def test_a_late_call_for_a_pod_that_is_gone_makes_nothing(node, monkeypatch):
    """The pod's object is gone, the claim is still reserved for it, and the watch has not shown either."""
    one = node.reserve(claim("c", result(0, 4)), claiming("train"))
    run(node.prepare(one))
    node.cluster.put(claiming("train", ending=True))
    run(node.unprepare(one))
    node.cluster.put(claiming("train"))

    async def read(timeout):
        del timeout
        return {}

    monkeypatch.setattr(node.cluster, "read", read)
    assert "reserved for no pod that exists" in run(node.prepare(one))[0].error
    assert not node.store.table.allocations and not node.cdi.claims()
    monkeypatch.undo()
    assert not run(node.prepare(one))[0].error, "a later pod of a shared claim"


def test_a_claim_that_is_being_deleted_waits_for_whose_it_is(node, monkeypatch):
    one = node.reserve(claim("c", result(0, 4), ending=True), claiming("train"))

    async def unread(timeout):
        del timeout

    monkeypatch.setattr(node.cluster, "read", unread)

    async def story():
        (answer,) = await node.prepare(one)
        assert "is being deleted" in answer.error and not node.store.table.allocations
        assert not await node.preparation.would_start(one.uid)
        monkeypatch.undo()
        assert not (await node.prepare(one))[0].error, "the pod was bound before the deletion"

    run(story())


def test_an_api_server_that_is_away_is_asked_again_while_somebody_waits(node, monkeypatch):
    one = node.reserve(claim("c", result(0, 4)), claiming("train"))
    node.claims.failure = ApiFailure("away")

    async def story():
        asked = asyncio.create_task(node.prepare(one, remaining=20.0))
        await asyncio.sleep(0.1)
        assert not asked.done()
        node.claims.failure = None
        return await asked

    assert not run(story())[0].error
    node.claims.failure = ApiFailure("away")
    assert "cannot be read: away" in run(node.prepare(one, remaining=0.1))[0].error


def test_a_claim_waits_until_there_is_room_and_is_told_what_for(make_node):
    node = make_node(gpus=1)
    first = node.reserve(claim("c", result(0, 20)), claiming("first"))
    late = node.reserve(claim("d", result(0, 20)), claiming("late", claims=("d",)))

    async def story():
        await node.prepare(first)
        (refused,) = await node.prepare(late)
        assert "GPU memory" in refused.error or "waiting" in refused.error
        assert node.cluster.said("WaitingForGPU") == [refused.error]
        asked = asyncio.create_task(node.prepare(late))
        await asyncio.sleep(0.05)
        assert not asked.done()
        node.cluster.pods.pop(("default", "first"))
        await node.unprepare(first)
        return (await asked)[0]

    assert not run(story()).error
    assert list(node.preparation.refusals.waiting) == []


def test_the_waiting_ends_with_the_deletion_of_the_pods(make_node):
    node = make_node(gpus=1, times=StartTimes(patience=60.0, margin=0.0, report_after=99.0, interval=0.01))
    first = node.reserve(claim("c", result(0, 20)), claiming("first"))
    late = node.reserve(claim("d", result(0, 20)), claiming("late", claims=("d",)))

    async def story():
        await node.prepare(first)
        asked = asyncio.create_task(node.prepare(late))
        await asyncio.sleep(0.05)
        node.cluster.put(claiming("late", claims=("d",), ending=True))
        assert (await asyncio.wait_for(asked, 30.0))[0].error

    run(story())


def test_the_next_process_answers_from_the_record(make_node):
    before = make_node()
    one = before.reserve(
        claim("c", result(0, 4)), claiming("a", user("i", "c", kind=ContainerKind.INIT), user("m", "c"))
    )
    (answer,) = run(before.prepare(one))
    table = before.store.table
    node = make_node()
    assert node.store.table == table
    assert claim_of(node.store.table.allocations[0]).boot_id == "boot-1"
    node.reserve(one, *before.cluster.pods.values())
    assert run(node.prepare(one)) == [answer]


def test_a_claim_of_the_same_name_is_another_one(node):
    one = node.reserve(claim("c", result(0, 4)), claiming("train"))
    run(node.prepare(one))
    other = node.reserve(replace(one, uid="uid-2"), claiming("train"))
    run(node.prepare(other))
    assert [claim_of(allocation).uid for allocation in node.store.table.allocations] == ["uid-c", "uid-2"]
    assert node.cdi.claims() == {"uid-c", "uid-2"}


def test_a_pod_that_the_watch_does_not_show_yet_is_read(node, monkeypatch):
    """The other one that the claim is reserved for is about to end."""
    late = claiming("late")
    one = node.reserve(claim("c", result(0, 8)), claiming("train", ending=True), late)
    node.cluster.pods.pop(("default", "late"))

    async def read(timeout):
        del timeout
        return {**node.cluster.pods, ("default", "late"): late}

    monkeypatch.setattr(node.cluster, "read", read)
    assert not run(node.prepare(one))[0].error

    async def unread(timeout):
        del timeout

    monkeypatch.setattr(node.cluster, "read", unread)
    two = replace(one, name="d", uid="uid-d", results=(result(1, 8),))
    node.claims.put(two)
    assert not run(node.prepare(two))[0].error, "the other one may be there"


def test_another_claim_that_makes_no_sense_is_told(node, monkeypatch):
    one = node.reserve(
        claim("c", result(0, 4)), claiming("p", user("x", "c", "other"), claims=("c", "other"))
    )
    real = node.claims.read

    async def read(namespace, name, seconds):
        if name == "other":
            raise ValueError("status.allocation: must be an object")
        return await real(namespace, name, seconds)

    monkeypatch.setattr(node.claims, "read", read)
    (answer,) = run(node.prepare(one))
    assert "claim default/other makes no sense to this driver: status.allocation" in answer.error


def test_what_ends_while_it_reaches_the_disk_is_no_success(node, monkeypatch):
    one = node.reserve(claim("c", result(0, 4)), claiming("train"))
    monkeypatch.setattr(
        node.store,
        "sync",
        lambda: node.allocation_service.release({each.id for each in node.store.table.allocations}),
    )
    (answer,) = run(node.prepare(one))
    assert "unprepared meanwhile" in answer.error and not answer.devices
