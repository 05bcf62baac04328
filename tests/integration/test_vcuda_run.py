# SPDX-License-Identifier: Apache-2.0
"""``vcuda run`` end to end: real processes, the library preloaded, the simulated driver below it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gigaslice.core.units import format_bytes
from tests.fakedriver.env import write_machine
from tests.fakes.command import alone, runtime
from tests.fakes.command import environment as clean_environment
from tests.fakes.terminal import Terminal
from tests.native.running import LIBRARY
from tests.unit.vcuda.test_program import elf
from vcuda import quotas

ROOT = Path(__file__).parents[2]
VCUDA = alone()
GIB = 1 << 30
OUT_OF_MEMORY = 2

# A program that knows nothing of vcuda: allocates what its arguments say, prints the codes, waits for stdin to end.
CLIENT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
codes = [cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size))) for size in sys.argv[1:]]
print(total.value, *codes, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **clean_environment("CUDA_VISIBLE_DEVICES"),
        "LD_LIBRARY_PATH": str(ROOT / "build" / "fakedriver"),
        "FAKEDRIVER_MACHINE": str(ROOT / "tests" / "fakedriver" / "machines" / "two-24g.txt"),
        "FAKEDRIVER_STATE": str(tmp_path / "state"),
        "XDG_RUNTIME_DIR": str(runtime(tmp_path)),
    }


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "runtime" / "vcuda"


FORWARDED = [getattr(signal, f"SIG{name}") for name in ("TERM", "HUP", "INT", "USR1", "USR2", "QUIT")]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def call(*words: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*VCUDA, *map(str, words)],
            env={**environment, **extra},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=100,
            check=False,
        )

    return call


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def fresh() -> None:
        for number in FORWARDED:  # a shell may ignore some of them (nohup), which is inherited
            signal.signal(number, signal.SIG_DFL)

    def call(*words: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*VCUDA, *map(str, words)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=fresh,  # noqa: PLW1509 - the tests have one thread
        )
        started.append(process)
        return process

    yield call
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until(condition: Callable[[], bool]) -> None:
    """Waits for what another process does; the test's own timeout ends a wait for nothing."""
    while not condition():
        time.sleep(0.02)


def left_in(base: Path) -> list[Path]:
    """What is in BASE but what a context was measured to take."""
    return [entry for entry in base.iterdir() if entry.name != "contexts.json"]


def uuids(run: Run) -> list[str]:
    listing = "from vcuda import devices; print(*(d.uuid for d in devices.list_devices()))"
    return run("run", "--memory", "1GiB", "--", sys.executable, "-c", listing).stdout.split()


def test_the_limit_holds(run: Run, base: Path) -> None:
    client = [sys.executable, "-c", CLIENT]
    result = run(
        "run", "--memory", "8GiB", "--gpu", "0", "--", *client, str(4 * GIB), str(5 * GIB), str(9 * GIB)
    )
    assert result.returncode == 0
    assert re.fullmatch(
        r"vcuda: this program's 8 GiB are used up \(4.1 GiB in use, 9 GiB asked\); .*\n", result.stderr
    )
    assert result.stdout.split() == [str(8 * GIB), "0", str(OUT_OF_MEMORY), str(OUT_OF_MEMORY)]
    assert [path.name for path in base.iterdir()] == ["contexts.json"]


