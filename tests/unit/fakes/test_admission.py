# SPDX-License-Identifier: Apache-2.0
"""Which devices a container gets, in which order things are asked, and how refusals look."""

from __future__ import annotations

import threading
import time

import grpc
import pytest

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from agent.kubelet.pb import podresources_v1_pb2 as resources
from agent.kubelet.pb import podresources_v1_pb2_grpc as resources_rpc
from tests.fakes.kubelet import ContainerSpec, PodSpec
from tests.unit.fakes.plugin import RESOURCE, asking, device, gpus


@pytest.fixture
def ready(node, plugin):
    """make(devices, **node arguments) -> (kubelet, plugin) with the devices reported."""

    def make(devices=None, **arguments):
        kubelet = node(**arguments)
        one = plugin(kubelet, devices).start()
        kubelet.wait_allocatable(RESOURCE, len(one.list))
        one.calls.clear()
        return kubelet, one

    return make


def list_pods(kubelet):
    with grpc.insecure_channel(f"unix:{kubelet.pod_resources_socket}") as channel:
        return resources_rpc.PodResourcesListerStub(channel).List(
            resources.ListPodResourcesRequest(), timeout=10
        )


def test_preferred_then_allocate_container_by_container(ready):
    kubelet, one = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(4, "a"), asking(2, "b"))))
    assert pod.phase == "Running"
    assert one.order == ["Preferred", "Allocate", "Preferred", "Allocate"]
    assert [size for _, _, size in one.named("Preferred")] == [4, 2]
    first, second = kubelet.device_ids(pod, RESOURCE, "a"), kubelet.device_ids(pod, RESOURCE, "b")
    assert first == {"0-0", "0-1", "0-2", "0-3"}
    assert second == {"0-4", "0-5"}
    assert [set(ids) for (ids,) in one.named("Allocate")] == [first, second]


def test_preferred_is_asked_even_when_all_are_needed(ready):
    kubelet, one = ready(gpus(1, 3))
    kubelet.run_pod(PodSpec("p", (asking(3),)))
    assert one.order == ["Preferred", "Allocate"]


def test_no_call_for_a_plugin_that_does_not_offer_it(ready):
    kubelet, one = ready()
    kubelet.manager.endpoints[RESOURCE].options.get_preferred_allocation_available = False
    kubelet.run_pod(PodSpec("p", (asking(3),)))
    assert one.order == ["Allocate"]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (["2-0", "2-1", "2-2", "2-3"], {"2-0", "2-1", "2-2", "2-3"}),
        ([], set()),
        (["nonsense", "9-9"], set()),
        (["2-0", "2-0"], {"2-0"}),
    ],
    ids=["exact", "empty", "invalid", "short"],
)
def test_what_is_missing_of_a_preferred_set_is_drawn_at_random_across_gpus(ready, answer, kept):
    kubelet, one = ready()
    one.on_preferred = lambda *_: answer
    seen = set()
    for number in range(12):
        pod = kubelet.run_pod(PodSpec(f"p{number}", (asking(4),)))
        ids = kubelet.device_ids(pod, RESOURCE)
        assert len(ids) == 4
        assert kept <= ids
        seen.add(frozenset(ids - kept))
        kubelet.delete_pod(pod)
    assert len(seen) == 1 if len(kept) == 4 else len(seen) > 3
    assert len(kept) == 4 or {ident[0] for ids in seen for ident in ids} == {"0", "1", "2"}


def test_of_a_preferred_set_that_is_too_long_a_random_part_is_taken(ready):
    kubelet, one = ready()
    one.on_preferred = lambda *_: [f"1-{n}" for n in range(8)]
    seen = set()
    for number in range(8):
        pod = kubelet.run_pod(PodSpec(f"p{number}", (asking(3),)))
        seen.add(frozenset(kubelet.device_ids(pod, RESOURCE)))
        kubelet.delete_pod(pod)
    assert all(ident.startswith("1-") for ids in seen for ident in ids)
    assert len(seen) > 2


def test_the_same_seed_draws_the_same(ready, node, plugin, tmp_path):
    def drawn(seed):
        kubelet, one = ready(seed=seed)
        one.on_preferred = lambda *_: []
        ids = kubelet.device_ids(kubelet.run_pod(PodSpec("p", (asking(5),))), RESOURCE)
        kubelet.close()
        one.stop()
        (kubelet.plugin_directory / "kubelet_internal_checkpoint").unlink()
        return ids

    assert drawn(1) == drawn(1) != drawn(2)


def test_an_error_in_preferred_fails_the_pod_for_good(ready):
    kubelet, one = ready()
    one.on_preferred = lambda a, m, s, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such call")
    pod = kubelet.run_pod(PodSpec("p", (asking(4),)))
    assert (pod.phase, pod.reason) == ("Failed", "UnexpectedAdmissionError")
    assert (
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unimplemented"
        in pod.message
    )
    assert "Allocate" not in one.order


