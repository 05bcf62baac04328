# SPDX-License-Identifier: Apache-2.0
"""The four commands of tests/gpu/README.md on the simulated GPU: they come to their end and pass, and fail
when they must.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import cases
from tests.unit.gpu.rehearsing import ROOT, environment, has_pid_namespaces, lines, run

# The simulated driver has neither private tables for the runtime nor multicast on this GPU, and that of the rehearsal
# no limits of its own (test_walls.py).
MISSING = {
    "A": {
        "runtime_13",
        "runtime_12",
        "runtime_calls",
        "multicast",
        "driver_limits",
        "driver_limits_misc",
        "driver_limits_dmem",
    },
    "B": set(),
    "C": set(),
    "D": set(),
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled beforehand and brought along."""
    folder = tmp_path_factory.mktemp("pack")
    command = [sys.executable, "-m", "tests.gpu.pack", "--no-packages", "--pack", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "bring along: build/libvcuda.so" in done.stdout
    return folder


@pytest.mark.parametrize("group", "ABCD")
def test_a_group_passes(tmp_path: Path, pack: Path, group: str) -> None:
    done = run(tmp_path, "--group", group, "--pack", pack)
    found = lines(tmp_path)
    told = {
        name: f"{line.verdict}: {line.evidence}" for name, line in found.items() if line.verdict != "pass"
    }
    missing = MISSING[group] | ({"namespace_lists"} if group == "A" and not has_pid_namespaces() else set())
    assert set(told) == missing, told
    assert set(found) == {"machine", *(name for name, one in cases.ALL.items() if one.group == group)}
    assert done.returncode == (4 if missing else 0), done.stdout + done.stderr
    assert "| case | verdict |" in (tmp_path / "out/report.md").read_text()
    if group == "A":
        assert (
            found["pointers"].numbers["asked"] > 5000
            and found["nvml_bytes"].numbers["step 1 GiB"][0] == 1 << 30
        )
        assert found["runtime_calls"].checks["the_trace_counts"][0]
    if group == "C":
        assert "limits of" in (tmp_path / "out/library.log").read_text()  # what the library says is kept


@pytest.fixture
def empty_library(tmp_path: Path) -> Path:
    """A library that can be preloaded and does nothing."""
    source = tmp_path / "empty.c"
    source.write_text("int gigaslice_test_nothing;\n")
    library = tmp_path / "empty.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    return library


def test_no_case_passes_with_a_library_that_does_nothing(
    tmp_path: Path, pack: Path, empty_library: Path
) -> None:
    names = [name for name, one in cases.ALL.items() if one.group == "B"]
    names += ["lookups", "nvml_bytes", "nvml_table", "pytorch", "jax", "cupy", "triton", "ncu", "race"]
    chosen = [word for name in names for word in ("--case", name)]
    done = run(tmp_path, "--library", empty_library, "--pack", pack, *chosen)
    assert done.returncode == 1
    found = lines(tmp_path)
    assert {name: line.verdict for name, line in found.items() if name != "machine"} == dict.fromkeys(
        names, "fail"
    )


def test_without_frameworks_and_tools_that_is_said(tmp_path: Path, pack: Path) -> None:
    done = run(
        tmp_path,
        "--group",
        "C",
        "--case",
        "exact",
        "--pack",
        pack,
        "--case",
        "pytorch",
        "--case",
        "ncu",
        frameworks=False,
    )
    found = lines(tmp_path)
    assert done.returncode == 4
    assert found["exact"].verdict == "pass"
    assert found["pytorch"].verdict == "missing" and "No module named 'torch'" in found["pytorch"].evidence
    assert found["ncu"].verdict == "missing"
    assert "No module named 'torch'" in done.stdout


def test_what_was_not_brought_along_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, "--case", "call_costs", "--pack", tmp_path / "nothing")
    assert done.returncode == 4
    assert "was not brought along" in lines(tmp_path)["call_costs"].evidence


