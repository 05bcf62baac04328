# SPDX-License-Identifier: Apache-2.0
"""RDMA adapters from a recorded sysfs."""

import asyncio

import pytest

from agent.providers.rdma import Rdma, scan
from agent.providers.resource import RefusedError


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def add(root, name, number, *, numa=0, state="4: ACTIVE", ports=1, node=""):
    home = root / "class/infiniband" / name
    write(home / "device/numa_node", str(numa))
    (home / f"device/infiniband_verbs/uverbs{number}").mkdir(parents=True, exist_ok=True)
    write(
        home / f"device/infiniband_verbs/uverbs{number}/uevent",
        f"MAJOR=231\nDEVNAME={node or f'infiniband/uverbs{number}'}",
    )
    write(root / f"class/infiniband_verbs/uverbs{number}/ibdev", name)
    for port in range(1, ports + 1):
        write(home / f"ports/{port}/state", state if port == ports else "1: DOWN")


@pytest.fixture
def sysfs(tmp_path):
    add(tmp_path, "mlx5_0", 0, numa=0)
    add(tmp_path, "mlx5_1", 1, numa=1, ports=2)
    add(tmp_path, "mlx5_2", 2, numa=-1, state="1: DOWN")
    write(tmp_path / "class/misc/rdma_cm/uevent", "DEVNAME=infiniband/rdma_cm")
    return tmp_path


def made(root, share=1):
    return Rdma("gigaslice.io/rdma", root, share, 0.01)


def test_adapters_have_a_numa_node_and_the_health_of_their_links(sysfs):
    assert [(one.id, one.numa, one.healthy) for one in made(sysfs).devices()] == [
        ("mlx5_0/0", 0, True),
        ("mlx5_1/0", 1, True),
        ("mlx5_2/0", None, False),
    ]


def test_an_adapter_can_be_shared(sysfs):
    assert [one.id for one in made(sysfs, 2).devices()][:4] == [
        "mlx5_0/0",
        "mlx5_0/1",
        "mlx5_1/0",
        "mlx5_1/1",
    ]


def test_the_container_gets_verbs_and_the_connection_manager_each_once(sysfs):
    answer = made(sysfs, 2).answer(["mlx5_1/0", "mlx5_0/1", "mlx5_0/0"])
    assert [node.host_path for node in answer.nodes] == [
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/rdma_cm",
        "/dev/infiniband/uverbs1",
    ]
    assert answer.env == {"GIGASLICE_RDMA_DEVICES": "mlx5_0,mlx5_1"}


def test_a_node_that_the_kernel_does_not_have_is_not_named(sysfs):
    (sysfs / "class/misc/rdma_cm/uevent").unlink()
    (sysfs / "class/misc/rdma_cm").rmdir()
    assert [node.host_path for node in made(sysfs).answer(["mlx5_0/0"]).nodes] == ["/dev/infiniband/uverbs0"]


def test_two_functions_of_one_device_keep_their_own_nodes(sysfs):
    """Both adapters lie below the same PCI device, whose directory lists the verbs of both."""
    (sysfs / "class/infiniband/mlx5_0/device/infiniband_verbs/uverbs1").mkdir()
    assert scan(sysfs)[0].nodes == ("infiniband/uverbs0", "infiniband/rdma_cm")


def test_an_unknown_adapter_is_refused(sysfs):
    with pytest.raises(RefusedError, match="mlx5_9"):
        made(sysfs).answer(["mlx5_9/0"])


def test_a_machine_without_rdma_has_no_devices(tmp_path):
    assert made(tmp_path).devices() == []


def test_shares_of_different_adapters_on_one_numa_node_are_preferred(sysfs):
    add(sysfs, "mlx5_3", 3, numa=1)
    provider = made(sysfs, 2)
    everything = [one.id for one in provider.devices()]

    def prefer(available, must, size):
        return asyncio.run(provider.prefer(available, must, size))

    assert prefer(everything, [], 2) == ("mlx5_1/0", "mlx5_3/0")
    assert prefer(everything, ["mlx5_3/1"], 2) == ("mlx5_3/1", "mlx5_1/0")
    assert prefer([one for one in everything if one != "mlx5_1/0"], [], 1) == ("mlx5_3/0",)
    assert prefer(["mlx5_0/0"], [], 3) == ("mlx5_0/0",)


def test_links_and_adapters_are_looked_at_again(sysfs):
    provider = made(sysfs)
    told = []

    def look():
        provider.update(lambda: told.append(1), {one.name: one for one in scan(sysfs)})
        return [one.healthy for one in provider.devices()]

    assert look() == [True, True, False]
    assert not told
    write(sysfs / "class/infiniband/mlx5_0/ports/1/state", "2: INIT")
    write(sysfs / "class/infiniband/mlx5_2/ports/1/state", "4: ACTIVE")
    assert look() == [False, True, True]
    (sysfs / "class/infiniband/mlx5_1").rename(sysfs / "away")
    assert look() == [False, False, True], "one that is gone stays listed"
    assert provider.answer(["mlx5_1/0"]).nodes
    assert len(told) == 2
