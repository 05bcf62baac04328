# SPDX-License-Identifier: Apache-2.0
"""Runs the nvidia-smi of every branch in a container that shares a simulated GPU, checks what it shows, and writes
docs/nvidia-smi.md. Exits 1 when a branch shows anything but the container's own share."""

from __future__ import annotations

import ctypes
import datetime
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fakedriver.env import write_machine
from tests.native.running import CLIENTS, MIB, ROOT, Client, Place
from tests.nvidia_smi.packages import Branch, fetch
from tests.steps import each

PAGE = ROOT / "docs" / "nvidia-smi.md"
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")
LIMIT, CONTEXT, STRANGER = 8192, 100, 3333  # MiB
HELD = (CONTEXT + 123, CONTEXT + 1000)
TABLE_ID = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
TABLE_BYTES = {470: 1704, 525: 1904, 535: 1960, 550: 2008, 555: 2040}
INTRODUCTION = """# What nvidia-smi shows

Written by `make test-nvidia-smi` on {date}; not edited by hand. The programs are NVIDIA's own, downloaded from Debian's
non-free packages and not part of this repository. They run on the simulated driver, which says it is of their branch.

The scene: a GPU of 24 GiB; a container with 8 GiB of it, in {namespace}, in which two programs hold
{first} MiB and {second} MiB, contexts included; and outside the container another program that holds {stranger} MiB of
the same GPU. `nvidia-smi` runs in the container. Names, PIDs and memory of the stranger must not appear anywhere.

| branch | version | process lists | bytes of the private table | result |
| --- | --- | --- | --- | --- |
"""


LATER = "610.43.02"  # of a branch that no program could be had of
LATER_CHAPTER = """
## Branches after 580

Debian has no program of them. The newest one above, {program}, runs on a simulated driver that says it is {later},
in the same scene. There it reads the driver's own lists, which show bytes as the driver counts them, or none
([0017](adr/0017-whose-pids-nvml-shows.md)). Rows and words of the table are as in its own branch, which is not
certain of real ones; the library knows neither.

| the kernel | `nvidia-smi` | result |
| --- | --- | --- |
"""
KERNELS = {
    "left_out": ("leaves out processes of other PID namespaces", "shows the container's processes"),
    "listed": ("leaves nobody out", "shows no processes, and the library says why in one line"),
}


def table_bytes(library: Path) -> int:
    """Size of the private table of a real libnvidia-ml.so, which needs neither GPU nor driver to tell."""
    table = ctypes.POINTER(ctypes.c_uint64)()
    assert ctypes.CDLL(str(library)).nvmlInternalGetExportTable(ctypes.byref(table), TABLE_ID) == 0
    return table[0]


def machine(version: str, directory: Path, invisible: str) -> Path:
    """The machine two-24g with a driver of VERSION; INVISIBLE: what it does with processes of other namespaces."""
    return write_machine(directory, like="two-24g", driver_version=version, invisible_processes=invisible)


def in_namespace() -> bool:
    """Whether this machine lets us make PID namespaces."""
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


