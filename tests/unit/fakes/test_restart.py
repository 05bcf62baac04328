# SPDX-License-Identifier: Apache-2.0
"""The checkpoint, kubelet restarts, reboots, and the start of containers with PreStartContainer."""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import replace

import grpc
import pytest

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from agent.kubelet.pb import podresources_v1_pb2 as podresources
from agent.kubelet.pb import podresources_v1_pb2_grpc as podresources_rpc
from tests.fakes.kubelet import ContainerSpec, FakeKubelet, PodSpec
from tests.fakes.kubelet import podresources as kubelet_podresources
from tests.fakes.kubelet.worker import Repeats
from tests.unit.fakes.conftest import QUICK
from tests.unit.fakes.plugin import RESOURCE, asking


@pytest.fixture
def ready(node, plugin):
    def make(pre_start=False, **arguments):
        kubelet = node(**arguments)
        one = plugin(kubelet)
        one.options.pre_start_required = pre_start
        one.start()
        kubelet.wait_allocatable(RESOURCE, 24)
        one.calls.clear()
        return kubelet, one

    return make


def test_checkpoint_has_the_kubelets_shape(ready):
    kubelet, one = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(2),)))
    document = json.loads((kubelet.plugin_directory / "kubelet_internal_checkpoint").read_text())
    assert set(document) == {"Data", "Checksum"}
    (entry,) = document["Data"]["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (pod.uid, "main", RESOURCE)
    assert entry["DeviceIDs"] == {"-1": ["0-0", "0-1"]}
    answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    assert answer == one.response
    assert len(document["Data"]["RegisteredDevices"][RESOURCE]) == 24


def test_restart_replays_what_was_allocated(ready):
    kubelet, one = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(20),)))
    process, ids = pod.container().process, kubelet.device_ids(pod, RESOURCE)
    kubelet.restart()
    assert pod.container().process is process
    assert process.returncode is None
    assert kubelet.device_ids(pod, RESOURCE) == ids
    one.stop()
    one.start()
    kubelet.wait_allocatable(RESOURCE, 24)
    assert kubelet.run_pod(PodSpec("q", (asking(8),))).reason == "Unschedulable"
    assert kubelet.run_pod(PodSpec("r", (asking(4),))).phase == "Running"
    assert one.order.count("Allocate") == 2


def test_a_pod_that_is_admitted_while_the_kubelet_ends_has_no_worker_afterwards(node):
    """It would go on beside that of the next kubelet."""
    kubelet = node()
    loop, begun = kubelet._now.loop, threading.Event()
    admitted = loop.admitted

    def while_it_ends(pod):
        begun.set()
        assert loop.halt.wait(60)
        time.sleep(0.1)
        admitted(pod)

    loop.admitted = while_it_ends
    kubelet.create_pod(PodSpec("p", (ContainerSpec(),)))
    assert begun.wait(60)
    kubelet.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "pod p"]


def test_a_damaged_checkpoint_is_left_aside(ready):
    kubelet, _ = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(2),)))
    kubelet.stop()
    path = kubelet.plugin_directory / "kubelet_internal_checkpoint"
    path.write_text(path.read_text().replace('"0-1"', '"0-2"'))
    kubelet.start()
    assert kubelet.device_ids(pod, RESOURCE) == set()
    assert pod.phase == "Running"


def test_container_restarts_from_the_kept_answer_while_the_plugin_is_away(ready):
    kubelet, one = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(2),)))
    one.stop()
    kubelet.wait_allocatable(RESOURCE, 0)
    pod.container().process.finish(1)
    pod.wait_for(lambda pod: pod.container().runs == 2 and pod.container().running)
    assert pod.container().launch.env["THING"] == "yes"


def test_reboot_without_the_plugin_fails_the_pod(ready):
    kubelet, _ = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(2),)))
    kubelet.reboot()
    assert (pod.phase, pod.reason) == ("Failed", "UnexpectedAdmissionError")
    assert "no healthy devices present" in pod.message


def test_reboot_with_a_quick_plugin_keeps_the_pod(ready, node, plugin):
    kubelet, one = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(2),)))
    ids = kubelet.device_ids(pod, RESOURCE)
    admitted_after = kubelet.registry.__class__.start

    def register_at_once(registry):
        admitted_after(registry)
        one.stop()
        one.start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubelet.registry.__class__, "start", register_at_once)
        kubelet.reboot()
    pod.wait_for(lambda pod: pod.container().running)
    assert kubelet.device_ids(pod, RESOURCE) == ids
    assert one.order.count("Allocate") == 1


def test_containers_outlive_the_kubelet_but_nobody_restarts_them(ready):
    kubelet, _ = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(2, "a"), asking(1, "b"))))
    kubelet.stop()
    pod.container("a").process.finish(1)
    with pytest.raises(TimeoutError):
        pod.wait_for(lambda pod: pod.container("a").running, 0.2)
    assert pod.container("b").running


# --- PreStartContainer -------------------------------------------------------------------------------------------