def test_more_than_a_gpu_has_is_promised_and_said(
    run: Run, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    client = ["--memory", "16GiB", "--gpu", "0", "--", sys.executable, "-c", CLIENT]
    first = start("run", *client)
    line(first)
    text = run("run", *client).stderr
    assert text.startswith(
        "vcuda run: warning: GPU 0 has 24 GiB, and 32 GiB of it are promised now (16 GiB to "
    )
    assert text.endswith("; --overcommit silences this\n") and text.count("\n") == 1
    assert run("run", "--overcommit", *client).stderr == ""
    assert run("run", "--memory", "16GiB", "--gpu", "1", "--", "true").stderr == ""
    assert run("run", "--memory", "8GiB", "--gpu", "0", "--", "true").stderr == ""
    split = ("--memory", "16GiB", "--physical", "8GiB", "--gpu", "0", "--", "true")
    assert run("run", *split).stderr == ""
    joined = ("--dir", tmp_path / "named", "--memory", "16GiB", "--gpu", "0")
    assert "32 GiB of it are promised" in run("run", *joined, "--", "true").stderr
    (gpu,) = json.loads(run("ps", "--json").stdout)["gpus"]
    assert (gpu["memory_bytes"], gpu["promised_bytes"], gpu["used_bytes"]) == (24 * GIB, 16 * GIB, 100 << 20)
    first.communicate("")
    assert run("run", *client).stderr == ""
    assert json.loads(run("ps", "--json").stdout)["gpus"] == []


def test_a_quota_without_room_for_a_context(run: Run, base: Path) -> None:
    small = ("run", "--memory", "99MiB", "--gpu", "0", "--", "true")
    first = run(*small)
    assert first.returncode == 0 and first.stderr.startswith(
        "vcuda run: warning: --memory 99MiB is hardly enough for a context"
    )
    assert run("run", "--memory", "512MiB", "--gpu", "0", "--", "true").stderr == ""
    assert run("run", "--memory", "1GiB", "--gpu", "0", "--", sys.executable, "-c", CLIENT).returncode == 0
    refused = run(*small)
    assert refused.returncode == 2 and refused.stdout == ""
    assert refused.stderr == (
        "vcuda run: error: --memory 99MiB is less than a context takes of GPU 0: one took 100MiB when it was last "
        "measured here; request that and what the program needs besides\n"
    )
    assert run("run", "--memory", "100MiB", "--gpu", "0", "--", "true").stderr == ""
    kept = json.loads((base / "contexts.json").read_text())
    (base / "contexts.json").write_text(json.dumps({**kept, "driver": "1.0"}))
    assert run(*small).returncode == 0  # another driver's number says nothing


@pytest.mark.parametrize("way", ["exec", "environment", "still running"])
def test_the_context_of_a_command_that_nobody_watched(
    run: Run, base: Path, environment, start, way: str
) -> None:
    """Its quota has the number; it is kept when the quota goes."""
    client = [sys.executable, "-c", CLIENT]
    if way == "exec":
        assert run("run", "--memory", "1GiB", "--gpu", "0", "--exec", "--", *client).returncode == 0
    elif way == "environment":
        limited = {**environment, "LD_PRELOAD": str(LIBRARY), "VCUDA_MEMORY_LIMIT": "1GiB"}
        subprocess.run(client, env=limited, stdin=subprocess.DEVNULL, check=True, timeout=100)
    else:
        line(start("run", "--memory", "1GiB", "--gpu", "0", "--exec", "--", *client))
    for _ in range(2):
        refused = run("run", "--memory", "99MiB", "--gpu", "0", "--", "true")
        assert refused.returncode == 2 and "one took 100MiB when it was last measured here" in refused.stderr
        assert run("run", "--memory", "1GiB", "--", "true").returncode == 0  # sweeps
    assert len(quotas.find_quotas(base)) == (way == "still running")


def test_which_gpu_has_hardly_enough_for_a_context(run: Run) -> None:
    """Of two GPUs one has been measured."""
    assert run("run", "--memory", "1GiB", "--gpu", "0", "--", sys.executable, "-c", CLIENT).returncode == 0
    small = ("run", "--memory", "128MiB")
    assert run(*small, "--", "true").stderr.startswith(
        "vcuda run: warning: --memory 128MiB is hardly enough for a context on GPU 1, where none was measured: "
    )
    assert run(*small, "--gpu", "0", "--", "true").stderr == ""
    assert run(*small, "--", "true", CUDA_VISIBLE_DEVICES="0").stderr == ""
    assert "on GPU 1, where" in run(*small, "--", "true", CUDA_VISIBLE_DEVICES="1").stderr


def test_ps_tells_who_was_refused(run: Run, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("run", "--memory", "8GiB", "--", sys.executable, "-c", CLIENT, str(9 * GIB), str(8 * GIB))
    line(process)
    *_, last = run("ps").stdout.splitlines()
    assert last.endswith(": its quota of 8 GiB had no room for 2 allocations")


def test_more_than_the_gpu_gives(run: Run) -> None:
    """Of 3 GiB one is the GPU's own: the program gets all three and sees them as one GPU's."""
    client = [sys.executable, "-c", CLIENT, str(GIB), str(GIB // 2)]
    result = run("run", "--physical", "1GiB", "--host", "2GiB", "--gpu", "0", "--", *client)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split() == [str(3 * GIB), "0", "0"]
    refused = run("run", "--memory", "64TiB", "--physical", "1GiB", "--gpu", "0", "--", *client)
    assert refused.returncode == 2
    assert "the host does not have" in refused.stderr
    refused = run("run", "--memory", "26GiB", "--physical", "25GiB", "--gpu", "0", "--", *client)
    assert refused.returncode == 2
    assert "--physical 25GiB is more than GPU 0 has" in refused.stderr
    assert refused.stderr.count("--physical") == 1


def test_a_share_of_the_time(run: Run) -> None:
    """The command and what it starts find it in the page; what others have set for themselves does not count."""
    show = f"{shlex.join(VCUDA)} limits --json $VCUDA_DIR; echo ${{VCUDA_CORES-unset}}"
    result = run(
        "run", "--memory", "1GiB", "--cores", "30", "--elastic", "--gpu", "0", "--", "sh", "-c", show
    )
    assert (result.returncode, result.stderr) == (0, "")
    *page, cores = result.stdout.splitlines()
    (gpu,) = json.loads("\n".join(page))["gpus"]
    assert (gpu["cores_percent"], gpu["compute_policy"], cores) == (30, 1, "unset")
    refused = run("run", "--memory", "1GiB", "--cores", "130", "--", "true")
    assert refused.returncode == 2
    assert "--cores 130 is not a percentage; write a number from 1 to 100" in refused.stderr


def test_two_children_share_the_quota(run: Run) -> None:
    """Both ask for 5 of 8 GiB at the same time: exactly one gets them, the first."""
    script = f"""
import subprocess, sys
command = [sys.executable, "-c", {CLIENT!r}, "{5 * GIB}"]
children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
print(*sorted(child.stdout.readline().split()[1] for child in children))
for child in children: child.communicate()
"""
    result = run("run", "--memory", "8GiB", "--gpu", "0", "--", sys.executable, "-c", script)
    assert (result.returncode, result.stdout.split()) == (0, ["0", str(OUT_OF_MEMORY)]), result.stderr


def test_two_runs_do_not_share_a_quota(run: Run, start: Callable[..., subprocess.Popen[str]]) -> None:
    client = ["run", "--memory", "8GiB", "--gpu", "0", "--", sys.executable, "-c", CLIENT, str(6 * GIB)]
    first = start(*client)
    assert line(first).split()[1] == "0"
    assert run(*client).stdout.split()[1] == "0"


def test_runs_that_name_one_directory_share_it(
    run: Run, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    client = ["run", "--memory", "8GiB", "--gpu", "0", "--dir", shared, "--", sys.executable, "-c", CLIENT]
    first = start(*client, str(6 * GIB))
    assert line(first).split()[1] == "0"
    assert run(*client, str(6 * GIB)).stdout.split()[1] == str(OUT_OF_MEMORY)
    first.communicate()
    assert run(*client, str(6 * GIB)).stdout.split()[1] == "0"
    other = run("run", "--memory", "9GiB", "--gpu", "0", "--dir", shared, "--", "true")
    assert other.returncode == 2
    assert "8GiB" in other.stderr and other.stderr.count("\n") == 1
    assert quotas.read_quota(shared).kind == "directory"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("kill -PIPE $$", 141),
    ],
)
def test_the_exit_code_is_passed_on(run: Run, base: Path, command: str, code: int) -> None:
    result = run("run", "--memory", "1GiB", "--", "sh", "-c", command)
    assert (result.returncode, result.stderr) == (code, "")
    assert left_in(base) == []


def test_words_streams_and_environment_are_passed_on(environment: dict[str, str]) -> None:
    words = ["-c", "a b", "--", "*", "--memory", ""]
    script = 'cat; printf "%s|" "$@"; echo "$LD_PRELOAD" "$VCUDA_MEMORY_LIMIT" >&2'
    result = subprocess.run(
        [*VCUDA, "run", "--memory", "1GiB", "--", "sh", "-c", script, "sh", *words],
        env={**environment, "LD_PRELOAD": "libc.so.6", "VCUDA_MEMORY_LIMIT": "nonsense"},
        input="text\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.stdout == "text\n" + "|".join(words) + "|"
    assert result.stderr.startswith("libc.so.6:") and result.stderr.endswith("libvcuda.so \n")


def test_becoming_the_command(
    run: Run, start: Callable[..., subprocess.Popen[str]], base: Path, tmp_path: Path
) -> None:
    """The process is the command's own, so is its exit code; the quota is removed by who comes later."""
    client = [sys.executable, "-c", f"import os; print(os.getpid())\n{CLIENT}"]
    process = start(
        "run", "--exec", "--memory", "8GiB", "--gpu", "0", "--", *client, str(4 * GIB), str(5 * GIB)
    )
    assert line(process) == str(process.pid)
    assert line(process).split() == [str(8 * GIB), "0", str(OUT_OF_MEMORY)]
    (left,) = base.iterdir()
    assert json.loads((left / "command.json").read_text())["pid"] == process.pid
    run("run", "--memory", "1GiB", "--", "true")
    assert left_in(base) == [left], "it lives"
    process.kill()
    process.communicate()
    assert (
        run("run", "--exec", "--memory", "1GiB", "--", "sh", "-c", "kill -PIPE $$; exit 1").returncode == -13
    )
    assert len(left_in(base)) == 1, "the one before is gone"
    (tmp_path / "broken").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "broken").chmod(0o755)
    broken = run("run", "--exec", "--memory", "1GiB", "--", tmp_path / "broken")
    assert broken.returncode == 126 and broken.stderr.count("\n") == 2
    assert left_in(base) == []


@pytest.mark.parametrize("name", [number.name for number in FORWARDED])
def test_signals_are_forwarded(start: Callable[..., subprocess.Popen[str]], base: Path, name: str) -> None:
    script = f"trap 'exit 77' {name[3:]}; echo ready; while :; do sleep 0.05; done"
    process = start("run", "--memory", "1GiB", "--", "sh", "-c", script)
    assert line(process) == "ready"
    process.send_signal(getattr(signal, name))
    assert process.wait() == 77
    assert left_in(base) == []


def test_control_c_arrives_once(environment: dict[str, str]) -> None:
    """The terminal signals the whole foreground group, so the command has it already."""
    script = """
import os, signal, sys
seen, (woken, wake) = [], os.pipe()
def interrupted(*_): seen.append(1); print("interrupted", flush=True)
def asked(*_): print("count", len(seen), flush=True); sys.exit(5)
os.set_blocking(wake, False); signal.set_wakeup_fd(wake)
signal.signal(signal.SIGINT, interrupted); signal.signal(signal.SIGUSR1, asked)
print("ready", flush=True)
while True: os.read(woken, 1)  # signal.pause() would not end for a signal that comes right before it
"""
    words = [*VCUDA, "run", "--memory", "1GiB", "--", sys.executable, "-c", script]
    with Terminal(words, env=environment) as terminal:
        terminal.read_until("ready")
        terminal.type("\x03")
        terminal.read_until("interrupted")
        terminal.process.send_signal(signal.SIGUSR1)
        assert terminal.read_until(r"count (\d+)\r")[1] == "1"
        assert terminal.wait() == 5


def test_a_child_that_outlives_the_command_keeps_its_limit(run: Run, base: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    late = f"exec <'{fifo}'; '{sys.executable}' -c '{CLIENT}' {9 * GIB} >'{tmp_path}/late'"
    script = 'sh -c "$0" >/dev/null 2>&1 & exit 4'
    result = run("run", "--memory", "8GiB", "--gpu", "0", "--", "sh", "-c", script, late)
    assert result.returncode == 4
    (left,) = base.iterdir()
    assert run("ps", "--json").returncode == 0
    run("run", "--memory", "1GiB", "--", "true")  # sweeps, and must not sweep this one
    assert left_in(base) == [left]
    with fifo.open("w"):
        until(lambda: (tmp_path / "late").exists() and (tmp_path / "late").read_text().endswith("\n"))
        assert (tmp_path / "late").read_text().split() == [str(8 * GIB), str(OUT_OF_MEMORY)]
    until(lambda: run("run", "--memory", "1GiB", "--", "true").returncode == 0 and not left_in(base))


def test_a_launcher_that_is_killed_leaves_no_directory_for_good(
    run: Run, start: Callable[..., subprocess.Popen[str]], base: Path
) -> None:
    process = start("run", "--memory", "8GiB", "--gpu", "0", "--", sys.executable, "-c", CLIENT, str(GIB))
    assert line(process).split()[1] == "0"
    process.kill()
    process.wait()
    (left,) = base.iterdir()
    assert quotas.read_quota(left).usage.processes[0].pid  # the command lives on under its limit
    run("run", "--memory", "1GiB", "--", "true")
    assert left_in(base) == [left]
    process.communicate()  # closes its input, so the command ends
    until(lambda: run("run", "--memory", "1GiB", "--", "true").returncode == 0 and not left_in(base))


def test_gpus_by_index_and_uuid(run: Run) -> None:
    first, second = uuids(run)
    script = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    for named, visible in [([], None), (["1"], second), ([second.upper().replace("GPU", "GPU")], second)]:
        options = [word for name in named for word in ("--gpu", name)]
        result = run("run", "--memory", "1GiB", *options, "--", sys.executable, "-c", script)
        assert (result.returncode, result.stdout.strip()) == (0, str(visible)), result.stderr
    result = run("run", "--memory", "1GiB", "--gpu", second, "--gpu", "0", "--", sys.executable, "-c", script)
    assert result.stdout.strip() == f"{second},{first}"


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--memory", "8GiB", "--gpu", "2"], 2, "choose one of 0 (GPU-"),
        (["--memory", "8GiB", "--gpu", "first"], 2, "no GPU 'first'"),
        (["--memory", "8GiB", "--gpu", "GPU-1"], 2, "not a GPU UUID"),
        (
            ["--memory", "8GiB", "--gpu", "GPU-00000000-0000-0000-0000-000000000000"],
            2,
            "there is no GPU-0000",
        ),
        (["--memory", "8GiB", "--gpu", "0", "--gpu", "0"], 2, "named twice"),
        (["--memory", "25GiB"], 2, "with --physical SIZE the rest may lie in host memory"),
        (["--memory", "8GiB", "--dir", "/proc/nothing"], 2, "/proc/nothing"),
        (["--memory", "8GiB", "--dir", "/etc/passwd"], 2, "/etc/passwd"),
    ],
)
def test_mistakes(run: Run, base: Path, options: list[str], code: int, says: str) -> None:
    result = run("run", *options, "--", "true")
    assert (result.returncode, result.stdout) == (code, "")
    assert says in result.stderr and result.stderr.count("\n") == 1
    assert not base.exists() or left_in(base) == []


def test_a_program_that_is_missing_or_cannot_run(run: Run, base: Path, tmp_path: Path) -> None:
    missing = run("run", "--memory", "1GiB", "--", "no-such-program")
    assert (
        missing.returncode == 127 and "no-such-program" in missing.stderr and missing.stderr.count("\n") == 1
    )
    assert "one word" not in missing.stderr
    apart = run("run", "--memory", "8", "GiB", "--", "true")
    assert apart.returncode == 127
    assert "GiB: no such program, or not executable; write size and unit as one word: 8GiB" in apart.stderr
    (tmp_path / "broken").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "broken").chmod(0o755)
    broken = run("run", "--memory", "1GiB", "--", tmp_path / "broken")
    assert broken.returncode == 126 and "error: " in broken.stderr
    assert not base.exists() or left_in(base) == []


def test_a_garbage_page_fails_the_program_and_not_the_machine(run: Run, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    assert run("run", "--memory", "8GiB", "--dir", shared, "--", "true").returncode == 0
    (shared / "limits").write_bytes(b"garbage")
    result = run("run", "--memory", "8GiB", "--dir", shared, "--", "true")
    assert result.returncode == 1 and "damaged" in result.stderr and result.stderr.count("\n") == 1


def test_ps_shows_what_runs(run: Run, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("run", "--memory", "8GiB", "--gpu", "1", "--", sys.executable, "-c", CLIENT, str(3 * GIB))
    assert line(process).split() == [str(8 * GIB), "0"]
    result = run("ps", "--json")
    assert result.returncode == 0, result.stderr
    (quota,) = json.loads(result.stdout)["quotas"]
    assert quota["kind"] == "command" and quota["name"].startswith(f"{sys.executable} -c")
    noted = json.loads((Path(quota["directory"]) / "command.json").read_text())
    (gpu,), (entry,) = quota["gpus"], quota["processes"]
    assert gpu["limit_bytes"] == 8 * GIB
    assert 3 * GIB <= gpu["used_bytes"] <= gpu["peak_bytes"] < 4 * GIB  # what it asked for, and its context
    assert entry["pid"] == entry["pid_inside"] == noted["pid"]
    assert entry["gpus"] == [{key: value for key, value in gpu.items() if key in entry["gpus"][0]}]
    assert gpu["declared_bytes"] == gpu["measured_bytes"] == gpu["used_bytes"] and gpu["drift_bytes"] == 0
    assert (entry["refused"], entry["name"][:6]) == (0, "python")
    table = run("ps").stdout
    assert format_bytes(gpu["used_bytes"]) in table and str(entry["pid"]) in table
    process.communicate()
    assert json.loads(run("ps", "--json").stdout)["quotas"] == []


# Loads code after the first allocation, in a way that no call declares, and then asks for its memory.
LAZY = CLIENT.replace(
    "print(",
    """
library, module, free = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
assert cuda.cuLibraryLoadData(ctypes.byref(library), b"x", None, None, 0, None, None, 0) == 0
assert cuda.cuLibraryGetModule(ctypes.byref(module), library) == 0
import time; time.sleep(0.25)
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(""",
)


def test_ps_shows_what_was_declared_and_what_was_measured(
    run: Run, start: Callable[..., subprocess.Popen[str]], environment: dict[str, str], tmp_path: Path
) -> None:
    machine = write_machine(tmp_path, gpus=1, context_memory="100MiB", module_memory="64MiB")
    environment["FAKEDRIVER_MACHINE"] = str(machine)
    process = start("run", "--memory", "8GiB", "--", sys.executable, "-c", LAZY, str(GIB))
    assert line(process).split()[1] == "0"
    (quota,) = json.loads(run("ps", "--json").stdout)["quotas"]
    (gpu,), (entry,) = quota["gpus"], quota["processes"]
    declared, undeclared = GIB + (100 << 20), 64 << 20
    assert (gpu["declared_bytes"], gpu["undeclared_bytes"], gpu["agent_undeclared_bytes"]) == (
        declared,
        undeclared,
        0,
    )
    assert (gpu["used_bytes"], gpu["measured_bytes"]) == (declared + undeclared, declared + undeclared)
    assert gpu["drift_bytes"] == entry["gpus"][0]["drift_bytes"] == undeclared
    heading, row, detail, _, promised, sums = (
        re.split(r"\s{2,}", text.strip()) for text in run("ps").stdout.splitlines()
    )
    assert heading[-6:] == ["LIMIT", "USED", "DECLARED", "MEASURED", "DRIFT", "PEAK"]
    assert row[-6:] == ["8 GiB", "1.2 GiB", "1.1 GiB", "1.2 GiB", "64 MiB", "1.1 GiB"]
    assert detail[-5:] == row[-5:]
    assert promised == ["GPU", "MEMORY", "PROMISED", "USED"]
    assert sums == [gpu["uuid"], "24 GiB", "8 GiB", "1.2 GiB"]


def test_ps_inside_a_quota_does_not_take_the_librarys_word_for_nvmls(
    run: Run, start: Callable[..., subprocess.Popen[str]]
) -> None:
    words = [*VCUDA, "ps", "--json"]
    nested = f"{CLIENT.rpartition('sys.stdin')[0]}import os; os.system({shlex.join(words)!r})"
    result = run("run", "--memory", "8GiB", "--", sys.executable, "-c", nested, str(GIB))
    (quota,) = json.loads(result.stdout.splitlines()[1])["quotas"]
    (gpu,) = (gpu for gpu in quota["gpus"] if gpu["used_bytes"])
    assert gpu["measured_bytes"] is None and gpu["declared_bytes"] == gpu["used_bytes"]


def test_ps_live_in_a_terminal(
    start: Callable[..., subprocess.Popen[str]], environment: dict[str, str]
) -> None:
    process = start("run", "--memory", "8GiB", "--gpu", "1", "--", sys.executable, "-c", CLIENT, str(3 * GIB))
    assert line(process).split()[1] == "0"
    live = {**environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    with Terminal([*VCUDA, "ps", "--watch", "0.1"], env=live) as terminal:
        for _ in range(6):  # more than one picture
            terminal.read_until("8 GiB")
        terminal.type("\x03")
        assert terminal.wait() == 0
    assert "Traceback" not in terminal.text
    assert re.search(r"GPU-[0-9a-f]{8} ", terminal.text), (
        "its beginning in the first table, whole in the second"
    )
    assert re.search(r"GPU(-[0-9a-f]+){5} ", terminal.text)


# --- a program that becomes another user -----------------------------------------------------------------------------

NOBODY = 65534


@pytest.fixture
def open_place(environment: dict[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory that every user can enter, with the simulated machine and a client in it; nothing else of these tests
    need be readable by others.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, and no user namespace maps two without help")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o711)
        (place / "machine").mkdir()
        (place / "machine").chmod(0o777)  # of the driver, which each user starts anew
        (place / "runtime").mkdir(mode=0o711)
        (place / "driver").mkdir(mode=0o755)
        for file in (ROOT / "build" / "fakedriver").glob("*.so*"):
            shutil.copy(file, place / "driver")
        for file in (ROOT / "build/native/clients/client", ROOT / "tests/fakedriver/machines/two-24g.txt"):
            shutil.copy(file, place)
        yield (
            place,
            environment
            | {
                "LD_LIBRARY_PATH": str(place / "driver"),
                "FAKEDRIVER_MACHINE": str(place / "two-24g.txt"),
                "FAKEDRIVER_STATE": str(place / "machine" / "state"),
                "XDG_RUNTIME_DIR": str(place / "runtime"),
            },
        )


def as_nobody(place: Path, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    become = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        str(place / "client"),
        "dlsym",
    ]
    return subprocess.run(
        [*VCUDA, "run", "--memory", "1GiB", *options, "--", *become],
        env={**environment, "VCUDA_REFUSALS": "off"},
        input=f"init\nretain z 0\ncurrent z\nalloc a {900 << 20}\nalloc b {200 << 20}\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("library", ["for all", "for root alone"])
def test_a_program_that_becomes_another_user_keeps_its_limit(
    open_place: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    place, environment = open_place
    if library == "for root alone":
        package = place / "package"
        shutil.copytree(ROOT / "vcuda", package / "vcuda", ignore=shutil.ignore_patterns("__pycache__"))
        (package / "vcuda" / "_lib").mkdir(exist_ok=True)
        shutil.copy(ROOT / "build" / "libvcuda.so", package / "vcuda" / "_lib")
        package.chmod(0o700)
        monkeypatch.chdir(package)
    done = as_nobody(place, environment)
    codes = [int(answer.split()[0]) for answer in done.stdout.splitlines()]
    assert (codes, done.stderr) == ([0, 0, 0, 0, OUT_OF_MEMORY], "")


def test_a_directory_that_another_user_may_not_enter_is_said_to_be_that(
    open_place: tuple[Path, dict[str, str]],
) -> None:
    place, environment = open_place
    done = as_nobody(place, environment, "--dir", str(place / "mine"))
    assert done.stdout.split()[0] != "0"
    assert "permission denied" in done.stderr and "chmod o+x" in done.stderr
    (place / "mine").chmod(0o711)
    done = as_nobody(place, environment, "--dir", str(place / "mine"))
    assert [answer.split()[0] for answer in done.stdout.splitlines()] == ["0", "0", "0", "0", "2"]


def test_a_directory_of_the_variables_that_belongs_to_another_user_is_said_to_be_that(
    open_place: tuple[Path, dict[str, str]],
) -> None:
    place, environment = open_place
    limits = {
        "LD_PRELOAD": str(place / "libvcuda.so"),
        "VCUDA_DIR": str(place / "mine"),
        "VCUDA_MEMORY_LIMIT": "1GiB",
    }
    shutil.copy(ROOT / "build" / "libvcuda.so", place)
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    said = []
    for user in ([], become):
        done = subprocess.run(
            [*user, str(place / "client"), "dlsym"],
            env=environment | limits,
            input="init\n",
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        said.append((done.stdout.split()[0], done.stderr))
    assert said[0] == ("0", "")
    assert said[1][0] != "0" and "permission denied" in said[1][1] and "another user's" in said[1][1]


def test_a_named_directory_does_not_decide_what_code_runs(run: Run, base: Path, tmp_path: Path) -> None:
    """It may be shared with other users, who could put another library there."""
    named = tmp_path / "named"
    for _ in range(2):
        seen = run(
            "run", "--memory", "1GiB", "--dir", named, "--", "sh", "-c", 'echo "$LD_PRELOAD"'
        ).stdout.strip()
        assert not seen.startswith(str(named))
        assert seen.endswith("/libvcuda.so")
    assert sorted(entry.name for entry in named.iterdir()) == ["ledger", "limits"]
    assert all(entry.name.startswith("links-") for entry in base.iterdir())


# --- programs of another C library ------------------------------------------------------------------------------------


def test_a_program_of_musl_is_refused_before_it_fails_to_start(run: Run, base: Path, tmp_path: Path) -> None:
    program = elf(tmp_path / "program", b"/lib/ld-musl-x86_64.so.1")
    (tmp_path / "script").write_text(f"#!{program}\n")
    (tmp_path / "script").chmod(0o755)
    for path in (program, tmp_path / "script"):
        refused = run("run", "--memory", "1GiB", "--", path)
        assert refused.returncode == 126
        assert "cannot be limited" in refused.stderr and "musl" in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert not base.exists() or left_in(base) == []


def test_a_program_of_musl_runs_below_the_command(run: Run, tmp_path: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip(
            "this machine has no musl-gcc; that its loader finds nothing is tested in test_preload.py"
        )
    (tmp_path / "main.c").write_text("int main(void) { return 7; }\n")
    subprocess.run(["musl-gcc", "-o", tmp_path / "program", tmp_path / "main.c"], check=True)
    command = f"{shlex.quote(str(tmp_path / 'program'))}; echo $?; grep -c libvcuda /proc/self/maps"
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        Path(runtime).chmod(0o711)
        done = run("run", "--memory", "1GiB", "--", "sh", "-c", command, XDG_RUNTIME_DIR=runtime)
    code, mapped = done.stdout.split()
    assert (code, done.stderr) == ("7", "")
    assert int(mapped) > 0, "its neighbours of glibc have the library"
