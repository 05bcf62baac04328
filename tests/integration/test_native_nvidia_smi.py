# SPDX-License-Identifier: Apache-2.0
"""The private table of driver branches whose rows nobody has seen: the driver's own lists, or none.

The simulated driver says it is of branch 610 and gives rows that this library does not know. Each scene is one of what
the kernel's filter may do and of where the program may be.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakedriver.env import write_machine
from tests.native.running import CLIENTS, CONTEXT, MIB, Place

VIEWS = Path(__file__).resolve().parents[1] / "native" / "clients" / "views.py"
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")
HEAD = 48  # bytes of a row before its name, where all known branches have 24 or 32
CUT, WITH_LISTS = 213 * 8, 216 * 8
NO_PERMISSION = 4

pytestmark = pytest.mark.namespaces

# The first process of the namespace: starts a program under the quota, others as it is told, and asks.
CONTAINER = """
import json, os, subprocess, sys
client, views, head, *others = sys.argv[1:]
def start(**extra):
    env = {name: value for name, value in (os.environ | extra).items() if value}
    program = subprocess.Popen([client, "dlsym"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for command in ("init", "retain z 0", "current z", "alloc a 2097152"):
        print(command, file=program.stdin, flush=True)
        assert program.stdout.readline().startswith("0 "), command
    return program
own = start()
programs = [own] + [start(**json.loads(other)) for other in others]
seen = json.loads(subprocess.run([sys.executable, views, head], stdout=subprocess.PIPE, check=True).stdout)
public = seen["lists"]["nvmlDeviceGetComputeRunningProcesses_v3"]
print(json.dumps({"own": own.pid, "private": seen["private"], "public": public}))
for program in programs:
    program.kill()
"""


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us make PID namespaces")


def newer(tmp_path: Path, invisible: str = "left_out", version: str = "610.43.02", head: int = HEAD) -> Place:
    """The machine two-24g with a driver of that version; INVISIBLE: what its kernel does with other namespaces."""
    machine = write_machine(
        tmp_path, like="two-24g", driver_version=version, invisible_processes=invisible, private_head=head
    )
    return Place(tmp_path, machine)


def play(here: Place, *others: dict[str, str], first: tuple[str, ...] = NAMESPACE, head: int = HEAD):
    """(what the container saw, the lines on its stderr); FIRST starts its first process."""
    done = here.run(
        *first, sys.executable, "-c", CONTAINER, CLIENTS / "client", VIEWS, str(head),
        *map(json.dumps, others), limit="1GiB",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.splitlines()


def rows(seen: dict, used: int = CONTEXT + 2 * MIB) -> list[list[int]]:
    """What a list should have of the program under the quota."""
    return [[seen["own"], used]]


def test_a_namespace_of_the_containers_own_has_the_drivers_lists(tmp_path):
    here = newer(tmp_path)
    with here.client() as stranger:
        stranger.ready()
        seen, lines = play(here)
    assert seen["private"] == {"size": WITH_LISTS, "lists": {"213": rows(seen), "214": [], "215": []}}
    assert seen["public"] == rows(seen) and lines == []


def test_programs_of_every_kind_are_the_containers(tmp_path):
    seen, lines = play(newer(tmp_path), {"FAKEDRIVER_PROCESS": "graphics"}, {"FAKEDRIVER_PROCESS": "mps"})
    lists = seen["private"]["lists"]
    assert [len(lists[word]) for word in ("213", "214", "215")] == [1, 1, 1] and lines == []


@pytest.mark.parametrize("invisible", ["zero", "listed"])
def test_a_driver_that_leaves_nobody_out_is_not_believed(tmp_path, invisible):
    here = newer(tmp_path, invisible)
    with here.client() as stranger:
        stranger.ready()
        seen, lines = play(here)
        pid = stranger.process.pid if invisible == "listed" else 0
    assert seen["private"]["lists"] == dict.fromkeys(("213", "214", "215"), NO_PERMISSION)
    assert seen["public"] == rows(seen), "the public lists are the ledger's"
    assert len(lines) == 1, "once per process"
    assert lines[0].startswith(f"vcuda: the driver lists process {pid}, which is none of this quota's: ")


@pytest.mark.parametrize("kind", ["compute", "graphics", "mps"])
def test_a_stranger_that_is_visible_in_the_namespace_is_not_shown(tmp_path, kind):
    """As with hostPID in a node that is a container: the kernel leaves nobody of the node out."""
    elsewhere = {"VCUDA_DIR": str(tmp_path / "elsewhere"), "FAKEDRIVER_PROCESS": kind}
    for other in (elsewhere, {"LD_PRELOAD": "", "FAKEDRIVER_PROCESS": kind}):
        seen, lines = play(newer(tmp_path), other)
        assert seen["private"]["lists"] == dict.fromkeys(("213", "214", "215"), NO_PERMISSION)
        assert seen["public"] == rows(seen) and len(lines) == 1


def test_in_a_namespace_that_another_cgroup_began_there_are_no_lists(tmp_path):
    """The first process of kind's node is its init; of a pod with a shared namespace, the pause program."""
    other = tmp_path / "cgroup"
    other.write_text("0::/../../init.scope\n")
    first = (*NAMESPACE, "sh", "-c", f'mount --bind {other} /proc/1/cgroup || exit 77; exec "$@"', "sh")
    if subprocess.run([*first, "true"], capture_output=True, check=False).returncode == 77:
        pytest.skip("this machine lets nobody mount on files of /proc")
    seen, lines = play(newer(tmp_path), first=first)
    assert seen["private"] == {"size": CUT, "lists": {}} and lines == []
    assert seen["public"] == rows(seen)


def test_in_the_first_namespace_there_are_no_lists(tmp_path):
    if str(Path("/proc/self/ns/pid").readlink()) != "pid:[4026531836]":
        pytest.skip("this is not the machine's first PID namespace")
    seen, lines = play(newer(tmp_path), first=())
    assert seen["private"] == {"size": CUT, "lists": {}} and lines == []


@pytest.mark.parametrize(
    ("version", "head", "size"),
    [("525.147.05", 24, 1904), ("530.41.03", 24, CUT), ("535.261.03", 32, 1960), ("580.65.06", 32, 2104)],
)
def test_older_branches_are_as_they_were(tmp_path, version, head, size):
    here = newer(tmp_path, "listed", version, head)
    with here.client() as stranger:
        stranger.ready()
        seen, lines = play(here, head=head)
    lists = {} if size == CUT else {"213": rows(seen), "214": [], "215": []}
    assert seen["private"] == {"size": size, "lists": lists} and lines == []


# Asks the private list again and again, as `nvidia-smi -l` does: once for each line it reads.
LOOP = """
import ctypes as c, sys
sys.path.insert(0, sys.argv[1])
sys.argv[1:] = [sys.argv[2]]
import views
nvml, table = views.nvml, c.POINTER(c.c_uint64)()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, c.byref(views.device)) == 0
assert nvml.nvmlInternalGetExportTable(c.byref(table), views.TABLE_ID) == 0
lister = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_uint), c.c_void_p)(table[213])
for _ in sys.stdin:
    print(views.rows(lister, views.HEAD + 4096), flush=True)
"""


def test_every_call_asks_anew(tmp_path):
    here = newer(tmp_path, "listed")
    command = [*NAMESPACE, sys.executable, "-c", LOOP, str(VIEWS.parent), str(HEAD)]
    looping = subprocess.Popen(
        command, env=here.env("1GiB"), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def ask() -> str:
        assert looping.stdin is not None and looping.stdout is not None
        print(file=looping.stdin, flush=True)
        return looping.stdout.readline().strip()

    try:
        assert ask() == "[]"
        for _ in range(2):
            with here.client() as stranger:
                stranger.ready()
                assert ask() == str(NO_PERMISSION)
            assert ask() == "[]", "the stranger has ended"
        _, errors = looping.communicate(timeout=30)
        assert len(errors.splitlines()) == 1, errors
    finally:
        looping.kill()
        looping.wait()


def test_an_unknown_device_is_refused_without_a_word(tmp_path):
    code = LOOP.replace("for _ in sys.stdin:\n    print(views.rows(lister, views.HEAD + 4096), flush=True)", (
        "count, room = c.c_uint(4), c.create_string_buffer(b'x' * 64)\n"
        "print(lister(None, c.byref(count), room), count.value, set(room.raw[:-1]) == set(b'x'))"
    ))  # fmt: skip
    done = newer(tmp_path).run(
        *NAMESPACE, sys.executable, "-c", code, str(VIEWS.parent), str(HEAD), limit="1GiB"
    )
    assert (done.stdout, done.stderr) == (f"{NO_PERMISSION} 4 True\n", "")
