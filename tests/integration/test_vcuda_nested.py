# SPDX-License-Identifier: Apache-2.0
"""``vcuda run`` under a quota: its own is one of the card, whatever the outer one is, on the simulated driver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakedriver.env import driver_env, write_machine
from tests.fakes.command import alone, environment, runtime
from tests.native.refused import ONE_CARD
from tests.native.running import LIBRARY

GIB = 1 << 30
VCUDA = alone()
TAKE = """
import ctypes, sys
cuda, total, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(total.value >> 30, cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]) << 30)))
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command on a machine with one card of 24 GiB."""
    env = {
        **environment("CUDA_VISIBLE_DEVICES"),
        **driver_env(write_machine(tmp_path, ONE_CARD, context_memory="100MiB"), tmp_path / "machine"),
        "XDG_RUNTIME_DIR": str(runtime(tmp_path)),
    }

    def call(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env={**env, **extra}, capture_output=True, text=True, timeout=100, check=False
        )

    return call


def nested(*options: str) -> list[str]:
    """The inner command: a program that takes 10 GiB and prints what it sees and gets."""
    return [*VCUDA, "run", *options, "--", sys.executable, "-c", TAKE, "10"]


def outer(memory: str) -> list[str]:
    return [*VCUDA, "run", "--memory", memory, "--"]


HEAD = {"LD_PRELOAD": str(LIBRARY), "VCUDA_MEMORY_LIMIT": "8GiB"}


@pytest.mark.parametrize(
    ("before", "variables"), [(outer("8GiB"), {}), ([], HEAD)], ids=["run", "environment"]
)
def test_it_may_be_larger_than_the_outer_one(run, before, variables):
    done = run(*before, *nested("--memory", "12GiB"), **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "12 0\n", "")


def test_the_card_is_named_by_what_it_has(run):
    """Promises are added up against the whole card, and one that is larger than it is refused."""
    done = run(*outer("8GiB"), *nested("--memory", "20GiB"))
    assert done.returncode == 0
    assert done.stderr.startswith(
        "vcuda run: warning: GPU 0 has 24 GiB, and 28 GiB of it are promised now (8 GiB to "
    )
    done = run(*outer("8GiB"), *nested("--memory", "30GiB"))
    assert done.returncode == 2 and "has 24 GiB; request less" in done.stderr
    assert done.stderr.startswith("vcuda run: error: --memory 30GiB is more than GPU 0 has: ")


def test_a_child_with_another_value_is_told_what_works_there(run):
    other = ["env", "VCUDA_MEMORY_LIMIT=4GiB"]
    child = [sys.executable, "-c", TAKE, "10"]
    refused = run(*outer("8GiB"), *other, *child)
    assert "set VCUDA_QUOTA to a name for a quota of its own" in refused.stderr
    assert "VCUDA_DIR" not in refused.stderr and not refused.stdout.startswith("4 ")
    done = run(*outer("8GiB"), *other, "VCUDA_QUOTA=small", *child)
    assert done.stdout == "4 2\n"


def test_mistakes_are_told_as_without_an_outer_one(run):
    for options in (["--gpu", "7"], ["--gpu", "GPU-ffff"], ["--gpu", "MIG-nonsense"]):
        inner = nested("--memory", "2GiB", *options)
        plain, under = run(*inner), run(*outer("8GiB"), *inner)
        assert plain.returncode == 2
        assert (under.returncode, under.stderr) == (plain.returncode, plain.stderr)


def test_a_machine_without_a_driver(run, tmp_path):
    """The library is there, and so is its quota: NVML is gone from one command to the next."""
    inner = ["env", f"LD_LIBRARY_PATH={tmp_path}", *nested("--memory", "2GiB")]
    done = run(*outer("8GiB"), *inner)
    assert done.returncode == 3 and done.stderr.startswith("vcuda run: error: NVML cannot be started: ")


def test_a_kernel_of_jupyter_that_is_larger_than_what_jupyter_has(run, tmp_path):
    packages = tmp_path / "packages"
    (packages / "ipykernel").mkdir(parents=True)
    variables = {"JUPYTER_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(packages)}
    install = [
        *VCUDA,
        "jupyter",
        "install",
        "--memory",
        "12GiB",
        "--name",
        "large",
        "--python",
        sys.executable,
    ]
    done = run(*outer("8GiB"), *install, **variables)
    assert done.returncode == 0, done.stderr
    argv = json.loads((tmp_path / "data/kernels/large/kernel.json").read_text())["argv"]
    assert argv[1:5] == ["run", "--exec", "--memory", "12GiB"]