def test_an_error_in_allocate_is_the_pods_message_and_frees_at_once(ready):
    kubelet, one = ready()
    one.on_allocate = lambda ids, context: context.abort(grpc.StatusCode.FAILED_PRECONDITION, "never fits")
    pod = kubelet.run_pod(PodSpec("p", (asking(24),)))
    expected = (
        "Pod was rejected: Allocate failed due to rpc error: "
        "code = FailedPrecondition desc = never fits, which is unexpected"
    )
    assert (pod.phase, pod.reason, pod.message) == ("Failed", "UnexpectedAdmissionError", expected)
    assert pod.events[-1].message == expected
    one.on_allocate = one.answer
    assert kubelet.run_pod(PodSpec("q", (asking(24),))).phase == "Running"
    assert one.order.count("Allocate") == 2  # the failed pod was not tried again


def test_an_empty_answer_leaks_until_a_pod_is_collected(ready):
    kubelet, one = ready()
    one.on_allocate = lambda ids, context: pb.AllocateResponse()
    pod = kubelet.run_pod(PodSpec("p", (asking(4),)))
    assert "no containers return in allocation response" in pod.message
    one.on_allocate = one.answer
    pod = kubelet.run_pod(PodSpec("q", (asking(24),)))
    assert (
        f"requested number of devices unavailable for {RESOURCE}. Requested: 24, Available: 20" in pod.message
    )
    small = kubelet.run_pod(PodSpec("r", (asking(1),)))
    kubelet.delete_pod(small)
    assert kubelet.run_pod(PodSpec("s", (asking(24),))).phase == "Running"


def test_pods_wait_for_room_and_get_it(ready):
    kubelet, _ = ready()
    first = kubelet.run_pod(PodSpec("first", (asking(20),)))
    second = kubelet.run_pod(PodSpec("second", (asking(8),)))
    assert (second.phase, second.reason) == ("Pending", "Unschedulable")
    assert second.message == f"0/1 nodes are available: 1 Insufficient {RESOURCE}."
    assert kubelet.run_pod(PodSpec("third", (asking(4),))).phase == "Running"
    kubelet.delete_pod(first)
    second.wait("Running")


def test_a_bound_pod_is_not_counted_first(ready):
    kubelet, _ = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(2000),), bind=True))
    assert (
        f"requested number of devices unavailable for {RESOURCE}. Requested: 2000, Available: 24"
        in pod.message
    )


