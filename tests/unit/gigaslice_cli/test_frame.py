# SPDX-License-Identifier: Apache-2.0
"""The command loads what it is asked for, and no more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agent.commands import topology, topology_drawing
from gigaslice_cli.commands import COMMANDS

HEAVY = ("grpc", "structlog", "prometheus_client", "agent.roles.node", "agent.allocation.service")
SCRIPT = """
import sys
from gigaslice_cli.frame import main
code = main(sys.argv[1:])
print(code, *sorted(sys.modules))
"""


def run(*arguments: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    code, *modules = done.stdout.splitlines()[-1].split()
    return int(code), set(modules)


@pytest.mark.parametrize(
    "arguments", [("version",), ("node", "--no-such-flag", "1"), ("node", "--slice", "nothing")]
)
def test_an_answer_that_needs_no_agent_loads_none(arguments):
    _, modules = run(*arguments)
    assert modules & set(COMMANDS.values()) == {COMMANDS[arguments[0]]}
    assert not modules & set(HEAVY)


@pytest.mark.parametrize(
    "arguments", [("man",), ("completion", "bash"), ("--no-such-flag",), ("no-such-command",)]
)
def test_what_concerns_every_command_loads_none_of_their_work(arguments):
    _, modules = run(*arguments)
    assert set(COMMANDS.values()) <= modules
    assert not modules & {
        *HEAVY,
        "asyncio",
        "agent.commands.status_rows",
        "gigaslice.cluster_commands.cluster",
    }


def test_a_cordon_that_cannot_be_loads_no_agent(tmp_path):
    code, modules = run("cordon", "GPU-1", "--state-dir", str(tmp_path))
    assert code == 1
    assert "agent.health.health_files" in modules
    assert "agent.roles.node" not in modules


def test_the_topology_is_drawn_in_every_format_that_is_offered():
    assert set(topology_drawing.FORMATS) == set(topology.FORMATS)


def test_help_shows_the_commands_by_name():
    assert list(COMMANDS) == sorted(COMMANDS)