def play(branch: Branch, version: str, invisible: str = "zero") -> dict:
    """What nvidia-smi of BRANCH printed in the scene with a driver of VERSION."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(Path(scratch), machine=str(machine(version, Path(scratch), invisible)))
        stranger: Client
        with place.client() as stranger:
            stranger.ready()
            stranger.do("alloc a", (STRANGER - CONTEXT) * MIB)
            scene = [
                sys.executable,
                str(ROOT / "tests/nvidia_smi/scene.py"),
                CLIENTS / "client",
                branch.program,
            ]
            prefix = NAMESPACE if in_namespace() else ()
            done = place.run(*prefix, *scene, limit=f"{LIMIT}MiB")
    if done.returncode != 0:
        sys.exit(f"test-nvidia-smi: {version}: the scene failed: {done.stderr}")
    return json.loads(done.stdout)


def mistakes(seen: dict) -> list[str]:
    """What is wrong with the output."""
    wrong = []
    table, query, memory, processes, monitor = (text for _, text in seen["outputs"].values())
    used, pids = sum(HELD), seen["pids"]

    def expect(text: str, pattern: str, what: str) -> None:
        if not re.search(pattern, text):
            wrong.append(f"{what}: no {pattern!r}")

    for command, (code, text) in seen["outputs"].items():
        if code != 0:
            wrong.append(f"nvidia-smi {command} exits with {code}")
        if str(STRANGER) in text or "24576" in text:
            wrong.append(f"nvidia-smi {command} shows what is not the container's")
    expect(table, rf"\b{used}MiB / +{LIMIT}MiB", "default table")
    expect(query, rf"FB Memory Usage\n\s+Total +: {LIMIT} MiB", "-q")
    expect(query, rf"FB Memory Usage\n(?:.*\n){{1,2}}\s+Used +: {used} MiB", "-q")
    expect(memory, rf"(?m)^{LIMIT} MiB, {used} MiB, {LIMIT - used} MiB$", "--query-gpu")
    for pid, held in zip(pids, HELD, strict=True):
        expect(table, rf"N/A +{pid} +C +train +{held}MiB", "processes of the default table")
        expect(query, rf"Process ID +: {pid}\n.*\n +Name +: train\n +Used GPU Memory +: {held} MiB", "-q")
        expect(processes, rf"(?m)^{pid}, train, {held} MiB$", "--query-compute-apps")
        expect(monitor, rf"(?m)^ +0 +{pid} +C .* train *$", "pmon")
    if len(processes.splitlines()) != 1 + len(pids):
        wrong.append("--query-compute-apps shows other processes")
    return wrong


def disclosures(seen: dict) -> list[str]:
    """What is wrong where no process may be listed: any that is, and what is not said, or more than once."""
    wrong = []
    for command, (code, text) in seen["outputs"].items():
        lines = [line for line in text.splitlines() if not line.startswith("vcuda: ")]
        said = len(text.splitlines()) - len(lines)
        if code != 0:
            wrong.append(f"nvidia-smi {command} exits with {code}")
        if str(STRANGER) in text or any(word in line for line in lines for word in ("train", "client")):
            wrong.append(f"nvidia-smi {command} lists a process")
        if said != (0 if "--query-gpu" in command else 1):
            wrong.append(f"nvidia-smi {command} comes with {said} lines of the library")
    return wrong


def later(branch: Branch) -> tuple[str, bool]:
    """(chapter, whether it is as it must be) of branches that no program could be had of, played with BRANCH's."""
    text, failed = LATER_CHAPTER.format(program=branch.version, later=LATER), False
    if not in_namespace():
        return text + "| not tried | | this machine makes no PID namespaces |\n", False
    for kernel, (does, shows) in KERNELS.items():
        seen = play(branch, LATER, kernel)
        wrong = mistakes(seen) if kernel == "left_out" else disclosures(seen)
        for mistake in wrong:
            print(f"{LATER}, {kernel}: {mistake}", file=sys.stderr)
        text += f"| {does} | {shows} | {'FAILED' if wrong else 'right'} |\n"
        failed |= bool(wrong)
    return text, failed


def tidy(text: str) -> str:
    """Without the times and spaces that change from run to run."""
    lines = (line.rstrip() for line in text.splitlines())
    moments = re.compile(r"^(\w{3} \w{3} +\d+ [\d:]+ \d{4}|Timestamp +: .*)$")
    return "\n".join(line for line in lines if not moments.match(line)).strip("\n")


def main() -> int:
    """See above."""
    branches = fetch(ROOT / "build" / "nvidia-smi")
    if not branches:
        sys.exit("test-nvidia-smi: Debian's archive shows no nvidia-smi: is the network there?")
    rows, chapters, failed = [], [], False
    for branch in each(branches, lambda branch: f"nvidia-smi {branch.version}"):
        seen = play(branch, branch.version)
        wrong = mistakes(seen)
        size = "?"
        if branch.library is not None:
            size = subprocess.run(
                [sys.executable, "-c", "import sys; from tests.nvidia_smi.run import table_bytes; from pathlib import "
                 "Path; print(table_bytes(Path(sys.argv[1])))", str(branch.library)],
                cwd=ROOT, capture_output=True, text=True, check=True,
            ).stdout.strip()  # fmt: skip
            if size != str(TABLE_BYTES.get(branch.number)):
                wrong.append(f"its libnvidia-ml.so has a table of {size} bytes, unknown so far")
        lists = "public functions" if branch.number < 525 else "private table"
        rows.append(
            f"| {branch.number} | {branch.version} | {lists} | {size} | {'FAILED' if wrong else 'right'} |\n"
        )
        for mistake in wrong:
            print(f"{branch.version}: {mistake}", file=sys.stderr)
        print(f"nvidia-smi {branch.version}: {'FAILED' if wrong else 'right'}")
        failed |= bool(wrong)
        chapters.append(f"\n## {branch.version}\n")
        for command, (_, text) in seen["outputs"].items():
            chapters.append(f"\n```console\n$ nvidia-smi {command}".rstrip() + f"\n{tidy(text)}\n```\n")
    chapter, wrong_later = later(branches[-1])
    failed |= wrong_later
    print(f"nvidia-smi of later branches: {'FAILED' if wrong_later else 'right'}")
    head = INTRODUCTION.format(
        date=datetime.datetime.now(tz=datetime.timezone.utc).date(),
        namespace="a PID namespace of its own" if in_namespace() else "the PID namespace of the machine",
        first=HELD[0],
        second=HELD[1],
        stranger=STRANGER,
    )
    PAGE.write_text(head + "".join(rows) + chapter + "".join(chapters))
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
