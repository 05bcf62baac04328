# SPDX-License-Identifier: Apache-2.0
"""The command's front: usage mistakes, exit codes, and output in every form that needs no GPU."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import vcuda
from tests.fakes.command import alone, environment, runtime
from tests.fakes.hostile import HostileLedger
from vcuda import quotas
from vcuda.cli import ps, split_command

from .conftest import GPU_A, GPU_B, IDENTITY

LIMIT = 8 << 30


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    keep = environment("LD_LIBRARY_PATH") | {"XDG_RUNTIME_DIR": str(runtime(tmp_path))}

    def call(*arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*alone(tmp_path / "allocations"), *map(str, arguments)],
            env={**keep, **extra},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return call


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("", 2, "required"),
        ("frobnicate", 2, "there is no command 'frobnicate'; see"),
        ("rum", 2, "did you mean run?"),
        ("doctr --x", 2, "did you mean doctor?"),
        ("run --memroy 8GiB true", 2, "did you mean --memory?"),
        ("ps --jsn", 2, "did you mean --json?"),
        ("ps --wach=3", 2, "did you mean --watch?"),
        ("--frobnicate", 2, "unrecognized arguments: --frobnicate"),
        ("", 2, "required"),
        ("ps --frobnicate", 2, "unrecognized arguments: --frobnicate"),
        ("ps extra", 2, "unrecognized arguments: extra"),
        ("ps --watch 0", 2, "'0' seconds"),
        ("ps --watch -1", 2, "'-1' seconds"),
        ("ps --watch nan", 2, "'nan' seconds"),
        ("ps --watch soon", 2, "'soon' seconds"),
        ("ps --dir /nonexistent", 2, "/nonexistent is not a directory"),
        ("run -- true", 2, "write --memory 8GiB"),
        ("run --host 1GiB -- true", 2, "alone gives no quota"),
        ("run --memory", 2, "expected one argument"),
        ("run --memory 8GiB", 2, "no command"),
        ("run --memory 8GiB --", 2, "no command"),
        ("run --memory 8GiB --frobnicate -- true", 2, "--frobnicate"),
        ("run --memory 8GB -- true", 2, "not a size: '8GB'"),
        ("run --memory 0 -- true", 2, "not a size: '0'"),
        ("run --memory -1 -- true", 2, "not a size: '-1'"),
        ("run --memory -8GiB -- true", 2, "expected one argument"),
        ("run --memory unlimited -- true", 2, "not a size"),
        ("run --memory 1000TiB -- true", 2, "not a size"),
        ("run --mem 8GiB -- true", 2, "--mem"),
        ("limits", 2, "required: PATH"),
        ("limits /nonexistent", 1, "no such file"),
        ("limits /etc/passwd", 1, "damaged"),
        ("doctor a b", 2, "unrecognized arguments: b"),
    ],
)
def test_a_mistake_is_one_line(
    run: Callable[..., subprocess.CompletedProcess[str]], arguments: str, code: int, says: str
) -> None:
    result = run(*arguments.split())
    assert result.returncode == code
    assert result.stdout == ""
    assert result.stderr.startswith("vcuda") and ": error: " in result.stderr
    assert says in result.stderr
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n")


def test_version(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert run("--version").stdout == f"vcuda {vcuda.__version__}\n"


@pytest.mark.parametrize("command", ["", "run", "ps", "doctor", "limits"])
def test_help(run: Callable[..., subprocess.CompletedProcess[str]], command: str) -> None:
    result = run(*command.split(), "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: vcuda")


def test_starting_up_loads_neither_tables_nor_nvml(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = "import sys, vcuda.cli; print([m for m in ('rich', 'pynvml', 'asyncio') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_without_a_driver(run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # hides the real one where there is one
    result = run("run", "--memory", "8GiB", "--", "true", LD_LIBRARY_PATH=str(tmp_path))
    assert result.returncode == 3
    assert "NVML" in result.stderr and result.stderr.count("\n") == 1
    assert list((tmp_path / "runtime").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "own", "command"),
    [
        (["run", "--memory", "1", "--", "a", "--", "b"], ["run", "--memory", "1"], ["--", "a", "--", "b"]),
        (["run", "a"], ["run", "a"], []),
        (["ps", "--", "x"], ["ps", "--", "x"], []),
        ([], [], []),
    ],
)
def test_the_first_double_dash_ends_our_own_options(
    words: list[str], own: list[str], command: list[str]
) -> None:
    assert split_command(words) == (own, command)


def test_ps_of_nothing(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert run("ps").stdout == "no container or command has a quota here\n"
    answer = json.loads(run("ps", "--json").stdout)
    assert (answer["version"], answer["quotas"], answer["errors"]) == (1, [], [])


def test_ps_shows_what_a_node_agent_has_given_out(
    run: Callable[..., subprocess.CompletedProcess[str]], quota: Callable[[str], Path]
) -> None:
    directory = quota("allocations/0123456789abcdef")
    (found,) = json.loads(run("ps", "--json").stdout)["quotas"]
    assert found["directory"] == str(directory)


def test_ps_as_a_table(
    run: Callable[..., subprocess.CompletedProcess[str]], quota: Callable[[str], Path]
) -> None:
    directory = quota("[bold]work")
    result = run("ps", "--dir", directory)
    assert (result.returncode, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == [
        "CONTAINER",
        "OR",
        "COMMAND",
        "PID",
        "GPU",
        "LIMIT",
        "USED",
        "DECLARED",
        "MEASURED",
        "DRIFT",
        "PEAK",
    ]
    measured = ["5", "MiB", "0", "B", "-", "5", "MiB", "0", "B"]
    assert rows[1] == ["[bold]work", GPU_A, "8", "GiB", *measured], "whole, as all of a pipe"
    assert rows[2] == ["[bold]work", GPU_B, "12", "GiB", "0", "B", "0", "B", "-", "0", "B", "0", "B"]
    assert len(rows) == 3


def test_ps_as_json(
    run: Callable[..., subprocess.CompletedProcess[str]], quota: Callable[[str], Path]
) -> None:
    directory = quota("all/one")
    quota("all/two")
    (answer,) = map(json.loads, run("ps", "--json", "--dir", directory.parent).stdout.splitlines())
    assert [found["name"] for found in answer["quotas"]] == ["one", "two"]
    assert answer["quotas"][0] == {
        "directory": str(directory),
        "kind": "directory",
        "name": "one",
        "allocation_id": IDENTITY.hex(),
        "gpus": [
            {
                "uuid": GPU_A,
                "limit_bytes": LIMIT,
                "physical_bytes": 0,
                "cores_percent": 30,
                "used_bytes": 5 << 20,
                "declared_bytes": 0,
                "undeclared_bytes": 0,
                "managed_bytes": 0,
                "agent_undeclared_bytes": 5 << 20,
                "measured_bytes": None,
                "drift_bytes": 5 << 20,
                "peak_bytes": 0,
                "driver_refused": 0,
                "driver_refused_bytes": 0,
            },
            {
                "uuid": GPU_B,
                "limit_bytes": 12 << 30,
                "physical_bytes": 0,
                "cores_percent": 0,
                "used_bytes": 0,
                "declared_bytes": 0,
                "undeclared_bytes": 0,
                "managed_bytes": 0,
                "agent_undeclared_bytes": 0,
                "measured_bytes": None,
                "drift_bytes": 0,
                "peak_bytes": 0,
                "driver_refused": 0,
                "driver_refused_bytes": 0,
            },
        ],
        "processes": [],
    }


def test_ps_of_a_ledger_with_the_gpu_of_another_container(
    run: Callable[..., subprocess.CompletedProcess[str]], quota: Callable[[str], Path]
) -> None:
    directory = quota("hostile")
    with HostileLedger(directory) as ledger:
        ledger.hold(0)
        ledger.head(["GPU-6e1b0000-0000-4000-8000-0000000000ff"])
        ledger.slot(0, 1 << 30)
        (shown,) = json.loads(run("ps", "--json", "--dir", directory).stdout)["quotas"]
        assert [gpu["uuid"] for gpu in shown["gpus"]] == [GPU_A, GPU_B]
        assert [gpu["declared_bytes"] for gpu in shown["gpus"]] == [0, 0]
        assert [[gpu["uuid"] for gpu in one["gpus"]] for one in shown["processes"]] == [[GPU_A, GPU_B]]
        assert "hostile" in run("ps", "--dir", directory).stdout


def test_ps_believes_no_ledger_that_says_more_than_there_is(quota: Callable[[str], Path]) -> None:
    directory = quota("hostile")
    with HostileLedger(directory) as ledger:
        pid = ledger.hold(0)
        ledger.slot(0, 64 << 40)
        found = quotas.read_quota(directory)
        snapshot = ps._Snapshot(0.0, (found,), (), {GPU_A: {pid: 1 << 30}})
        assert ps._of_quota(snapshot, found, found.limits.gpus[0]).used == (8 << 30) + (5 << 20)
        snapshot = ps._Snapshot(0.0, (found,), (), {GPU_A: {pid: 9 << 30}})
        assert ps._of_quota(snapshot, found, found.limits.gpus[0]).used == (9 << 30) + (5 << 20)


def test_ps_shows_the_others_when_one_is_damaged(
    run: Callable[..., subprocess.CompletedProcess[str]], quota: Callable[[str], Path]
) -> None:
    good, bad = quota("all/good"), quota("all/bad")
    (bad / "ledger").write_bytes(b"x")
    result = run("ps", "--dir", good.parent)
    assert result.returncode == 1
    assert "good" in result.stdout and "bad" not in result.stdout
    assert str(bad) in result.stderr and result.stderr.count("\n") == 1
    answer = json.loads(run("ps", "--json", "--dir", good.parent).stdout)
    assert [error["directory"] for error in answer["errors"]] == [str(bad)]


def test_ps_into_a_pipe_that_closes(quota: Callable[[str], Path]) -> None:
    directory = quota("one")
    words = [*alone(), "ps", "--json", "--watch", "0.1", "--dir", str(directory)]
    pipe = f"set -o pipefail; {shlex.join(words)} | head -n 2"
    result = subprocess.run(
        ["bash", "-c", pipe], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len([json.loads(line) for line in result.stdout.splitlines()]) == 2


def test_limits(run: Callable[..., subprocess.CompletedProcess[str]], quota: Callable[[str], Path]) -> None:
    directory = quota("one")
    by_directory = run("limits", directory)
    assert by_directory.stdout == run("limits", directory / "limits").stdout
    assert f"{GPU_A}  8GiB, 30 % of its time, 5 MiB undeclared\n{GPU_B}  12GiB\n" in by_directory.stdout
    answer = json.loads(run("limits", "--json", directory).stdout)
    assert answer["gpus"][1] == {
        "uuid": GPU_B,
        "memory_bytes": 12 << 30,
        "cores_percent": 0,
        "undeclared_bytes": 0,
        "physical_bytes": 0,
        "compute_policy": 0,
        "allowed_permille": 0,
        "credit_us": 0,
    }


def test_ps_shows_the_quota_it_runs_under(
    run: Callable[..., subprocess.CompletedProcess[str]], quota: Callable[[str], Path]
) -> None:
    directory = quota("elsewhere")
    answer = json.loads(run("ps", "--json", VCUDA_DIR=str(directory)).stdout)
    assert [found["directory"] for found in answer["quotas"]] == [str(directory)]
    missing = run("ps", "--json", VCUDA_DIR=f"{directory}-not")
    assert (missing.returncode, json.loads(missing.stdout)["quotas"]) == (0, [])


@pytest.mark.parametrize(("columns", "shown"), [(80, 3), (100, 3), (101, 6), (200, 6)])
def test_a_narrow_terminal_shows_fewer_columns(columns: int, shown: int) -> None:
    assert len(ps._headings(columns, shared=False)) == shown
    assert ps._width(ps._headings(columns, shared=False)) + 12 <= max(columns, 71)


def test_host_memory_has_a_column_where_there_is_some() -> None:
    assert ps._headings(200, shared=True)[:3] == ("LIMIT", "USED", "MANAGED")
    assert ps._headings(80, shared=True) == ("LIMIT", "USED", "MANAGED", "PEAK")


@pytest.mark.parametrize(
    ("name", "most", "short"),
    [
        ("/opt/venv/bin/python /home/me/a.py", 60, "/opt/venv/bin/python /home/me/a.py"),
        ("/opt/venv/bin/python /home/me/a.py", 24, "python /home/me/a.py"),
        ("/opt/venv/bin/python /home/me/a.py", 12, "python a.py"),
        ("me: ./bin/serve --data=/a/b /", 12, "me: serve --data=/a/b /"),
        ("team/train-7/main", 12, "team/train-7/main"),
    ],
)
def test_the_interpreters_directories_go_first(name: str, most: int, short: str) -> None:
    assert ps._without_directories(name, most) == short


def test_two_commands_differ_in_a_narrow_terminal(
    quota: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = quotas.read_quota(quota("work"))
    pair = tuple(replace(found, name=f"/opt/venv/bin/python /home/me/{script}.py") for script in "ab")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = ps._table(ps._Snapshot(0.0, pair, (), {}), 60).splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["python", "a.py"]] * 2 + [["python", "b.py"]] * 2
