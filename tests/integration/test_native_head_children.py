# SPDX-License-Identifier: Apache-2.0
"""What a program with VCUDA_MEMORY_LIMIT starts is in its quota, however that is started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.heads import PYTHON, TAKE, Stage, answer, finish, kill, staged
from tests.native.running import (
    CLIENTS,
    LIBRARY,
    NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
    eventually,
    rooted_library,
)
from vcuda import quotas


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as stage:
        yield stage


TWO_CHILDREN = """
import os, subprocess, sys
take = [sys.executable, "-c", sys.argv[1], "2500"]
children = [subprocess.Popen(take, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **{how}) for how in {hows}]
print(*(child.stdout.readline().split()[{field}] for child in children))
for child in children: child.communicate()
"""


@pytest.mark.parametrize(
    "how",
    [
        "{}",
        "dict(env=dict(os.environ))",  # what torchrun does
        "dict(env=os.environ | {'RANK': '1'})",
        "dict(start_new_session=True)",
        "dict(preexec_fn=lambda: None)",
        "dict(close_fds=False)",  # vfork or posix_spawn
        "dict(cwd='/')",
    ],
)
def test_children_share_the_quota_of_their_head(stage: Stage, how: str) -> None:
    """Both ask for 2500 of 4096 MiB; the second is refused, though the head itself never uses CUDA."""
    program = (
        TWO_CHILDREN.replace("**{how}", f"**{how}").replace("{hows}", "range(2)").replace("{field}", "3")
    )
    done = stage.run(PYTHON, "-c", program, TAKE)
    assert sorted(done.stdout.split()) == ["0", str(OUT_OF_MEMORY)], done.stderr
    assert len(stage.heads()) == 1


def test_a_launcher_of_workers(stage: Stage) -> None:
    """As torchrun: a script without CUDA, a launcher with -m, workers with an environment made for them, on one GPU."""
    worker = f"import os, sys; sys.argv[1] = str(100 + 900 * int(os.environ['LOCAL_RANK']))\n{TAKE}"
    launcher = f"""
import os, subprocess, sys
def worker(rank):
    env = os.environ.copy()
    env.update(LOCAL_RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1")
    command, pipe = [sys.executable, "-u", "-c", {worker!r}, "0"], subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, start_new_session=True, text=True)
workers = [worker(rank) for rank in range(3)]
for each in workers: print(each.stdout.readline().strip())
for each in workers: each.communicate()
"""
    done = stage.run("sh", "-c", 'exec "$0" -c "$1"', PYTHON, launcher, limit="3GiB")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[1:3] for line in lines] == [["3072", "0"]] * 3, done.stderr
    assert len({line[0] for line in lines}) == 1
    assert sorted(line[3] for line in lines) == ["0", "0", str(OUT_OF_MEMORY)], (
        "1000 + 1900 + 3 contexts are too many"
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing(stage: Stage, tmp_path: Path, method: str) -> None:
    """A worker takes 2500 MiB and holds them; then another gets no more."""
    (tmp_path / "workers.py").write_text(f"""
import multiprocessing as mp, sys, os
def work(queue, leave):
    import ctypes
    d = ctypes.CDLL("libcuda.so.1"); c, b = ctypes.c_void_p(), ctypes.c_uint64()
    d.cuInit(0); d.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); d.cuCtxSetCurrent(c)
    queue.put((os.environ["VCUDA_DIR"], d.cuMemAlloc_v2(ctypes.byref(b), ctypes.c_size_t(2500 << 20)))); leave.wait()
if __name__ == "__main__":
    mp.set_start_method("{method}")
    queue, leave, answers = mp.Queue(), mp.Event(), []
    workers = []
    for _ in range(2):
        workers.append(mp.Process(target=work, args=(queue, leave))); workers[-1].start(); answers.append(queue.get())
    leave.set()
    for worker in workers: worker.join()
    print(*(code for _, code in answers), len(set(d for d, _ in answers)))
""")
    done = stage.run(PYTHON, str(tmp_path / "workers.py"))
    assert done.stdout.split() == ["0", str(OUT_OF_MEMORY), "1"], done.stderr


def test_a_fork_after_the_quota_is_attached(stage: Stage) -> None:
    """The child's environment is shown as its parent's was at first; it has the quota mapped, which keeps it."""
    program = f"""
