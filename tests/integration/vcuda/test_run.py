# SPDX-License-Identifier: Apache-2.0
"""``vcuda run`` end to end: real processes, the library preloaded, the simulated driver below it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.vcuda.programs import CLIENT, GIB, OUT_OF_MEMORY, VCUDA, Run, left_in, line, uuids
from tests.native.running import LIBRARY
from vcuda import quotas


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
