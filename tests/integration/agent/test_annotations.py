# SPDX-License-Identifier: Apache-2.0
"""Pods with options: an API server stand-in, a kubelet stand-in and the agent as a process of its own."""

import random
from dataclasses import replace

import pytest

from tests.fakes.kubelet import ContainerSpec, Pace, PodSpec
from tests.fakes.kubelet.topology import POLICIES
from tests.fakes.nodes import GIB, uuid
from tests.integration.agent.conftest import (
    PATIENCE,
    QUICK,
    RESOURCE,
    PatientAgent,
    asking,
    gpu_limits,
    gpu_of,
    pod,
    wait_back,
    wait_until,
)


def said(text):
    return {"gigaslice.io/" + name: value for name, value in text.items()}


def sizes(container):
    return sorted(gpu.memory_bytes // GIB for gpu in gpu_limits(container))


def test_a_hundred_pods_at_once_start_without_a_retry_and_each_gets_its_own_options(begin, api):
    kubelet, agent = begin(gpus=4, gib=32, settings=replace(QUICK, pace=Pace()), process=PatientAgent)
    all_options = [{"gpu-uuid": uuid(number % 4), "cores": str(number % 3)} for number in range(100)]
    pods = [
        kubelet.create_pod(pod(f"p{number}", 1, annotations=said(options)))
        for number, options in enumerate(all_options)
    ]
    for one in pods:
        one.wait_for(lambda one: one.phase != "Pending", PATIENCE)
    assert {(one.spec.name, one.reason, one.message) for one in pods if one.phase != "Running"} == set()
    assert [event for one in pods for event in one.events if event.kind == "Warning"] == []
    assert [gpu_of(one.container("c0")) for one in pods] == [options["gpu-uuid"] for options in all_options]
    allocated = agent.events("allocated")
    assert len(allocated) == 100 and not any(one["undecided"] or one["waiting"] for one in allocated)
    assert {one["container"] for one in allocated} == {f"default/p{number}/c0" for number in range(100)}
    assert not agent.events("start delayed")


def test_a_kubelet_whose_list_takes_long_is_waited_for(begin):
    """Half a second is no reason to give a pod other GPUs than it asked for."""
    kubelet, agent = begin(gpus=2, process=PatientAgent)
    kubelet.pod_resources.delay_s = 0.5
    all_options = [{"gpu-uuid": uuid(number % 2)} for number in range(4)]
    pods = [
        kubelet.create_pod(pod(f"p{number}", 2, annotations=said(options)))
        for number, options in enumerate(all_options)
    ]
    for one in pods:
        one.wait_for(lambda one: one.phase != "Pending", PATIENCE)
    assert [gpu_of(one.container("c0")) for one in pods] == [options["gpu-uuid"] for options in all_options]
    assert not any(one["undecided"] for one in agent.events("allocated"))


def test_a_kubelet_that_does_not_list_its_pods_costs_no_pod_and_not_the_agent(begin):
    """Admissions give the list up while the poller still waits for the same, on the same connection."""
    kubelet, agent = begin(gpus=2)
    kubelet.pod_resources.delay_s = 3.0
    pods = [kubelet.create_pod(pod(f"p{number}", 2)) for number in range(8)]
    for one in pods:
        one.wait_for(lambda one: one.phase != "Pending", PATIENCE)
    assert {(one.spec.name, one.reason, one.message) for one in pods if one.phase != "Running"} == set()
    assert agent.events("pods unknown during an admission"), "or nothing was tried"
    assert agent.process.poll() is None
    assert kubelet.registry.registrations == [RESOURCE]


@pytest.mark.parametrize("policy", POLICIES)
def test_two_numa_nodes_and_every_policy(begin, policy):
    """Whatever the kubelet makes of NUMA: what is admitted has its memory, its options and no GPU too full."""
    kubelet, agent = begin(policy, gpus=4, gib=8, process=PatientAgent)
    rng = random.Random(3)
    alive, started = [], 0
    for number in range(24):
        if alive and rng.random() < 0.3:
            kubelet.delete_pod(alive.pop(rng.randrange(len(alive))), timeout_s=PATIENCE)
            continue
        counts = [rng.choice((1, 2, 4, 6)) for _ in range(rng.choice((1, 1, 2)))]
        gpus = rng.choice((1, 2)) if min(counts) >= 2 else 1
        options = said({"gpus": str(gpus)})
        one = kubelet.run_pod(pod(f"p{number}", *counts, annotations=options), PATIENCE)
        if one.phase == "Running":
            alive.append(one)
            one.wait_for(lambda one: all(c.launch or c.waiting for c in one.containers), PATIENCE)
            for container, count in zip(one.containers, counts, strict=True):
                if container.launch is None:
                    continue  # its start waits for room
                started += 1
                assert sum(sizes(container)) == count
                assert len(gpu_of(container).split(",")) == gpus
        else:
            assert one.reason in ("Unschedulable", "TopologyAffinityError", "") or any(
                container.waiting for container in one.containers
            ), one
            kubelet.delete_pod(one, timeout_s=PATIENCE)
    assert started > 8
    allocated = agent.events("allocated")
    names = [one["container"] for one in allocated if not one["undecided"]]
    assert len(names) > len(allocated) * 3 / 4  # the others were decided before they started, as seen above
    assert len(set(names)) == len(names)


def test_init_containers_sidecars_and_several_containers_are_each_known_by_name(begin, api):
    kubelet, agent = begin()
    spec = PodSpec(
        "p",
        (asking(3, "c0"), asking(2, "c1"), ContainerSpec("none")),
        init_containers=(asking(4, "i0", command=("true",)), asking(2, "s0", sidecar=True)),
        annotations=said({"same-gpu": "true", "cores.c1": "30"}),
    )
    one = kubelet.run_pod(spec)
    one.wait("Running", PATIENCE)
    names = [line["container"] for line in agent.events("allocated")]
    assert names == [f"default/p/{name}" for name in ("i0", "s0", "c0", "c1")]
    rows = {row["container"]: row for row in agent.status()}
    assert len({row["gpu"] for row in rows.values()}) == 1
    limits = gpu_limits(one.container("c1"))
    assert [gpu.cores_percent for gpu in limits] == [30]
    paths = {f"spec.containers{{{name}}}" for name in ("i0", "s0", "c0", "c1")}
    wait_until(  # events are posted beside everything else
        lambda: {event["involvedObject"]["fieldPath"] for event in api.events("GPUAllocated")} == paths,
        "an event for each container",
    )


def test_what_nobody_has_checked_is_held_back_until_it_is_taken_out(begin, api):
    kubelet, _ = begin(gpus=2)
    alone = kubelet.run_pod(pod("alone", 2, annotations=said({"exclusive": "true"})))
    wait_until(lambda: api.events("InvalidAnnotation"), "the event")
    assert "gigaslice.io/allow-exclusive" in api.events("InvalidAnnotation")[0]["message"]
    assert alone.phase == "Pending"
    api.annotate("default", "alone", **{"gigaslice.io/exclusive": "false"})
    alone.wait("Running", PATIENCE)


def test_an_exclusive_gpu_is_no_other_pods_until_it_is_given_back(begin):
    kubelet, _ = begin(gpus=2, annotation_rights="checked")
    alone = kubelet.run_pod(pod("alone", 2, annotations=said({"exclusive": "true"})))
    others = [kubelet.run_pod(pod(f"o{number}", 6)) for number in range(4)]
    assert {gpu_of(one.container("c0")) for one in others}.isdisjoint({gpu_of(alone.container("c0"))})
    late = kubelet.run_pod(pod("late", 3))
    assert "exclusively" in wait_until(
        lambda: next((e.message for e in late.events if "waiting for" in e.message), ""), "what it waits for"
    )
    kubelet.delete_pod(alone, timeout_s=PATIENCE)
    late.wait("Running", PATIENCE)


def test_sizes_per_gpu_and_gpus_of_a_kind(begin):
    kubelet, _ = begin()
    one = kubelet.run_pod(pod("a", 24, annotations=said({"memory": "8GiB,16GiB"})))
    assert sizes(one.container("c0")) == [8, 16]
    two = kubelet.run_pod(pod("b", 2, annotations={"nvidia.com/use-gputype": "H100"}))
    assert two.phase == "Failed" and "no GPU of type H100 on this node; it has NVIDIA L4" in two.message


def test_two_and_a_half_gpus_are_two_whole_ones_and_half_of_a_third(begin, api):
    kubelet, _ = begin()
    small = kubelet.run_pod(pod("small", 6))
    spec = pod("a", 60, annotations=said({"split": "whole-first", "cores": "40"}))
    one = kubelet.run_pod(spec)
    assert sizes(one.container("c0")) == [12, 24, 24]
    limits = gpu_limits(one.container("c0"))
    half = [gpu.uuid for gpu in limits if gpu.memory_bytes == 12 * GIB]
    assert half == [gpu_of(small.container("c0"))], "the half comes from the GPU that is shared already"
    assert {gpu.cores_percent for gpu in limits} == {40}
    even = kubelet.run_pod(pod("even", 24, annotations=said({"split": "whole-first"})))
    assert sizes(even.container("c0")) == [24]
    wait_until(
        lambda: any("split has no effect" in event["message"] for event in api.events("InvalidAnnotation")),
        "a hint that it fits on one GPU",
    )
    wrong = kubelet.run_pod(pod("wrong", 2, annotations=said({"split": "whole-first", "gpus": "2"})))
    assert wrong.phase == "Pending"
    wait_until(
        lambda: any(
            "leave one of the two out" in event["message"] for event in api.events("InvalidAnnotation")
        ),
        "what to write",
    )


def test_a_senseless_annotation_waits_for_its_correction(begin, api):
    kubelet, agent = begin()
    one = kubelet.run_pod(pod("a", 4, annotations=said({"cores": "lots"})))
    assert one.phase == "Pending"
    wait_until(lambda: api.events("InvalidAnnotation"), "an event")
    assert (
        'gigaslice.io/cores: "lots" must be a whole number' in api.events("InvalidAnnotation")[0]["message"]
    )
    api.annotate("default", "a", **{"gigaslice.io/cores": "20"})
    one.wait("Running", PATIENCE)
    assert agent.status()[0]["pod"] == "a"


@pytest.mark.parametrize("silent", [False, True])
def test_a_pod_that_is_not_shown_in_time_is_started_with_its_own_options(begin, api, silent):
    kubelet, agent = begin()
    api.lag, api.hanging = 1.5, silent
    late = kubelet.create_pod(pod("late", 4, annotations=said({"cores": "20"})))
    agent.wait_event("allocated")
    api.hanging = False
    late.wait("Running", PATIENCE)
    assert agent.events("allocated")[0]["undecided"] == silent, "else it is read past the watch"
    limits = gpu_limits(late.container("c0"))
    assert limits[0].cores_percent == 20


def test_an_api_server_that_dies_costs_no_pod(begin, api):
    kubelet, agent = begin()
    api.hanging = True
    api.drop_watches()
    known = kubelet.create_pod(pod("a", 4))
    wait_until(lambda: agent.events("allocated"), "an allocation")
    api.denial = 403
    api.hanging = False
    known.wait("Running", PATIENCE)
    assert kubelet.run_pod(pod("b", 4)).phase == "Running"


def test_a_killed_agent_knows_whose_is_whose_when_it_is_back(begin):
    kubelet, agent = begin(annotation_rights="checked")
    spec = PodSpec(
        "p",
        (asking(2, "c0"),),
        init_containers=(asking(4, "i0", command=("true",)),),
        annotations=said({"exclusive": "true"}),
    )
    kubelet.run_pod(spec).wait("Running", PATIENCE)
    before = [(row["container"], row["gpu"], row["slices"]) for row in agent.status()]
    agent.kill()
    agent.start()
    agent.wait_event("watching", 2)
    wait_back(kubelet, agent, 96)
    assert [(row["container"], row["gpu"], row["slices"]) for row in agent.status()] == before
    other = kubelet.run_pod(pod("other", 2))
    assert gpu_of(other.container("c0")) != before[0][1]