import ctypes, os, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 8)()
nvml.nvmlInit_v2(); nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0 and memory[0] == 4 << 30
if os.fork(): os._exit(0)
os.setsid()
sys.stdin.readline()
sys.argv = ["", "1000"]
exec({TAKE!r})
"""
    daemon = stage.start(PYTHON, "-c", program)
    daemon.wait()
    (head,) = stage.heads()
    assert daemon.stdin is not None
    assert quotas.sweep(stage.base) == 0, "its head has ended, no slot is taken, no environment names it"
    daemon.stdin.write("\n")
    daemon.stdin.flush()
    assert answer(daemon) == [str(head), "4096", "0", "0"]
    assert quotas.sweep(stage.base) == 0
    daemon.stdin.close()
    assert eventually(lambda: quotas.sweep(stage.base) == 1)


@pytest.mark.parametrize("detach", ["setsid", "nohup"])
def test_a_daemon_is_in_the_quota_of_a_head_that_has_ended(stage: Stage, tmp_path: Path, detach: str) -> None:
    fifo, output = tmp_path / "go", tmp_path / "output"
    os.mkfifo(fifo)
    inside = f'exec <{fifo}; echo $VCUDA_DIR; exec $0 -c "$1" 2500'
    script = f'{detach} sh -c \'{inside}\' "$0" "$1" >{output} 2>/dev/null </dev/null & echo $VCUDA_DIR'
    done = stage.run("sh", "-c", script, PYTHON, TAKE)
    head = done.stdout.strip()
    other = stage.take(VCUDA_DIR=head)
    assert answer(other) == [head, "4096", "0", "0"]
    finish(other)
    assert quotas.sweep(stage.base) == 0, "the daemon has it in its environment"
    with fifo.open("w"):
        assert eventually(lambda: output.exists() and output.read_text().count("\n") == 2)
        assert output.read_text().split() == [head, head, "4096", "0", "0"]
        assert quotas.sweep(stage.base) == 0
    assert eventually(lambda: quotas.sweep(stage.base) == 1)


def test_what_was_swept_meanwhile_is_made_anew_with_the_same_limits(stage: Stage) -> None:
    """A forked child that has not used CUDA yet keeps no directory, and needs none."""
    program = f"""
import os, sys
if os.fork(): os._exit(0)
os.setsid()
sys.stdin.readline()
sys.argv = ["", "1"]
exec({TAKE!r})
"""
    daemon = stage.start(PYTHON, "-c", program)
    daemon.wait()
    assert daemon.stdin is not None
    daemon.stdin.write("\n")
    daemon.stdin.flush()
    assert answer(daemon)[1:] == ["4096", "0", "0"]
    kill(daemon)


@pytest.mark.parametrize(("limit", "code", "mib"), [("2GiB", NOT_READY, 0), ("4096MiB", SUCCESS, 4096)])
@pytest.mark.parametrize("used", [False, True])
def test_a_child_with_another_value_is_refused(
    stage: Stage, limit: str, code: int, mib: int, used: bool
) -> None:
    before = '"$0" -c "$1" 1 >/dev/null; ' if used else ""
    take = '"$0" -c "$1" 1'
    script = (
        f"{before}VCUDA_MEMORY_LIMIT={limit} {take}; echo; VCUDA_QUOTA=another VCUDA_MEMORY_LIMIT=2GiB {take}"
    )
    done = stage.run("sh", "-c", script, PYTHON, TAKE)
    first, second = (line.split() for line in done.stdout.split("\n\n") if line)
    assert first[1:3] == [str(mib), str(code)]
    assert second[1:] == ["2048", "0", "0"], "unless it names a quota"
    assert (stage.base / "quota-another").exists()
    if code == SUCCESS:
        assert done.stderr == ""
        return
    assert done.stderr.count("\n") == 1
    for part in (first[0], "set VCUDA_QUOTA", "process "):
        assert part in done.stderr
    assert used == ("unset VCUDA_MEMORY_LIMIT" in done.stderr)


def test_a_program_without_the_limit_joins_what_is_there(stage: Stage) -> None:
    script = '"$0" -c "$1" 1; unset VCUDA_MEMORY_LIMIT; "$0" -c "$1" 1'
    done = stage.run("sh", "-c", script, PYTHON, TAKE)
    first, second = done.stdout.splitlines()
    assert (first, done.stderr) == (second, "")
    none = stage.run("sh", "-c", 'unset VCUDA_MEMORY_LIMIT; "$0" -c "$1" 1', PYTHON, TAKE)
    assert none.stdout.split()[2] == str(NOT_READY)
    assert "set VCUDA_MEMORY_LIMIT too" in none.stderr


def test_an_environment_that_is_emptied_on_the_way(stage: Stage) -> None:
    """`env -i` takes the library away too; who gives a program both again has another head."""
    kept = ("LD_LIBRARY_PATH", "FAKEDRIVER_MACHINE", "FAKEDRIVER_STATE", "XDG_RUNTIME_DIR")
    cleared = " ".join(["env -i", *(f'{name}="${name}"' for name in kept)])
    take = '"$0" -c "$1" 1'
    script = f"{take}; {cleared} {take}; {cleared} LD_PRELOAD={LIBRARY} VCUDA_MEMORY_LIMIT=2GiB {take}"
    done = stage.run("sh", "-c", script, PYTHON, TAKE)
    ours, unlimited, other = (line.split() for line in done.stdout.splitlines())
    assert ours[1:] == ["4096", "0", "0"]
    assert unlimited == ["-", str(24 << 10), "0", "0"]
    assert other[1:] == ["2048", "0", "0"]
    assert ours[0] != other[0]
    assert done.stderr == ""


def test_a_program_that_loses_the_directory_but_not_the_limit(stage: Stage) -> None:
    """It stays in its quota; what it starts with such an environment has a head of its own."""
    program = f"""