def test_pods_are_admitted_one_by_one(ready):
    kubelet, one = ready()
    inside, worst = [0], [0]

    def slow(ids, context):
        inside[0] += 1
        worst[0] = max(worst[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return one.answer(ids, context)

    one.on_allocate = slow
    pods = [kubelet.create_pod(PodSpec(f"p{n}", (asking(2),))) for n in range(8)]
    for pod in pods:
        pod.wait("Running")
    assert worst[0] == 1
    held = [kubelet.device_ids(pod, RESOURCE) for pod in pods]
    assert len(set().union(*held)) == 16


def test_order_of_resources_is_random(node, plugin):
    kubelet = node()
    one = plugin(kubelet).start()
    other = plugin(kubelet, gpus(1, 24), name="example.com/other", endpoint="o.sock").start()
    for name in (RESOURCE, "example.com/other"):
        kubelet.wait_allocatable(name, 24)
    order = []
    one.on_allocate = lambda ids, context: order.append("one") or one.answer(ids, context)
    other.on_allocate = lambda ids, context: order.append("other") or other.answer(ids, context)
    for number in range(12):
        kubelet.run_pod(PodSpec(f"p{number}", (ContainerSpec("c", {RESOURCE: 1, "example.com/other": 1}),)))
    assert set(order[::2]) == {"one", "other"}


# --- init containers ---------------------------------------------------------------------------------------------


def test_init_containers_lend_their_devices_and_sidecars_keep_theirs(ready):
    kubelet, one = ready()
    spec = PodSpec(
        "p",
        (asking(3, "c3"), asking(2, "c4")),
        init_containers=(asking(4, "i0"), asking(2, "i1"), asking(3, "side", sidecar=True)),
    )
    pod = kubelet.create_pod(spec)
    for name in ("i0", "i1"):
        pod.wait_for(lambda pod, name=name: pod.container(name).running)
        pod.container(name).process.finish(0)
    pod.wait("Running")
    held = {c.name: kubelet.device_ids(pod, RESOURCE, c.name) for c in pod.all_containers}
    assert held["i1"] < held["i0"]
    assert held["side"] < held["i0"]
    assert held["c3"] & held["i0"] == held["i0"] - held["side"]
    assert not held["side"] & (held["c3"] | held["c4"])
    assert not held["c3"] & held["c4"]
    # i1 and the sidecar were served from what was lent, without a question; c3 had to keep one of it.
    assert [(len(must), size) for _, must, size in one.named("Preferred")] == [(0, 4), (1, 3), (0, 2)]
    assert spec.requests(RESOURCE) == 8


def test_a_failing_init_container_of_a_never_pod_fails_it(ready):
    kubelet, _ = ready()
    pod = kubelet.create_pod(
        PodSpec("p", (asking(1),), init_containers=(asking(1, "i"),), restart_policy="Never")
    )
    pod.wait_for(lambda pod: pod.container("i").running)
    pod.container("i").process.finish(3)
    pod.wait("Failed")
    assert pod.container("main").runs == 0


# --- topology ----------------------------------------------------------------------------------------------------


def nodes_of(ids):
    return {int(ident.split("-")[0]) % 2 for ident in ids}


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_a_request_that_one_node_can_serve_is_offered_that_node_only(ready, policy):
    kubelet, one = ready(gpus(4, 8, numa=True), policy=policy)
    pod = kubelet.run_pod(PodSpec("p", (asking(8),)))
    ((available, _, _),) = one.named("Preferred")
    assert len(available) == 16
    assert nodes_of(available) == nodes_of(kubelet.device_ids(pod, RESOURCE)) == {0}


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_a_whole_node_is_taken_without_a_question(ready, policy):
    kubelet, one = ready(gpus(4, 8, numa=True), policy=policy)
    pod = kubelet.run_pod(PodSpec("p", (asking(16),)))
    assert one.order == ["Allocate"]
    assert nodes_of(kubelet.device_ids(pod, RESOURCE)) == {0}


@pytest.mark.parametrize(
    ("policy", "phase"),
    [
        ("none", "Running"),
        ("best-effort", "Running"),
        ("restricted", "Failed"),
        ("single-numa-node", "Failed"),
    ],
)
def test_eight_when_each_node_has_six_left(ready, policy, phase):
    kubelet, _ = ready(gpus(4, 8, numa=True), policy=policy)
    if policy == "none":
        first = kubelet.run_pod(PodSpec("first", (asking(20),)))
    else:
        first = kubelet.run_pod(PodSpec("first", (asking(10, "a"),)))
        kubelet.run_pod(PodSpec("second", (asking(10, "b"),)))
    assert first.phase == "Running"
    pod = kubelet.run_pod(PodSpec("p", (asking(8),)))
    assert pod.phase == phase
    if phase == "Failed":
        assert pod.reason == "TopologyAffinityError"
        assert pod.message == "Pod was rejected: Resources cannot be allocated with Topology locality"


@pytest.mark.parametrize(
    ("policy", "phase"),
    [
        ("none", "Running"),
        ("best-effort", "Running"),
        ("restricted", "Running"),
        ("single-numa-node", "Failed"),
    ],
)
def test_more_than_one_node_has(ready, policy, phase):
    kubelet, _ = ready(gpus(4, 8, numa=True), policy=policy)
    assert kubelet.run_pod(PodSpec("p", (asking(20),))).phase == phase


def test_without_topology_there_is_no_opinion(ready):
    kubelet, one = ready(policy="single-numa-node")
    assert kubelet.run_pod(PodSpec("p", (asking(20),))).phase == "Running"
    assert one.order == ["Preferred", "Allocate"]


# --- pod-resources -----------------------------------------------------------------------------------------------


def test_the_pod_being_admitted_is_listed_without_devices(ready):
    kubelet, one = ready()
    kubelet.run_pod(PodSpec("old", (asking(2),)))
    kubelet.run_pod(PodSpec("none", (ContainerSpec("c"),)))
    seen = []

    def inspect(ids, context):
        seen.append(list_pods(kubelet))
        return one.answer(ids, context)

    one.on_allocate = inspect
    kubelet.run_pod(
        PodSpec("new", (asking(3, "a"), asking(1, "b")), init_containers=(asking(1, "i"),), bind=True)
    )
    held = [
        {pod.name: {c.name: len(c.devices) for c in pod.containers} for pod in answer.pod_resources}
        for answer in seen
    ]
    others = {"old": {"main": 2}, "none": {"c": 0}}
    assert held == [
        {**others, "new": {"a": 0, "b": 0}},  # the init container's own call: it is not listed
        {**others, "new": {"a": 0, "b": 0}},
        {**others, "new": {"a": 3, "b": 0}},
    ]


def test_one_entry_per_device_with_its_node(ready):
    kubelet, _ = ready([device("a", 1), device("b")])
    kubelet.run_pod(PodSpec("p", (asking(2),)))
    (pod,) = list_pods(kubelet).pod_resources
    entries = {tuple(d.device_ids): [n.ID for n in d.topology.nodes] for d in pod.containers[0].devices}
    assert entries == {("a",): [1], ("b",): []}


def test_get_and_allocatable(ready):
    kubelet, _ = ready(gpus(1, 4))
    kubelet.run_pod(PodSpec("p", (asking(1),), namespace="ns"))
    with grpc.insecure_channel(f"unix:{kubelet.pod_resources_socket}") as channel:
        stub = resources_rpc.PodResourcesListerStub(channel)
        found = stub.Get(resources.GetPodResourcesRequest(pod_name="p", pod_namespace="ns")).pod_resources
        assert (found.name, found.namespace, len(found.containers[0].devices)) == ("p", "ns", 1)
        assert len(stub.GetAllocatableResources(resources.AllocatableResourcesRequest()).devices) == 4
        with pytest.raises(grpc.RpcError, match="not found"):
            stub.Get(resources.GetPodResourcesRequest(pod_name="p", pod_namespace="other"))


def test_calls_beyond_the_rate_are_refused(ready):
    kubelet, _ = ready()
    kubelet.pod_resources.limit.device_ids = 0.0
    kubelet.pod_resources.limit.last = time.monotonic() + 60
    with pytest.raises(grpc.RpcError) as caught:
        list_pods(kubelet)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# --- freeing -----------------------------------------------------------------------------------------------------


def test_freed_devices_are_noticed_at_the_next_allocation_or_list(ready):
    kubelet, _ = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(4),)))
    kubelet.delete_pod(pod)
    assert len(kubelet.manager.allocated[RESOURCE]) == 4
    list_pods(kubelet)
    assert kubelet.manager.allocated == {}


