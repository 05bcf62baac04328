"""Whose quota a program is in that has its limit from the environment: of its own head, of a name, of nobody else.

VCUDA_DIR is in test_native_config.py. Here: the first program with VCUDA_MEMORY_LIMIT heads a quota, and all that it
starts is in it; VCUDA_QUOTA names one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.command import runtime
from tests.native.running import (
    CLIENTS,
    CONTEXT,
    GIB,
    LIBRARY,
    MIB,
    NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
    Client,
    Place,
    build_rooted,
    eventually,
)
from vcuda import GpuLimit, quotas, read_limits, set_memory_limit

PYTHON = sys.executable

# Prints the directory and the size of the GPU that CUDA shows, takes as many MiB as its argument says, waits for stdin.
TAKE = """
import ctypes, os, sys
d = ctypes.CDLL("libcuda.so.1")
context, block, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
codes = [d.cuInit(0), d.cuDeviceTotalMem_v2(ctypes.byref(total), 0)]
codes += [d.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), d.cuCtxSetCurrent(context)]
codes += [d.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(int(sys.argv[1]) << 20))]
print(os.environ.get("VCUDA_DIR", "-"), total.value >> 20, codes[0], codes[-1], flush=True)
sys.stdin.read()
"""


class Stage:
    """A machine, and a directory for this user's quotas."""

    def __init__(self, directory: Path) -> None:
        self.place = Place(directory)
        self.base = runtime(directory) / "vcuda"
        self.started: list[subprocess.Popen[str]] = []

    def env(self, limit: str | None = "4GiB", **extra: str) -> dict[str, str]:
        limits = {} if limit is None else {"VCUDA_MEMORY_LIMIT": limit}
        kept = {
            name: value
            for name, value in self.place.env().items()
            if name != "_" and not name.startswith("VCUDA_")
        }
        quiet = {
            "VCUDA_REFUSALS": "off"
        }  # programs here are refused on purpose, and what they write is compared
        return kept | quiet | {"XDG_RUNTIME_DIR": str(self.base.parent)} | limits | extra

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        environment = self.env(**variables)
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.started.append(process)
        return process

    def run(
        self, *command: str, limit: str | None = "4GiB", **extra: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.env(limit, **extra),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=100,
            check=False,
        )

    def take(self, mib: int = 1, **variables: str) -> subprocess.Popen[str]:
        return self.start(PYTHON, "-c", TAKE, str(mib), **variables)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.base.iterdir())

    def heads(self) -> list[Path]:
        return sorted(self.base.glob("env-*"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for process in stage.started:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()


def answer(process: subprocess.Popen[str]) -> list[str]:
    """Directory, MiB that CUDA shows, result of cuInit, result of the allocation."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line.split()


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    return [process.communicate(timeout=60)[1] for process in processes]


def kill(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


# --- a head ----------------------------------------------------------------------------------------------------------


def test_two_programs_have_two_quotas(stage: Stage) -> None:
    """Two notebooks on one card, with the same value."""
    first, second = stage.take(3000), stage.take(3000)
    answers = [answer(first), answer(second)]
    assert [words[1:] for words in answers] == [["4096", "0", "0"]] * 2
    assert {words[0] for words in answers} == {str(head) for head in stage.heads()}
    assert len(stage.heads()) == 2
    assert finish(first, second) == ["", ""]


def test_two_heads_at_once_with_different_values(stage: Stage) -> None:
    programs = [stage.take(limit=limit) for limit in ("2GiB", "3GiB", "4GiB")]
    assert [answer(program)[1:] for program in programs] == [
        [mib, "0", "0"] for mib in ("2048", "3072", "4096")
    ]
    assert finish(*programs) == ["", "", ""]


def test_the_next_day_another_value(stage: Stage) -> None:
    for limit, mib in (("4GiB", "4096"), ("2GiB", "2048")):
        program = stage.take(limit=limit)
        assert answer(program)[1:] == [mib, "0", "0"]
        assert finish(program) == [""]
        assert len(stage.heads()) == 1, "what the one before has left is swept"


def test_a_directory_of_a_head_is_like_one_of_vcuda_run(stage: Stage) -> None:
    program = stage.take(5)
    answer(program)
    (head,) = stage.heads()
    record = json.loads((head / "command.json").read_text())
    assert head.name.split("-")[1] == str(program.pid)
    assert (record["pid"], record["launcher"], record["version"]) == (program.pid, program.pid, 1)
    assert abs(record["start"] - time.time()) < 60
    assert record["command"][-1] == "5"
    quota = quotas.read_quota(head)
    assert quota.kind == "command"
    assert [process.pid for process in quota.usage.processes] == [program.pid]
    assert quotas.sweep(stage.base) == 0
    assert (
        head.stat().st_mode & 0o777
        == stage.base.stat().st_mode & 0o777
        == (0o711 if os.geteuid() == 0 else 0o700)
    )
    kill(program)
    assert quotas.sweep(stage.base) == 1
    assert stage.names() == []


def test_a_program_that_does_not_use_cuda_leaves_nothing(stage: Stage) -> None:
    done = stage.run("sh", "-c", "echo $VCUDA_DIR; ls")
    assert done.stdout.startswith(f"{stage.base}/env-")
    assert not stage.base.exists()


def test_words_that_json_would_trip_over(stage: Stage) -> None:
    done = stage.run(PYTHON, "-c", TAKE, "1", '"\\', "ä\n\t", "x" * 5000)
    assert done.stdout.split()[1:] == ["4096", "0", "0"]
    (head,) = stage.heads()
    assert json.loads((head / "command.json").read_text())["command"][4:6] == ['"\\', "????"]


# --- what it starts --------------------------------------------------------------------------------------------------

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


def test_a_container_is_what_it_was(stage: Stage, tmp_path: Path) -> None:
    """Where a page is mounted no variable is read, and none is set."""
    (tmp_path / "etc").mkdir()
    library = build_rooted(tmp_path / "etc", tmp_path / "libvcuda.so")
    (tmp_path / "etc" / "limits").write_bytes(b"")
    done = stage.run("sh", "-c", "echo ${VCUDA_DIR-none}", LD_PRELOAD=str(library))
    assert done.stdout == "none\n"
    (tmp_path / "etc" / "limits").unlink()
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


# --- accidents -------------------------------------------------------------------------------------------------------


def test_another_process_with_the_number_of_a_dead_head(stage: Stage) -> None:
    """Its quota has another name, and keeps the old one no longer than until it ends."""
    first = stage.take()
    answer(first)
    (old,) = stage.heads()
    kill(first)
    record = json.loads((old / "command.json").read_text())
    for pid, start in ((os.getpid(), record["launcher_start"]), (os.getpid(), 0)):
        record.update(launcher=pid, launcher_start=start)
        (old / "command.json").write_text(json.dumps(record))
        assert quotas._start_time(pid) != start
    second = stage.take(limit="2GiB")
    assert answer(second)[1:] == ["2048", "0", "0"]
    assert old not in stage.heads(), "the process of that number started at another time"
    finish(second)


def test_heads_that_are_killed_at_any_instant(stage: Stage) -> None:
    """What is left is swept; nobody finds half a directory, and the next one starts."""
    program = f"import sys; sys.argv = ['', '1']\n{TAKE}"
    for delay in range(24):
        victim = stage.start(PYTHON, "-S", "-c", program)
        time.sleep(0.005 * delay)
        victim.kill()
        victim.communicate()
        for head in stage.heads():
            assert quotas.read_quota(head).limits.gpus[0].memory_bytes == 4 * GIB
    survivor = stage.take()
    assert answer(survivor)[1:] == ["4096", "0", "0"]
    assert stage.names() == [stage.heads()[0].name]
    finish(survivor)


def test_a_family_of_which_some_are_killed_while_they_start(stage: Stage) -> None:
    """The first to use CUDA make the directory at the same time, some die in it: all others are in one quota."""
    program = """
import os, random, signal, subprocess, sys, time
take = [sys.executable, "-S", "-c", sys.argv[1], "200"]
children = [subprocess.Popen(take, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(12)]
for child in children[::3]:
    time.sleep(random.random() / 20)
    child.kill()
for child in children: print(child.stdout.readline().strip() or "-")
for child in children: child.communicate()
"""
    for _ in range(3):
        done = stage.run(PYTHON, "-c", program, TAKE)
        lines = [line.split() for line in done.stdout.splitlines() if line != "-"]
        assert len(lines) >= 8, done.stderr
        assert {tuple(line[1:]) for line in lines} == {("4096", "0", "0")}
        assert len({line[0] for line in lines}) == 1
        assert done.stderr == ""


def test_many_heads_that_sweep_at_once(stage: Stage) -> None:
    """Each removes what is dead and nothing of the living."""

    def once(number: int) -> list[str]:
        program = stage.take(limit=f"{2 + number % 2}GiB")
        words = answer(program)
        inside = stage.take(VCUDA_DIR=words[0], limit=f"{2 + number % 2}GiB")
        inner = answer(inside)
        finish(inside, program)
        return [*words[1:], *inner[1:]]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(once, range(16)))
    assert answers == [[str(2048 + 1024 * (number % 2)), "0", "0"] * 2 for number in range(16)]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to become another user"
)
def test_a_program_that_becomes_another_user(stage: Stage, tmp_path: Path) -> None:
    """Before the quota was made it has one of its own under the same name; afterwards it joins."""
    for path in [tmp_path, *tmp_path.parents][:-2]:
        path.chmod(path.stat().st_mode | 0o055)
    become = "setpriv --reuid=65533 --regid=65533 --clear-groups"
    environment = {
        "LD_PRELOAD": str(tmp_path / "libvcuda.so"),
        "FAKEDRIVER_STATE": str(tmp_path / "open" / "state"),
        "LD_LIBRARY_PATH": str(tmp_path / "driver"),
    }
    shutil.copy(LIBRARY, tmp_path / "libvcuda.so")
    shutil.copytree(
        CLIENTS.parents[1] / "fakedriver", tmp_path / "driver", ignore=shutil.ignore_patterns("objects")
    )
    shutil.copy(CLIENTS / "client", tmp_path / "client")
    shutil.copy(stage.env()["FAKEDRIVER_MACHINE"], tmp_path / "machine.txt")
    environment["FAKEDRIVER_MACHINE"] = str(tmp_path / "machine.txt")
    (tmp_path / "driver").chmod(0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    commands = "printf 'init\\ntotal a 0\\n' | "
    script = f"umask 0; {commands} {become} {tmp_path}/client dlsym; {commands} {tmp_path}/client dlsym"
    other = Path("/tmp/vcuda-65533")
    try:
        done = stage.run("sh", "-c", script, **environment)
        assert done.stdout.split()[:5:3] == ["0", "0"], done.stderr
        assert [line.split()[1] for line in done.stdout.splitlines()[1::2]] == [str(4 * GIB)] * 2
        assert [entry.name for entry in other.glob("env-*")] == [head.name for head in stage.heads()]
    finally:
        shutil.rmtree(other, ignore_errors=True)
    done = stage.run(
        "sh",
        "-c",
        f"umask 0; {commands} {tmp_path}/client dlsym; {commands} {become} {tmp_path}/client dlsym",
        **environment,
    )
    assert [line.split()[1] for line in done.stdout.splitlines()[1::2]] == [str(4 * GIB)] * 2, done.stderr
    assert not other.exists()


def test_a_base_that_others_can_write_to_is_refused(stage: Stage) -> None:
    stage.base.mkdir(parents=True)
    stage.base.chmod(0o777)
    for variables in ({}, {"VCUDA_QUOTA": "nb"}):
        done = stage.run(PYTHON, "-c", TAKE, "1", **variables)
        assert done.stdout.split()[2] == str(NOT_READY)
        assert "another user can write to it" in done.stderr
    assert stage.names() == []


def test_a_base_that_cannot_be_made(stage: Stage) -> None:
    stage.base.write_text("a file")
    done = stage.run(PYTHON, "-c", TAKE, "1")
    assert done.stdout.split()[2] == str(NOT_READY)
    assert str(stage.base) in done.stderr and "set XDG_RUNTIME_DIR or VCUDA_DIR" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_path_that_is_too_long(stage: Stage, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100) / ("y" * 100)
    long.mkdir(parents=True)
    long.chmod(0o711)
    done = stage.run(PYTHON, "-c", TAKE, "1", XDG_RUNTIME_DIR=str(long))
    assert done.stdout.split()[2] == str(NOT_READY)
    assert "too long" in done.stderr


# --- a quota with a name ---------------------------------------------------------------------------------------------


def test_a_name_joins(stage: Stage) -> None:
    first, second = stage.take(2500, VCUDA_QUOTA="nb"), stage.take(2500, VCUDA_QUOTA="nb", limit="4096MiB")
    assert sorted([answer(first)[3], answer(second)[3]]) == ["0", str(OUT_OF_MEMORY)]
    other = stage.take(2500, VCUDA_QUOTA="another")
    assert answer(other)[1:] == ["4096", "0", "0"]
    third = stage.take(VCUDA_QUOTA="nb", limit=None)
    assert answer(third)[1:] == ["4096", "0", "0"]
    assert finish(first, second, other, third) == [""] * 4
    assert stage.names() == ["quota-another", "quota-nb"]


def test_a_name_with_another_value_is_refused_while_it_is_used(stage: Stage) -> None:
    first = stage.take(VCUDA_QUOTA="nb")
    answer(first)
    second = stage.take(VCUDA_QUOTA="nb", limit="2GiB")
    assert answer(second)[2] == str(NOT_READY)
    (line,) = finish(second)
    for part in (str(stage.base / "quota-nb"), str(4 * GIB), str(2 * GIB), "set VCUDA_QUOTA to another name"):
        assert part in line
    kill(first)
    third = stage.take(VCUDA_QUOTA="nb", limit="2GiB")
    assert answer(third)[1:] == ["2048", "0", "0"], "its user was killed: it is made anew"
    assert finish(third) == [""]


def test_a_name_is_used_by_a_process_that_names_it(stage: Stage) -> None:
    """It has used no CUDA yet. One that wants the same as the caller is no reason to refuse the caller."""
    finish(*[stage.take(VCUDA_QUOTA="nb")])
    sleeper = stage.start("cat", VCUDA_QUOTA="nb")
    while not Path(f"/proc/{sleeper.pid}/cmdline").read_bytes().startswith(b"cat"):
        pass
    second = stage.take(VCUDA_QUOTA="nb", limit="2GiB")
    assert answer(second)[2] == str(NOT_READY)
    finish(second, sleeper)
    done = stage.run("sh", "-c", '"$0" -c "$1" 1; true', PYTHON, TAKE, VCUDA_QUOTA="nb", limit="2GiB")
    assert done.stdout.split()[1:] == ["2048", "0", "0"], done.stderr


def test_a_name_whose_user_only_looks(stage: Stage) -> None:
    """It has attached and holds no slot of the ledger."""
    with Client(stage.env(VCUDA_QUOTA="nb")) as client:
        assert client.do("init").code == SUCCESS
        assert client.do("total a", 0).first == 4 * GIB
        assert [process.alive for process in quotas.read_quota(stage.base / "quota-nb").usage.processes] == []
        assert stage.run(PYTHON, "-c", TAKE, "1", limit="2GiB", VCUDA_QUOTA="nb").stdout.split()[2] == str(
            NOT_READY
        )


def test_many_that_want_another_value_of_a_dead_name_agree(stage: Stage) -> None:
    for limit, mib in (("2GiB", "2048"), ("3GiB", "3072"), ("2GiB", "2048"), ("4GiB", "4096")):
        programs = [stage.take(100, VCUDA_QUOTA="nb", limit=limit) for _ in range(6)]
        assert [answer(program)[1:] for program in programs] == [[mib, "0", "0"]] * 6
        usage = quotas.read_quota(stage.base / "quota-nb").usage
        assert sorted(process.pid for process in usage.processes if process.alive) == sorted(
            program.pid for program in programs
        )
        finish(*programs)


def test_two_values_for_a_dead_name_at_once(stage: Stage) -> None:
    """One of them wins, and the other is told; never two quotas, never none."""
    for _ in range(6):
        programs = [stage.take(100, VCUDA_QUOTA="nb", limit=limit) for limit in ("2GiB", "3GiB")]
        answers = [answer(program) for program in programs]
        page = read_limits(stage.base / "quota-nb" / "limits")
        for words, mib in zip(answers, (2048, 3072), strict=True):
            expected = (
                [str(mib), "0", "0"] if page.gpus[0].memory_bytes == mib << 20 else ["0", str(NOT_READY)]
            )
            assert words[1 : 1 + len(expected)] == expected
        assert "0" in {words[2] for words in answers} or all(words[2] == str(NOT_READY) for words in answers)
        finish(*programs)


def test_a_name_that_was_changed_live_is_not_compared(stage: Stage) -> None:
    first = stage.take(VCUDA_QUOTA="nb")
    answer(first)
    page = stage.base / "quota-nb" / "limits"
    for gpu in read_limits(page).gpus:
        set_memory_limit(page, gpu.uuid, 3 * GIB)
    second = stage.take(VCUDA_QUOTA="nb")
    assert answer(second)[1:] == ["3072", "0", "0"]
    finish(first, second)


@pytest.mark.parametrize("broken", ["limits", "ledger"])
def test_a_name_whose_files_are_damaged(stage: Stage, broken: str) -> None:
    directory = quotas.open_named(
        quotas.private_base(stage.base) / "quota-nb",
        [GpuLimit("GPU-58a9c2ed-a697-4a1c-9aa1-906b87e19b3f", GIB)],
    )
    (directory / broken).write_bytes(b"garbage")
    done = stage.run(PYTHON, "-c", TAKE, "1", VCUDA_QUOTA="nb")
    assert done.stdout.split()[1:] == ["4096", "0", "0"], "nobody uses it"


def test_a_name_without_a_limit_and_without_a_quota(stage: Stage) -> None:
    done = stage.run(PYTHON, "-c", TAKE, "1", limit=None, VCUDA_QUOTA="nb")
    assert done.stdout.split()[2] == str(NOT_READY)
    assert "set VCUDA_MEMORY_LIMIT too" in done.stderr and str(stage.base / "quota-nb") in done.stderr


def test_a_lock_that_is_never_given_back(stage: Stage) -> None:
    """One line after some seconds instead of a program that hangs."""
    quotas.private_base(stage.base)
    lock = os.open(stage.base, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = stage.run(PYTHON, "-c", TAKE, "1")
    os.close(lock)
    assert done.stdout.split()[2] == str(NOT_READY)
    assert "keeps it locked" in done.stderr


def test_the_memory_of_all_is_one_sum(stage: Stage) -> None:
    """Exact to the byte, as with a directory of the user's."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Client(stage.env("1GiB", VCUDA_QUOTA="nb"))).ready()
        second = stack.enter_context(Client(stage.env("1GiB", VCUDA_QUOTA="nb"))).ready()
        assert first.do("alloc a", GIB - 2 * CONTEXT - MIB).code == SUCCESS
        assert second.do("alloc a", MIB + 1).code == OUT_OF_MEMORY
        assert second.do("alloc a", MIB).code == SUCCESS
        assert first.free() == second.free() == 0


def test_signals_reach_a_program_that_waits(stage: Stage) -> None:
    """The head's own start is no different: it ends by what ends it."""
    program = stage.take()
    answer(program)
    program.send_signal(signal.SIGTERM)
    assert program.wait() == -signal.SIGTERM
