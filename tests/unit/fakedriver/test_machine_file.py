# SPDX-License-Identifier: Apache-2.0
"""Machine files: what they mean, and one clear line for every mistake."""

from __future__ import annotations

import pytest

from tests.fakedriver.env import MACHINES, driver_env


def first_complaint(machine):
    peer = machine.peer()
    assert peer("call('cuInit', 0)") == 802
    assert peer("call('nvmlInit_v2')") == 9
    lines = peer.end().splitlines()
    assert lines[0] == lines[1], "both libraries say the same"
    assert len(lines) == 2
    return lines[0]


def test_the_machines_that_are_there(machine):
    counts = {}
    for path in sorted(MACHINES.glob("*.txt")):
        peer = machine(path.stem).peer()
        counts[path.stem] = len(peer("uuids()"))
    assert counts == {"dgx-h200": 8, "one-h200": 1, "pcie-8": 8, "two-24g": 2}


def test_uuids_stay_and_differ_between_machines(machine):
    names = [path.stem for path in sorted(MACHINES.glob("*.txt"))]
    first = [machine(name).peer()("uuids()") for name in names]
    assert first == [machine(name).peer()("uuids()") for name in names]
    everything = [uuid for uuids in first for uuid in uuids]
    assert len(set(everything)) == len(everything) == 19


def test_everything_that_can_be_written(written):
    machine = written(
        """# a comment
        driver_version: 535.104.05   # and another
        cuda_version: 12020
        gpus: 2
        gpu *:
          model: Made Up 9000
          memory: 1536MiB
          capability: 7.5
        gpu 1:
          model: Other
          uuid: GPU-00112233-4455-6677-8899-aabbccddeeff
          pci: 00000001:0a:1f.0
          minor: 7
          numa: 3
          multiprocessors: 9
          cpus: 0,2-3,255
        """
    )
    peer = machine.peer()
    assert peer("uuids()[1]") == "GPU-00112233-4455-6677-8899-aabbccddeeff"
    assert peer("[text('nvmlDeviceGetName', device(i)) for i in (0, 1)]") == ["Made Up 9000", "Other"]
    assert peer(
        "[b := ctypes.create_string_buffer(32), good('cuDeviceGetPCIBusId', b, 32, 1), b.value.decode()][2]"
    ) == ("0001:0A:1F.0")
    assert peer("[v := c_uint(), good('nvmlDeviceGetMinorNumber', device(1), byref(v)), v.value][2]") == 7
    assert peer("[v := c_uint(), good('nvmlDeviceGetMinorNumber', device(0), byref(v)), v.value][2]") == 0
    assert peer("[v := c_int(), good('cuDeviceGetAttribute', byref(v), 16, 1), v.value][2]") == 9
    assert peer("[v := c_size_t(), good('cuDeviceTotalMem_v2', byref(v), 1), v.value][2]") == 1536 << 20
    assert peer(
        "[m := c_int(), n := c_int(), good('cuDeviceComputeCapability', byref(m), byref(n), 1), m.value, "
        "n.value][3:]"
    ) == [7, 5]
    assert peer(
        "[s := (ctypes.c_ulong * 4)(), good('nvmlDeviceGetCpuAffinity', device(1), 4, s), list(s)][2]"
    ) == [0b1101, 0, 0, 1 << 63]
    assert (
        peer(
            "[s := (ctypes.c_ulong * 1)(), good('nvmlDeviceGetMemoryAffinity', device(1), 1, s, 0), s[0]][2]"
        )
        == 8
    )
    assert peer(
        "[b := ctypes.create_string_buffer(80), good('nvmlSystemGetDriverVersion', b, 80), b.value.decode()][2]"
    ) == ("535.104.05")


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("", 0, "no GPU: write gpus: <n>"),
        ("gpus: 0", 1, 'gpus: "0" is not 1 to 16'),
        ("gpus: 17", 1, 'gpus: "17" is not 1 to 16'),
        ("gpus 2", 1, '"gpus 2" is not "key: value"'),
        ("gpu 0:\nmemory: 8GB", 2, 'memory: "8GB" is not a size such as 24GiB, above 0'),
        ("gpu 0:\nmemory: 0", 2, 'memory: "0" is not a size'),
        ("gpu 0:\nmemory: -1GiB", 2, 'memory: "-1GiB" is not a size'),
        ("gpu 0:\nmemory: 999999999999TiB", 2, 'memory: "999999999999TiB" is not a size'),
        ("memory: 8GiB", 1, '"memory" belongs below a line gpu <n>: or gpu *:'),
        ("invisible_processes: no", 1, 'invisible_processes: "no" is not zero, left_out or listed'),
        ("private_head: 8", 1, 'private_head: "8" is not 24 to 4096'),
        ("gpu 16:\n", 1, '"gpu 16:" is neither gpu 0: to gpu 15: nor gpu *:'),
        ("gpus: 1\n\ncolour: red", 3, 'unknown key "colour"'),
        ("gpu 0:\nuuid: GPU-1", 2, 'uuid: "GPU-1" is not GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx'),
        ("gpu 0:\npci: 3b:00", 2, 'pci: "3b:00" is not an address such as 00000000:3b:00.0'),
        ("gpu 0:\ncpus: 0-999", 2, 'cpus: "0-999" is not a CPU list'),
        ("gpu 0:\ncapability: new", 2, 'capability: "new" is not a compute capability'),
        ("gpus: 1\nlaunch: 5", 2, 'launch: "5" is not a time such as 5us'),
        ("gpus: 1\nnvswitch: perhaps", 2, 'nvswitch: "perhaps" is not yes or no'),
        ("gpus: 1\ncuda_version: 12.4", 2, 'cuda_version: "12.4" is not 1000 * major + 10 * minor'),
        ("gpu 0:\nmemory: 1GiB\nreserved: 1GiB", 3, "gpu 0: reserved memory must be less than its memory"),
        ("x" * 5000, 1, "the line is longer than"),
    ],
)
def test_mistakes(written, text, line, complaint):
    machine = written(text)
    assert f"{machine.machine} line {line}: {complaint}"[-100:] in first_complaint(machine)


