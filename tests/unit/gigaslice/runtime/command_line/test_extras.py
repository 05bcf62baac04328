# SPDX-License-Identifier: Apache-2.0
"""Every command, where the packages of the extras are not installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gigaslice.runtime.command_line import extras
from gigaslice_cli.frame import make_parser
from tests.unit.docs.tables import subcommands

ROOT = Path(__file__).resolve().parents[5]
SCRIPT = """
import contextlib, io, json, sys
blocked, calls = json.loads(sys.argv[1])
sys.modules |= dict.fromkeys(blocked)  # as if it were not installed
from gigaslice_cli.frame import main
answers = []
for call in calls:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(call)
        except SystemExit as ended:  # --help
            code = ended.code
    answers.append([code, err.getvalue()])
print(json.dumps(answers))
"""

CLUSTER, DATASET, NONE = "cluster", "dataset", ""
CALLS = {
    ("completion", "bash"): NONE,
    ("controller",): CLUSTER,
    ("cordon", "0", "--state-dir", "{empty}"): NONE,
    ("dataset",): DATASET,
    ("dataset", "evict", "key"): DATASET,
    ("dataset", "pack", "{empty}", "{empty}.pack"): DATASET,
    ("dataset", "prefetch", "a/b", "--all-nodes", "--server", "http://127.0.0.1:9"): NONE,
    ("dataset", "ps"): DATASET,
    ("dataset", "wait"): DATASET,
    ("doctor", "--inventory", "{empty}/none"): NONE,
    ("driver-limits", "--socket", "limits.sock"): NONE,
    ("exec", "node-a", "--server", "http://127.0.0.1:9"): NONE,
    ("explain", "pod", "a", "--server", "http://127.0.0.1:9"): NONE,
    ("man",): NONE,
    ("node", "--inventory", "{empty}/none", "--state-dir", "{empty}/state"): NONE,
    ("nodes", "--server", "http://127.0.0.1:9"): NONE,
    ("resize", "a", "--memory", "1GiB", "--state-dir", "{empty}"): NONE,
    ("rewrite", "{empty}/none.yaml"): NONE,
    ("scheduler",): NONE,
    ("status", "--state-dir", "{empty}"): NONE,
    ("top", "--server", "http://127.0.0.1:9"): NONE,
    ("topology", "--inventory", "{empty}/none"): NONE,
    ("uncordon", "0", "--state-dir", "{empty}"): NONE,
    ("version",): NONE,
}
"""A call of every command -> the extra whose packages it needs."""


def answers(blocked: list[str], calls: list[list[str]]) -> list[tuple[int, str]]:
    """Exit code and standard error of CALLS in a process where BLOCKED cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([blocked, calls])],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return [(code, err) for code, err in json.loads(done.stdout.splitlines()[-1])]


def test_every_command_is_called() -> None:
    commands = set(subcommands(make_parser()))
    assert {name for name in commands if not any(" ".join(call).startswith(name) for call in CALLS)} == set()
    assert {call[0] for call in CALLS} == {name.split()[0] for name in commands}


def test_a_command_without_its_packages_says_what_installs_them(tmp_path: Path) -> None:
    calls = [[word.format(empty=tmp_path) for word in call] for call in CALLS]
    assert not tmp_path.with_name(f"{tmp_path.name}.pack").exists()
    for call, extra, (code, err) in zip(
        CALLS, CALLS.values(), answers(list(extras.EXTRAS), calls), strict=True
    ):
        assert "internal error" not in err and "Traceback" not in err, (call, err)
        if extra:
            assert code == 3 and f"pip install '.[{extra}]'" in err, (call, err)
            assert len(err.splitlines()) == 1, (call, err)
        else:
            assert "pip install" not in err, (call, err)


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("controller", "cryptography"),
        ("dataset", "blake3"),
        ("dataset", "obstore"),
    ],
)
def test_a_role_that_lacks_one_package_does_not_start(command: str, package: str) -> None:
    ((code, err),) = answers([package], [[command]])
    assert code == 3 and f"the Python package {package};" in err, err
    assert len(err.splitlines()) == 1


def test_the_help_needs_none() -> None:
    ((code, err),) = answers(list(extras.EXTRAS), [["--help"]])
    assert (code, err) == (0, "")


def test_a_module_of_ours_that_is_missing_is_a_fault_of_ours() -> None:
    assert (
        extras.remedy("gigaslice.core.cluster") == extras.remedy(None) == extras.remedy("cryptographyx") == ""
    )
    assert extras.remedy("cryptography.x509").startswith(
        "this command needs the Python package cryptography;"
    )


def test_every_package_is_in_the_extra_that_is_named() -> None:
    declared = {name: extra for extra in (CLUSTER, DATASET) for name in extra_packages(extra)}
    assert declared == extras.EXTRAS


def extra_packages(extra: str) -> Iterator[str]:
    """The distributions of an extra in pyproject.toml; of these, each is imported by its own name."""
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(rf"(?ms)^{extra} = \[\n(.*?)^\]", text)
    assert block
    yield from re.findall(r'(?m)^ +"([a-z0-9]+)', block[1])
