# SPDX-License-Identifier: Apache-2.0
"""Registration, and what happens to a resource when its streams begin and end."""

from __future__ import annotations

import dataclasses
import socket
import time

import grpc
import pytest

from tests.fakes.kubelet import PodSpec
from tests.fakes.kubelet.registry import extended_resource_name
from tests.unit.fakes.conftest import QUICK
from tests.unit.fakes.plugin import RESOURCE, asking, device, gpus


def eventually(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition never held"
        time.sleep(0.01)


def refused(plugin, **arguments):
    with pytest.raises(grpc.RpcError) as caught:
        plugin.register(**arguments)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    return caught.value.details()


def test_options_are_asked_inside_register_and_count_alone(node, plugin):
    kubelet = node()
    one = plugin(kubelet).start()
    kubelet.wait_allocatable(RESOURCE, 24)
    assert one.order.index("Options") < one.order.index("Registered")
    assert one.order.index("Options") < one.order.index("Watch")
    assert kubelet.manager.endpoints[RESOURCE].options == one.options
    assert kubelet.capacity() == {RESOURCE: 24}


def test_errors_of_register(node, plugin):
    kubelet = node(settings=dataclasses.replace(QUICK, dial_timeout_s=0.5))
    one = plugin(kubelet).serve()
    assert refused(one, name="thing") == 'the ResourceName "thing" is invalid'
    assert refused(one, version="v1").startswith('requested API version "v1" is not supported')
    text = refused(one, endpoint="none.sock")
    assert text == "failed to dial device plugin: context deadline exceeded"
    assert one.order == []
    assert kubelet.allocatable() == {}


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("example.com/thing", True),
        ("gigaslice.io/vgpu-memory", True),
        ("thing", False),
        ("kubernetes.io/thing", False),
        ("x.kubernetes.io/thing", False),
        ("requests.example.com/thing", False),
        ("example.com/", False),
        ("/thing", False),
        ("example.com/a b", False),
    ],
)
def test_resource_names(name, valid):
    assert extended_resource_name(name) is valid


def test_start_wipes_sockets_and_nothing_else(node, plugin):
    kubelet = node()
    directory = kubelet.plugin_directory
    (directory / "notes").write_text("keep")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "stale.sock"))
    kubelet.restart()
    assert {entry.name for entry in directory.iterdir()} <= {
        "notes",
        "kubelet.sock",
        "kubelet_internal_checkpoint",
    }
    assert (directory / "notes").read_text() == "keep"


def test_stop_leaves_its_socket_behind_and_start_makes_a_new_one(node):
    kubelet = node()
    before = kubelet.kubelet_socket.stat()
    kubelet.stop()
    assert kubelet.kubelet_socket.is_socket()
    kubelet.start()
    after = kubelet.kubelet_socket.stat()
    assert (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns)


def test_restart_forgets_the_plugin_until_it_registers_again(node, plugin):
    kubelet = node()
    one = plugin(kubelet).start()
    kubelet.wait_allocatable(RESOURCE, 24)
    kubelet.restart()
    assert not (kubelet.plugin_directory / "p.sock").exists()
    assert kubelet.capacity() == {RESOURCE: 0}
    one.stop()
    one.start()
    kubelet.wait_allocatable(RESOURCE, 24)


def test_end_of_the_stream_makes_all_unhealthy_and_after_the_grace_drops_the_resource(node, plugin):
    kubelet = node(settings=dataclasses.replace(QUICK, stopped_grace_s=1.0))
    one = plugin(kubelet).start()
    kubelet.wait_allocatable(RESOURCE, 24)
    one.stop()
    kubelet.wait_allocatable(RESOURCE, 0)
    assert kubelet.capacity() == {RESOURCE: 24}
    eventually(lambda: kubelet.capacity() == {})
    one.start()
    kubelet.wait_allocatable(RESOURCE, 24)


def test_each_list_replaces_the_one_before(node, plugin):
    kubelet = node()
    one = plugin(kubelet).start()
    kubelet.wait_allocatable(RESOURCE, 24)
    one.push([*gpus(1, 8)[:7], device("0-7", health="Unhealthy")])
    kubelet.wait_allocatable(RESOURCE, 7)
    assert kubelet.capacity() == {RESOURCE: 8}


def test_second_registration_ends_with_neither(node, plugin):
    """The end of the older stream disconnects the newer plugin, which is not asked again."""
    kubelet = node()
    old = plugin(kubelet, endpoint="old.sock").start()
    kubelet.wait_allocatable(RESOURCE, 24)
    new = plugin(kubelet, gpus(1, 8), endpoint="new.sock").start()
    kubelet.wait_allocatable(RESOURCE, 8)
    old.stop()
    kubelet.wait_allocatable(RESOURCE, 0)
    eventually(lambda: len(kubelet.registry.stream_ends) == 2)
    assert new.order.count("Watch") == 1
    assert kubelet.registry.registrations == [RESOURCE, RESOURCE]
    pod = kubelet.run_pod(PodSpec("p", bind=True, containers=(asking(1),)))
    assert "no healthy devices present" in pod.message


def test_when_the_newer_one_ends_the_older_pushes_for_a_stopped_endpoint(node, plugin):
    kubelet = node()
    old = plugin(kubelet, endpoint="old.sock").start()
    kubelet.wait_allocatable(RESOURCE, 24)
    new = plugin(kubelet, endpoint="new.sock").start()
    eventually(lambda: "Watch" in new.order)
    new.stop()
    kubelet.wait_allocatable(RESOURCE, 0)
    old.push(gpus(2, 8))
    kubelet.wait_allocatable(RESOURCE, 16)
    pod = kubelet.run_pod(PodSpec("p", containers=(asking(1),)))
    assert (pod.phase, pod.reason) == ("Failed", "UnexpectedAdmissionError")
    assert f"endpoint {RESOURCE} has been stopped" in pod.message


def test_a_list_over_4_mib_ends_the_stream_although_register_succeeded(node, plugin):
    kubelet = node()
    name = "n" * 60
    one = plugin(kubelet, [device(f"{name}{n}") for n in range(60_000)]).start()
    eventually(lambda: kubelet.registry.stream_ends)
    assert "ResourceExhausted" in kubelet.registry.stream_ends[0]
    assert "4194304" in kubelet.registry.stream_ends[0]
    assert kubelet.allocatable().get(RESOURCE, 0) == 0
    assert one.order[-1] in ("Registered", "Watch")


def test_unlinked_socket_of_a_connected_plugin_goes_on_working(node, plugin):
    kubelet = node()
    plugin(kubelet).start()
    kubelet.wait_allocatable(RESOURCE, 24)
    (kubelet.plugin_directory / "p.sock").unlink()
    assert kubelet.run_pod(PodSpec("p", containers=(asking(2),))).phase == "Running"


def test_options_that_cannot_be_had_refuse_the_registration(node, plugin):
    kubelet = node()
    one = plugin(kubelet).serve()
    one.options = None  # the servicer then answers with nothing, which cannot be serialized
    text = refused(one)
    assert text.startswith("failed to get device plugin options: rpc error: code = Internal")
    assert kubelet.manager.endpoints == {}