import os, subprocess, sys
name = os.environ.pop("VCUDA_DIR")
sys.argv, sys.stdin = ["", "3000"], open(os.devnull)
exec({TAKE!r})
print(name, flush=True)
subprocess.run([sys.executable, "-c", {TAKE!r}, "3000"], stdin=subprocess.DEVNULL)
"""
    done = stage.run(PYTHON, "-c", program)
    lines = done.stdout.split("\n")
    assert lines[0].split()[1:] == ["4096", "0", "0"]
    assert lines[2].split()[1:] == ["4096", "0", "0"]
    assert lines[2].split()[0] != lines[1]
    assert {str(head) for head in stage.heads()} == {lines[1], lines[2].split()[0]}


def test_a_program_that_sets_the_limit_itself(stage: Stage) -> None:
    program = f"""
import os, sys
os.environ["VCUDA_MEMORY_LIMIT"] = "2GiB"
sys.argv = ["", "1"]
exec({TAKE!r})
"""
    programs = [stage.start(PYTHON, "-c", program, limit=None) for _ in range(2)]
    assert [answer(each) for each in programs] == [["-", "2048", "0", "0"]] * 2
    assert sorted(int(head.name.split("-")[1]) for head in stage.heads()) == sorted(
        each.pid for each in programs
    )
    finish(*programs)


def test_a_runtime_that_reads_the_environment_from_the_stack(stage: Stage, tmp_path: Path) -> None:
    """Go's: of a program that a shell has started it has VCUDA_DIR, in the place of "_"."""
    (tmp_path / "stack.c").write_text(
        "#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n"
        "int main(int count, char **words) {\n"
        '  for (char **e = words + count + 1; *e; e++) if (!strncmp(*e, "VCUDA_DIR=", 10)) puts(*e + 10);\n'
        '  puts(getenv("VCUDA_DIR"));\n'
        "}\n"
    )
    subprocess.run(["gcc", "-o", tmp_path / "stack", tmp_path / "stack.c"], check=True)
    stack, libc = stage.run(str(tmp_path / "stack"), _="/bin/x").stdout.split()
    assert stack == libc
    assert len(stage.run(str(tmp_path / "stack")).stdout.split()) == 1


def test_a_container_is_what_it_was(stage: Stage) -> None:
    """Where a page is mounted no variable is read, and none is set."""
    with rooted_library() as (library, directory):
        (directory / "limits").write_bytes(b"")
        done = stage.run("sh", "-c", "echo ${VCUDA_DIR-none}", LD_PRELOAD=str(library))
        assert done.stdout == "none\n"
        (directory / "limits").unlink()
        assert stage.run("sh", "-c", "echo ${VCUDA_DIR-none}", LD_PRELOAD=str(library)).stdout != "none\n"


def test_bash_and_its_own_setenv(stage: Stage) -> None:
    done = stage.run(
        "bash", "-c", 'X=1 bash -c "echo \\$VCUDA_DIR"; export Y=2; env | grep -c ^VCUDA_DIR; echo $VCUDA_DIR'
    )
    first, count, last = done.stdout.split()
    assert first == last
    assert count == "1"


@pytest.mark.parametrize("program", ["ways-asan", "ways-asan-static", "ways-tsan"])
def test_sanitizers_that_have_not_started_yet(stage: Stage, program: str) -> None:
    """The name is put into the environment before they are ready."""
    unshuffled = ("/usr/bin/setarch", "--addr-no-randomize")  # the thread sanitizer of gcc 12 needs that
    if subprocess.run([*unshuffled, "/bin/true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("addresses cannot be left unshuffled here")
    options = {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0", "TSAN_OPTIONS": "report_bugs=0"}
    done = stage.run(*unshuffled, str(CLIENTS / program), "simple", **options)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(stage.heads()) == 1
