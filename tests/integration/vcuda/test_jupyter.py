# SPDX-License-Identifier: Apache-2.0
"""``vcuda jupyter``: what it installs, started as Jupyter starts a kernel, on the simulated driver.

The kernel is a stand-in for ipykernel that allocates and prints; the real one was tried by hand.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.command import alone, environment, runtime
from vcuda import quotas

ROOT = Path(__file__).parents[3]
KERNEL = """
import ctypes, os, signal, sys
interrupts = []
signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
d = ctypes.CDLL("libcuda.so.1")
context, block, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
d.cuInit(0); d.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); d.cuCtxSetCurrent(context)
d.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
code = d.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(5 << 30))
print(total.value >> 30, code, os.getpid(), os.environ["VCUDA_DIR"], sys.argv[1:], flush=True)
sys.stdin.read()
print(len(interrupts), flush=True)
"""


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """With a Python that has a kernel."""
    packages = tmp_path / "packages"
    (packages / "ipykernel").mkdir(parents=True)
    (packages / "ipykernel_launcher.py").write_text(KERNEL)
    return {
        **environment("CUDA_VISIBLE_DEVICES", "JUPYTER_PATH"),
        "LD_LIBRARY_PATH": str(ROOT / "build" / "fakedriver"),
        "FAKEDRIVER_MACHINE": str(ROOT / "tests" / "fakedriver" / "machines" / "two-24g.txt"),
        "FAKEDRIVER_STATE": str(tmp_path / "state"),
        "XDG_RUNTIME_DIR": str(runtime(tmp_path)),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "PYTHONPATH": str(packages),
    }


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(surroundings: dict[str, str]) -> Run:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*alone(), "jupyter", *words]
        return subprocess.run(
            command, env=surroundings, capture_output=True, text=True, timeout=100, check=False
        )

    return call


@pytest.fixture
def start(surroundings: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts an installed kernel, in a session of its own."""
    started: list[subprocess.Popen[str]] = []

    def call(name: str) -> subprocess.Popen[str]:
        text = json.loads((tmp_path / "data" / "kernels" / name / "kernel.json").read_text())
        words = [word.format(connection_file="/c.json") for word in text["argv"]]
        words[:1] = alone()  # not this machine's own node agent
        process = subprocess.Popen(
            words,
            env=surroundings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split(maxsplit=4)


def test_each_kernel_has_a_quota_of_its_own(
    run: Run, start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    done = run("install", "--memory", "8GiB", "--python", sys.executable)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("installed vcuda-8gib (Python 3 (8 GiB of GPU memory)) in ")
    first, second = start("vcuda-8gib"), start("vcuda-8gib")
    answers = [line(first), line(second)]
    assert [answer[:2] for answer in answers] == [["8", "0"]] * 2, "of 10 GiB that both take, 8 are no limit"
    assert [int(answer[2]) for answer in answers] == [first.pid, second.pid], (
        "Jupyter watches the kernel itself"
    )
    assert answers[0][3] != answers[1][3]
    assert answers[0][4].strip() == "['-f', '/c.json']"
    base = tmp_path / "runtime" / "vcuda"
    assert quotas.sweep(base) == 0
    os.killpg(first.pid, signal.SIGINT)
    assert first.communicate()[0] == "1\n", "an interrupt arrives once"
    second.kill()
    second.wait()
    assert quotas.sweep(base) == 2


def test_a_kernel_is_listed_and_removed(run: Run, tmp_path: Path) -> None:
    assert run("list").stdout == "no kernel has a quota here\n"
    options = ("--memory", "4GiB", "--gpu", "1", "--cores", "30")
    assert run("install", *options, "--python", sys.executable).returncode == 0
    named = run(
        "install",
        "--physical",
        "1GiB",
        "--host",
        "2GiB",
        "--name",
        "mine",
        "--display-name",
        "Mine",
        "--python",
        sys.executable,
    )
    assert named.stdout.startswith("installed mine (Mine) in "), named.stderr
    heading, *rows = run("list").stdout.splitlines()
    assert heading.split() == ["NAME", "QUOTA", "PYTHON", "DIRECTORY"]
    assert [row.split()[0] for row in rows] == ["mine", "vcuda-4gib-30-percent-gpu-1"]
    assert " --memory 4GiB --cores 30 --gpu 1 " in rows[1]
    assert run("remove", "--name", "mine").returncode == 0
    assert [path.name for path in (tmp_path / "data" / "kernels").iterdir()] == [
        "vcuda-4gib-30-percent-gpu-1"
    ]


def test_in_the_environment_of_its_python(run: Run, tmp_path: Path) -> None:
    environment_of_its_own = tmp_path / "environment"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", environment_of_its_own],
        check=True,
        capture_output=True,
    )
    python = str(environment_of_its_own / "bin" / "python")
    done = run("install", "--memory", "1GiB", "--python", python, "--sys-prefix")
    assert (done.returncode, done.stderr) == (0, "")
    written = environment_of_its_own / "share" / "jupyter" / "kernels" / "vcuda-1gib" / "kernel.json"
    assert python in json.loads(written.read_text())["argv"], "the link is what makes it an environment"
    assert "vcuda-1gib" in run("list", "--python", python).stdout
    assert run("remove", "--name", "vcuda-1gib", "--python", python).returncode == 0
    assert not written.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "ACTION"),
        (("frobnicate",), "ACTION"),
        (("install",), "write --memory 8GiB"),
        (("install", "--memory", "80GiB"), "is more than GPU 0 has"),
        (("install", "--memory", "8GiB", "--gpu", "7"), "no GPU '7'"),
        (("install", "--memory", "8GiB", "--python", "/nonexistent"), "there is no /nonexistent"),
        (("install", "--memory", "8GiB", "--name", "A b"), "is no name of a kernel"),
        (("list", "--memory", "8GiB"), "has no quota"),
        (("remove",), "write --name NAME"),
        (("remove", "--name", "other"), "no kernel other with a quota"),
    ],
)
def test_mistakes(run: Run, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = run(*words, *(() if "--python" in words or not words else ("--python", sys.executable)))
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()