def test_pre_start_comes_before_each_start_with_the_containers_ids(ready):
    kubelet, one = ready(pre_start=True)
    pod = kubelet.run_pod(PodSpec("p", (asking(4, "a"), asking(2, "b"))))
    pod.wait_for(lambda pod: all(c.running for c in pod.containers))
    assert one.order == ["Preferred", "Allocate", "Preferred", "Allocate", "PreStart", "PreStart"]
    assert [len(ids) for (ids,) in one.named("PreStart")] == [4, 2]
    pod.container("b").process.finish(1)
    pod.wait_for(lambda pod: pod.container("b").runs == 2)
    assert [len(ids) for (ids,) in one.named("PreStart")] == [4, 2, 2]


def test_pre_start_errors_are_retried_and_hold_up_nobody_else(ready):
    kubelet, one = ready(pre_start=True)
    failing = [True]

    def hold(ids, context):
        if failing[0] and len(ids) == 4:
            context.abort(grpc.StatusCode.UNAVAILABLE, "waiting for 3 GiB")

    one.on_pre_start = hold
    pod = kubelet.run_pod(PodSpec("p", (asking(4),)))
    assert (pod.phase, pod.container().waiting) == ("Pending", "CreateContainerConfigError")
    text = (
        "Error: device plugin PreStartContainer rpc failed with err: "
        "rpc error: code = Unavailable desc = waiting for 3 GiB"
    )
    assert (pod.events[-1].kind, pod.events[-1].reason, pod.events[-1].message) == ("Warning", "Failed", text)
    assert kubelet.run_pod(PodSpec("q", (asking(2),))).phase == "Running"
    failing[0] = False
    pod.wait("Running")
    assert one.order.count("PreStart") >= 3


def test_starts_that_are_held_are_repeated_at_once_and_others_late_from_the_second_refusal_on():
    """As kubelet 1.36.2 has it with calls that are held for 25 s, and for 5."""
    repeats = Repeats((0.5, 12.0))
    assert [repeats.refused("held", now) for now in (25.0, 50.5, 76.0)] == [25.5, 51.0, 76.5]
    assert [repeats.refused("short", now) for now in (5.0, 10.5, 27.5)] == [5.5, 22.5, 28.0]
    repeats.started("short")
    assert repeats.refused("short", 30.0) == 30.5


def test_a_pre_start_that_hangs_is_given_up_and_retried(ready):
    settings = replace(QUICK, pace=replace(QUICK.pace, pre_start_timeout_s=1.0))
    kubelet, one = ready(pre_start=True, settings=settings)
    import threading

    released = threading.Event()
    one.on_pre_start = lambda ids, context: released.wait(60)
    pod = kubelet.run_pod(PodSpec("p", (asking(4),)))
    assert pod.container().waiting == "CreateContainerConfigError"
    assert "DeadlineExceeded" in pod.events[-1].message
    released.set()
    pod.wait("Running")


def test_with_pre_start_a_restart_waits_for_the_plugin(ready):
    kubelet, one = ready(pre_start=True)
    pod = kubelet.run_pod(PodSpec("p", (asking(4),)))
    one.stop()
    kubelet.wait_allocatable(RESOURCE, 0)
    pod.container().process.finish(1)
    pod.wait_for(lambda pod: pod.container().waiting == "CreateContainerConfigError")
    assert f"endpoint {RESOURCE} has been stopped" in pod.events[-1].message
    one.start()
    pod.wait_for(lambda pod: pod.container().running)


# --- what a container is started with ----------------------------------------------------------------------------


def test_the_pods_variables_beat_the_plugins_and_those_the_images(ready):
    kubelet, one = ready()
    one.response.envs.update({"K": "plugin", "I": "plugin"})
    spec = asking(1, env={"K": "pod"}, image_env={"I": "image", "J": "image"})
    pod = kubelet.run_pod(PodSpec("p", (spec,)))
    assert pod.container().launch.env == {"THING": "yes", "K": "pod", "I": "plugin", "J": "image"}


def test_of_two_plugins_with_one_variable_either_wins(node, plugin):
    kubelet = node()
    for name, endpoint in ((RESOURCE, "a.sock"), ("example.com/other", "b.sock")):
        one = plugin(kubelet, name=name, endpoint=endpoint)
        one.response.envs["K"] = name
        one.start()
        kubelet.wait_allocatable(name, 24)
    seen = set()
    for number in range(12):
        spec = ContainerSpec("c", {RESOURCE: 1, "example.com/other": 1})
        pod = kubelet.run_pod(PodSpec(f"p{number}", (spec,)))
        seen.add(pod.container().launch.env["K"])
    assert seen == {RESOURCE, "example.com/other"}


def test_the_pods_mount_lies_over_the_plugins(ready, tmp_path):
    kubelet, one = ready()
    one.response.mounts.add(container_path="/etc/x", host_path=str(tmp_path / "plugin"), read_only=True)
    one.response.mounts.add(container_path="/etc/y", host_path=str(tmp_path / "y"), read_only=True)
    pod = kubelet.run_pod(PodSpec("p", (asking(1, mounts={"/etc/x": str(tmp_path / "pod")}),)))
    found = {bind.target: (bind.source, bind.read_only) for bind in pod.container().launch.mounts}
    assert found == {"/etc/x": (str(tmp_path / "pod"), False), "/etc/y": (str(tmp_path / "y"), True)}


