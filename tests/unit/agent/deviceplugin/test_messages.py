# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from agent.deviceplugin import messages
from agent.deviceplugin.device_list import slice_devices
from agent.providers.container_edits import gpu_edits, quota_mounts
from tests.fakes.nodes import allocation, inventory, uuid

HOST, LIBRARIES = Path("/var/lib/gigaslice/allocations/1"), Path("/var/lib/gigaslice/lib")


def answered(one, directory, library_dir, visible_devices):
    mounts = quota_mounts(directory, library_dir)
    return messages.container_response(gpu_edits(one.id, tuple(one.quota()), visible_devices, mounts))


def test_a_container_gets_four_mounts():
    response = answered(allocation(1, (0, range(8))), HOST, LIBRARIES, "env")
    assert [(mount.container_path, mount.host_path, mount.read_only) for mount in response.mounts] == [
        ("/etc/ld.so.preload", f"{HOST}/ld.so.preload", True),
        ("/usr/local/lib/vcuda", str(LIBRARIES), True),
        ("/etc/vcuda/limits", f"{HOST}/limits", True),
        ("/etc/vcuda/ledger", f"{HOST}/ledger", False),
    ]


def test_each_gpu_is_named_once_and_nothing_else_is_in_the_environment():
    response = answered(allocation(1, (0, range(8)), (1, range(4))), HOST, LIBRARIES, "env")
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}"}
    assert not response.cdi_devices
    assert not response.devices


def test_cdi_names_instead_of_the_environment():
    response = answered(allocation(1, (0, range(8)), (1, range(4))), HOST, LIBRARIES, "cdi")
    assert [device.name for device in response.cdi_devices] == [
        f"nvidia.com/gpu={uuid(0)}",
        f"nvidia.com/gpu={uuid(1)}",
    ]
    assert not response.envs


def test_the_allocation_can_be_found_from_the_container():
    one = allocation(1, (0, range(8)))
    response = answered(one, HOST, LIBRARIES, "env")
    assert dict(response.annotations) == {"gigaslice.io/allocation": one.id}


def test_every_slice_is_a_device_with_health_and_numa_node():
    devices = messages.devices(slice_devices(inventory(2, 3, unhealthy=(1,)))).devices
    assert [device.ID for device in devices] == [f"{uuid(gpu)}/{n}" for gpu in (0, 1) for n in range(3)]
    assert [device.health for device in devices] == ["Healthy"] * 3 + ["Unhealthy"] * 3
    assert [[node.ID for node in device.topology.nodes] for device in devices] == [[0]] * 3 + [[1]] * 3


def test_an_unknown_numa_node_leaves_topology_out():
    """One device with topology switches alignment on for the whole resource."""
    devices = messages.devices(slice_devices(inventory(1, 3, numa=(None,)))).devices
    assert not any(device.HasField("topology") for device in devices)


def test_registration():
    request = messages.register_request("gigaslice.io/vgpu-memory", "x.sock")
    assert (request.version, request.endpoint, request.resource_name) == (
        "v1beta1",
        "x.sock",
        "gigaslice.io/vgpu-memory",
    )
    assert request.options.pre_start_required
    assert request.options.get_preferred_allocation_available