def test_a_pod_that_ended_frees_although_it_is_not_deleted(ready):
    kubelet, _ = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(24),), restart_policy="Never"))
    pod.container().process.finish(0)
    pod.wait("Succeeded")
    assert kubelet.run_pod(PodSpec("q", (asking(24),))).phase == "Running"


def test_force_delete_frees_before_the_program_has_ended(ready):
    kubelet, _ = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(24),)))
    process, ids = pod.container().process, kubelet.device_ids(pod, RESOURCE)
    kubelet.delete_pod(pod, force=True)
    again = kubelet.run_pod(PodSpec("q", (asking(24),)))
    assert again.phase == "Running"
    assert kubelet.device_ids(again, RESOURCE) == ids
    pod.wait_for(lambda pod: pod.ended.is_set())
    assert process.returncode == 137


def test_a_crash_looping_pod_keeps_its_devices_and_is_not_allocated_again(ready):
    kubelet, one = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(4),)))
    ids = kubelet.device_ids(pod, RESOURCE)
    for runs in (1, 2, 3):
        pod.wait_for(lambda pod, runs=runs: pod.container().runs == runs and pod.container().running)
        pod.container().process.finish(1)
    pod.wait_for(lambda pod: pod.container().runs == 4)
    assert kubelet.device_ids(pod, RESOURCE) == ids
    assert one.order.count("Allocate") == 1
    assert pod.container().launch.env["THING"] == "yes"


def test_unhealthy_and_vanished_devices_of_a_running_pod(ready):
    kubelet, one = ready(gpus(1, 4))
    pod = kubelet.run_pod(PodSpec("p", (asking(2),)))
    one.push([device("0-0", health="Unhealthy"), *gpus(1, 4)[2:]])
    kubelet.wait_allocatable(RESOURCE, 2)
    assert kubelet.resource_health(pod, RESOURCE) == {"0-0": "Unhealthy", "0-1": "Healthy"}
    assert kubelet.capacity() == {RESOURCE: 3}
    assert pod.phase == "Running"


def test_allocate_has_no_deadline(ready):
    kubelet, one = ready()
    left = []
    one.on_allocate = lambda ids, context: left.append(context.time_remaining()) or one.answer(ids, context)
    kubelet.run_pod(PodSpec("p", (asking(1),)))
    assert left[0] is None or left[0] > 10**6


def test_a_slow_allocate_holds_up_every_other_pod(ready):
    kubelet, one = ready()
    released = threading.Event()
    one.on_allocate = lambda ids, context: released.wait(30) and one.answer(ids, context)
    first = kubelet.create_pod(PodSpec("p", (asking(1),)))
    first.wait_for(lambda pod: "Allocate" in one.order)
    second = kubelet.create_pod(PodSpec("q", (ContainerSpec("c"),)))
    with pytest.raises(TimeoutError):
        second.wait("Running", 0.3)
    released.set()
    second.wait("Running")
    assert first.wait("Running").phase == "Running"