def test_a_missing_device_node_is_a_container_error_that_is_retried(ready, tmp_path):
    kubelet, one = ready()
    path = tmp_path / "nvidia0"
    one.response.devices.add(container_path="/dev/nvidia0", host_path=str(path), permissions="rw")
    pod = kubelet.run_pod(PodSpec("p", (asking(1),)))
    assert pod.container().waiting == "CreateContainerError"
    assert pod.events[-1].message == f"Error: lstat {path}: no such file or directory"
    with pytest.raises(AssertionError, match=f"CreateContainerError, lstat {path}: no such file"):
        _ = pod.container().started  # what a test would have asked for its mounts
    with pytest.raises(TimeoutError, match=f"main: CreateContainerError, lstat {path}"):
        pod.wait("Running", 0.01)
    path.touch()
    pod.wait("Running")
    assert pod.container().started.mounts == ()


# --- use of the stand-in itself ----------------------------------------------------------------------------------


def test_mistakes_of_the_caller_are_named(short_dir, ready):
    with pytest.raises(ValueError, match="topology policy 'strict' is none of"):
        FakeKubelet(short_dir, policy="strict")
    with pytest.raises(ValueError, match="too long"):
        FakeKubelet(short_dir / ("x" * 90))
    with pytest.raises(ValueError, match="container names must differ"):
        PodSpec("p", (ContainerSpec("a"), ContainerSpec("a")))
    with pytest.raises(RuntimeError, match="not running"):
        FakeKubelet(short_dir).stop()
    kubelet, _ = ready()
    kubelet.run_pod(PodSpec("p"))
    with pytest.raises(ValueError, match="default/p exists"):
        kubelet.run_pod(PodSpec("p"))
    with pytest.raises(RuntimeError, match="already running"):
        kubelet.start()


# --- what the pod-resources list says after a start ---------------------------------------------------------------


def list_pods(kubelet):
    """What the list shows: the devices of each pod, by name."""
    with grpc.insecure_channel(
        f"unix:{kubelet.pod_resources_socket}", [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        answer = podresources_rpc.PodResourcesListerStub(channel).List(
            podresources.ListPodResourcesRequest(), timeout=30
        )
    return {
        pod.name: {ident for c in pod.containers for devices in c.devices for ident in devices.device_ids}
        for pod in answer.pod_resources
    }


def test_the_list_is_empty_right_after_a_start_and_complete_later(ready):
    """As recorded: nothing when kubelet.sock is there, all of it 1.5 s later."""
    kubelet, _ = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(4),)))
    ids = kubelet.device_ids(pod, RESOURCE)
    assert list_pods(kubelet) == {"p": ids}
    kubelet.stop()
    seen = []
    served = kubelet_podresources.PodResources.start

    def list_at_once(resources):
        served(resources)
        seen.append(list_pods(kubelet))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubelet_podresources.PodResources, "start", list_at_once)
        kubelet.start()
    assert seen == [{}]
    assert list_pods(kubelet) == {"p": ids}, "and nothing was taken back by the question"


def test_without_its_checkpoint_running_pods_are_bare_and_their_devices_free(ready):
    kubelet, one = ready()
    pod = kubelet.run_pod(PodSpec("p", (asking(4),)))
    ids = kubelet.device_ids(pod, RESOURCE)
    kubelet.stop()
    (kubelet.plugin_directory / "kubelet_internal_checkpoint").unlink()
    kubelet.start()
    one.stop()
    one.start()
    kubelet.wait_allocatable(RESOURCE, 24)
    assert list_pods(kubelet) == {"p": set()}
    assert pod.container().running
    assert kubelet.run_pod(PodSpec("all", (asking(24),))).reason == "Unschedulable", "the scheduler counts p"
    twenty = kubelet.run_pod(PodSpec("twenty", (asking(20),)))
    assert twenty.phase == "Running"
    assert kubelet.device_ids(twenty, RESOURCE) & ids, "handed out a second time"
    pod.container().process.finish(1)


def test_a_list_during_an_allocation_can_lose_its_reservation(ready):
    """What the kubelet counts anew, because a pod has ended meanwhile, leaves out what is not recorded yet."""
    kubelet, one = ready()
    ended = kubelet.run_pod(PodSpec("ended", (asking(1),)))

    def slow(ids, context):
        if len(ids) == 4:
            kubelet.delete_pod(ended, force=True)
            list_pods(kubelet)
        return one.answer(ids, context)

    one.on_allocate = slow
    first = kubelet.run_pod(PodSpec("first", (asking(4),)))
    second = kubelet.run_pod(PodSpec("second", (asking(20),)))
    assert (first.phase, second.phase) == ("Running", "Running")
    assert kubelet.device_ids(first, RESOURCE) & kubelet.device_ids(second, RESOURCE)