def test_the_same_address_twice(written):
    seen = first_complaint(written("gpu 0:\npci: 0:1:0.0\ngpu 1:\npci: 0:1:0.0\n"))
    assert "gpu 0 and gpu 1 have the same uuid or PCI address" in seen


def test_a_machine_file_that_is_not_there(machine, tmp_path):
    assert "No such file or directory" in first_complaint(machine(tmp_path / "nowhere.txt"))


def test_a_machine_file_that_is_a_directory(machine, tmp_path):
    assert "Is a directory" in first_complaint(machine(tmp_path))


def test_nothing_is_set(small):
    peer = small.peer(FAKEDRIVER_MACHINE="", FAKEDRIVER_STATE="")
    assert peer("call('cuInit', 0)") == 802
    assert "set FAKEDRIVER_MACHINE to a machine file" in peer.end()


def test_a_state_without_a_machine(small, tmp_path):
    peer = small.peer(FAKEDRIVER_MACHINE="")
    assert peer("call('cuInit', 0)") == 802
    assert "FAKEDRIVER_MACHINE is not set and there is no state file" in peer.end()
    small.peer()("context(0)")
    assert small.peer(FAKEDRIVER_MACHINE="")("uuids()") == small.peer()("uuids()")


def test_a_state_of_another_machine(small):
    small.peer()("context(0)")
    peer = small.peer(FAKEDRIVER_MACHINE=str(MACHINES / "pcie-8.txt"))
    assert peer("call('cuInit', 0)") == 802
    assert "was made from another machine file" in peer.end()


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(10_000_000)])
def test_a_state_that_is_not_one(small, content):
    small.state_file.write_bytes(content)
    peer = small.peer()
    assert peer("call('cuInit', 0)") == 802
    assert "is not a state file of this version" in peer.end()


def test_a_state_that_cannot_be_created(small, tmp_path):
    peer = small.peer(FAKEDRIVER_STATE=str(tmp_path / "missing" / "state"))
    assert peer("call('cuInit', 0)") == 802
    assert "cannot create the state file" in peer.end()


def test_the_state_has_a_place_by_default(small, tmp_path):
    peers = [small.peer(FAKEDRIVER_STATE="", TMPDIR=str(tmp_path)) for _ in range(2)]
    for peer in peers:
        peer("context(0)")
    assert peers[0]("used()") == 200 << 20
    assert [path.name[:11] for path in tmp_path.iterdir()] == ["fakedriver-"]


def test_environment_of_a_process(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    env = driver_env("two-24g", tmp_path / "state", FAKEDRIVER_LATENCY="*=0")
    assert env["FAKEDRIVER_MACHINE"] == str(MACHINES / "two-24g.txt")
    assert env["FAKEDRIVER_LATENCY"] == "*=0"
    assert env["LD_LIBRARY_PATH"].endswith("/build/fakedriver:/somewhere")
    assert "CUDA_VISIBLE_DEVICES" not in env
