# SPDX-License-Identifier: Apache-2.0
import pytest

from agent.inventory import sysfs


@pytest.fixture
def root(tmp_path):
    for name, node in (
        ("0000:3b:00.0", "1\n"),
        ("0000:3c:00.0", "-1\n"),
        ("000a:3b:00.0", "0\n"),
        ("0000:3d:00.0", "x"),
    ):
        directory = tmp_path / "bus/pci/devices" / name
        directory.mkdir(parents=True)
        (directory / "numa_node").write_text(node)
    return tmp_path


@pytest.mark.parametrize(
    ("bus_id", "node"),
    [
        ("00000000:3B:00.0", 1),
        ("0000:3b:00.0", 1),
        ("0000000A:3B:00.0", 0),
        ("0000:3c:00.0", None),
        ("0000:3d:00.0", None),
        ("0000:ff:00.0", None),
        ("../../etc/passwd", None),
        ("", None),
    ],
)
def test_numa_node(root, bus_id, node):
    assert sysfs.numa_node(bus_id, root) == node


def test_gpus_are_seen_without_their_driver(root):
    for name, vendor, kind in (
        ("0000:3b:00.0", "0x10de\n", "0x030200\n"),
        ("0000:3c:00.0", "0x10DE\n", "0x030000\n"),
        ("000a:3b:00.0", "0x10de\n", "0x040300\n"),  # the GPU's sound
        ("0000:3d:00.0", "0x1af4\n", "0x030000\n"),
    ):
        (root / "bus/pci/devices" / name / "vendor").write_text(vendor)
        (root / "bus/pci/devices" / name / "class").write_text(kind)
    (root / "bus/pci/devices/odd").mkdir()
    assert sysfs.nvidia_gpus(root) == ("0000:3b:00.0", "0000:3c:00.0")
    assert sysfs.nvidia_gpus(root / "nowhere") == ()
    assert not sysfs.driver_loaded(root)
    (root / "module/nvidia").mkdir(parents=True)
    assert sysfs.driver_loaded(root)


def test_the_pcie_root_is_that_of_the_real_place(root):
    place = root / "devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:3e:00.0"
    place.mkdir(parents=True)
    (root / "bus/pci/devices/0000:3e:00.0").symlink_to(place)
    (root / "bus/pci/devices/0000:3f:00.0").symlink_to(root / "nowhere")
    assert sysfs.pcie_root("00000000:3E:00.0", root) == "pci0000:16"
    for bus_id in ("0000:3b:00.0", "0000:3f:00.0", "0000:ff:00.0", "../..", ""):
        assert sysfs.pcie_root(bus_id, root) == ""
