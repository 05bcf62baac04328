# SPDX-License-Identifier: Apache-2.0
"""The first second of a role: what its front has loaded, and what it does with a signal while it is being loaded."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SIGNALLED = """
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Finder())
sys.argv = ["gigaslice", *{words!r}]
from gigaslice_cli.entry import main
sys.exit(main())
"""


def ends(module: str, number: int, *words: str) -> int:
    """The exit code of a command that gets a signal when it imports a module."""
    text = SIGNALLED.format(module=module, number=int(number), words=words)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("words, modules", [
    (("controller",), ("gigaslice_cli.frame", "gigaslice.roles.controller.role")),
    (("driver-limits",), ("gigaslice_cli.frame", "gigaslice.roles.driver_limits.service")),
    (("scheduler", "--policy=binpack"), ("gigaslice_cli.frame", "gigaslice.roles.scheduler.service")),
    (("dataset",), ("gigaslice_cli.frame", "gigaslice.roles.dataset_node.settings")),
    (("node",), ("agent.front", "gigaslice_cli.frame", "agent.config")),
])  # fmt: skip
def test_a_role_that_is_asked_to_end_while_it_is_loaded_ends_well(words, modules, number):
    for module in modules:
        assert ends(module, number, *words) == 0, module


def test_a_command_that_is_killed_says_so():
    assert ends("gigaslice_cli.frame", signal.SIGTERM, "nodes") == -signal.SIGTERM
    assert ends("gigaslice_cli.frame", signal.SIGTERM, "dataset", "ps") == -signal.SIGTERM


FRONT = """
import sys
from agent.front import supervise
supervise.run = lambda agent: print(*sys.modules)
sys.argv = ["gigaslice", "node"]
from gigaslice_cli.entry import main
main()
"""


def test_the_front_has_loaded_nothing_of_the_command_line_or_the_agent():
    done = subprocess.run(
        [sys.executable, "-c", FRONT], capture_output=True, text=True, timeout=60, check=True
    )
    modules = set(done.stdout.split())
    assert {name for name in modules if name.startswith("gigaslice_cli")} == {
        "gigaslice_cli", "gigaslice_cli.entry"
    }  # fmt: skip
    outside = {name for name in modules if name.startswith("agent.") and not name.startswith("agent.front")}
    assert outside == {"agent.persistence", "agent.persistence.lock"}
    assert not modules & {"argparse", "importlib.metadata", "vcuda", "gigaslice.runtime.command_line"}