def test_a_failing_nvidia_smi_costs_its_own_case_and_no_other(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
    (tools / "nvidia-smi").chmod(0o755)
    path = f"{tools}:{environment(tmp_path, frameworks=False)['PATH']}"
    done = run(tmp_path, "--case", "nvidia_smi", "--case", "exact", frameworks=False, PATH=path)
    found = lines(tmp_path)
    assert done.returncode == 1
    assert "ended with 9" in found["nvidia_smi"].evidence and found["nvidia_smi"].verdict == "fail"
    assert "ends with 9" in found["machine"].numbers["nvidia-smi"]
    assert found["exact"].verdict == "pass"


def test_an_nvidia_smi_that_cannot_be_started(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_bytes(b"\x7fELF and nothing else")
    (tools / "nvidia-smi").chmod(0o755)
    path = f"{tools}:{environment(tmp_path, frameworks=False)['PATH']}"
    done = run(tmp_path, "--case", "nvidia_smi", "--case", "exact", frameworks=False, PATH=path)
    found = lines(tmp_path)
    assert done.returncode == 1
    assert "cannot be started" in found["machine"].numbers["nvidia-smi"]
    assert found["nvidia_smi"].verdict == "fail" and found["exact"].verdict == "pass"


def test_no_gpu_is_said_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, NVIDIA_VISIBLE_DEVICES="none")
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1 and "no GPU to test on" in done.stderr
    assert lines(tmp_path)["machine"].verdict == "fail"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--case", "no_such"], "no case is called no_such"),
        (["--group", "E"], "write letters of A, B, C and D"),
        (["--budget", "0"], "write more than 0"),
        (["--library", "/no/library.so"], "is missing: run make native"),
    ],
)
def test_wrong_arguments_are_said(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 2 and sentence in done.stderr


def test_the_script_needs_neither_make_nor_a_virtual_environment(tmp_path: Path) -> None:
    """As on the other machine: the sources, the library, and the machine's own Python with no package of ours."""
    tree = tmp_path / "tree"
    (tree / "build").mkdir(parents=True)
    for name in ("tests", "native"):
        (tree / name).symlink_to(ROOT / name)
    (tree / "build/libvcuda.so").symlink_to(ROOT / "build/libvcuda.so")
    script = tree / "run"
    script.write_text(
        (ROOT / "tests/gpu/run").read_text().replace('cd "$(dirname "$0")/../.."', f"cd {tree}")
    )
    env = environment(tmp_path, frameworks=False, PYTHON="python3")
    env.pop("PYTHONPATH")
    command = [
        "bash",
        str(script),
        "--short",
        "--case",
        "exact",
        "--case",
        "views",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line.verdict for line in lines(tmp_path).values()} == {"pass"}
    assert platform.machine() in str(lines(tmp_path)["machine"].numbers["machine"])


def small_gpu(tmp_path: Path, memory: str) -> str:
    """A machine whose GPU has so much."""
    path = tmp_path / "small.txt"
    path.write_text(
        f"cuda_version: 13000\ndriver_version: 580.1\n\ngpu 0:\n  model: small\n  memory: {memory}\n"
    )
    return str(path)


def test_quotas_are_smaller_on_a_small_gpu(tmp_path: Path) -> None:
    done = run(tmp_path, "--case", "exact", FAKEDRIVER_MACHINE=small_gpu(tmp_path, "13GiB"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "quotas are 2 GiB, not 8" in done.stdout
    assert lines(tmp_path)["exact"].numbers["total"] == 2 << 30


def test_a_gpu_with_no_room_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, "--case", "exact", FAKEDRIVER_MACHINE=small_gpu(tmp_path, "5GiB"))
    assert done.returncode == 3
    assert "too little memory is free" in done.stderr and "stop what uses the GPU" in done.stderr


def test_the_gpu_is_cudas_first_whatever_nvml_calls_it(tmp_path: Path) -> None:
    """CUDA shows the second GPU alone: both sides of each case must ask about that one."""
    done = run(
        tmp_path,
        "--case",
        "linear",
        "--case",
        "views",
        FAKEDRIVER_MACHINE=two_gpus(),
        CUDA_VISIBLE_DEVICES="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def two_gpus() -> str:
    """A machine that has two."""
    return str(ROOT / "tests/fakedriver/machines/two-24g.txt")
