# SPDX-License-Identifier: Apache-2.0
"""Names of CDI devices become variables and mounts as in the runtimes' own library."""

from __future__ import annotations

import json

import pytest

from tests.fakes.kubelet import Bind, Launch, StartError
from tests.fakes.kubelet.cdi import injected, write_nvidia

VGPU = "gigaslice.io/vgpu"


def write(directory, name, *devices, edits=None, **more):
    document = {
        "cdiVersion": "0.5.0",
        "kind": VGPU,
        "devices": [{"name": device, "containerEdits": edit} for device, edit in devices],
        **({"containerEdits": edits} if edits else {}),
        **more,
    }
    (directory / name).write_text(json.dumps(document))


def mount(source, target, *options):
    return {"hostPath": str(source), "containerPath": target, "options": [*options, "bind"]}


def test_variables_and_mounts_replace_those_of_the_container(tmp_path):
    source = tmp_path / "page"
    source.touch()
    edits = {"env": ["A=cdi", "B="], "mounts": [mount(source, "/etc/page", "ro")]}
    write(tmp_path, "a.json", ("one", edits))
    launch = Launch(
        ("x",), {"A": "pod", "C": "pod"}, (Bind("/tmp", "/etc/page", False), Bind("/tmp", "/t", False))
    )
    found = injected(launch, [f"{VGPU}=one"], tmp_path)
    assert found.env == {"A": "cdi", "B": "", "C": "pod"}
    assert found.mounts == (Bind("/tmp", "/t", False), Bind(str(source), "/etc/page", True))


def test_what_all_devices_of_a_file_have_comes_first_and_later_devices_win(tmp_path):
    devices = [(name, {"env": [f"DEVICE={name}"]}) for name in ("one", "two")]
    write(tmp_path, "a.json", *devices, edits={"env": ["DEVICE=all", "ALL=1"]})
    assert injected(Launch(()), [f"{VGPU}=two", f"{VGPU}=one"], tmp_path).env == {"DEVICE": "one", "ALL": "1"}


def test_no_device_needs_no_directory(tmp_path):
    launch = Launch(("x",))
    assert injected(launch, [], tmp_path / "none") is launch
    with pytest.raises(StartError, match=f"unresolvable CDI devices {VGPU}=one, {VGPU}=two"):
        injected(launch, [f"{VGPU}=one", f"{VGPU}=two"], tmp_path / "none")


@pytest.mark.parametrize(
    "broken",
    [
        {"cdiVersion": "9.9.9"},
        {"kind": "vgpu"},
        {"devices": []},
        {"devices": [{"name": "one/two", "containerEdits": {}}, {"name": "one", "containerEdits": {}}]},
    ],
)
def test_a_file_that_is_no_specification_is_not_there(tmp_path, broken):
    write(tmp_path, "a.json", ("one", {"env": ["A=1"]}), **broken)
    with pytest.raises(StartError, match="unresolvable"):
        injected(Launch(()), [f"{VGPU}=one"], tmp_path)


def test_half_a_file_and_a_device_in_two_files_are_none(tmp_path):
    write(tmp_path, "a.json", ("one", {"env": ["A=1"]}))
    (tmp_path / "b.json").write_text((tmp_path / "a.json").read_text()[:-5])
    assert injected(Launch(()), [f"{VGPU}=one"], tmp_path).env == {"A": "1"}
    write(tmp_path, "b.json", ("one", {"env": ["A=2"]}), ("two", {}))
    with pytest.raises(StartError, match=f"unresolvable CDI devices {VGPU}=one$"):
        injected(Launch(()), [f"{VGPU}=one", f"{VGPU}=two"], tmp_path)


def test_what_an_edit_names_has_to_exist(tmp_path):
    write(tmp_path, "a.json", ("one", {"mounts": [mount(tmp_path / "gone", "/etc/page", "ro")]}))
    with pytest.raises(StartError, match=r'gone" to rootfs at "/etc/page": no such file or directory'):
        injected(Launch(()), [f"{VGPU}=one"], tmp_path)
    write(tmp_path, "a.json", ("one", {"deviceNodes": [{"path": "/dev/gone"}]}))
    with pytest.raises(StartError, match='failed to stat CDI host device "/dev/gone"'):
        injected(Launch(()), [f"{VGPU}=one"], tmp_path)


def test_nvidias_devices_are_the_gpus_that_a_container_sees(tmp_path):
    write_nvidia(tmp_path, ["GPU-1", "GPU-2", "GPU-3"])
    found = injected(Launch(()), ["nvidia.com/gpu=GPU-3", "nvidia.com/gpu=GPU-1"], tmp_path)
    assert found.gpus == ("GPU-3", "GPU-1")
    assert found.env["NVIDIA_VISIBLE_DEVICES"] == "void"
