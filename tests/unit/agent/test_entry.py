"""The first second of a role: what it does with a signal while it is being loaded."""

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
from agent.entry import main
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
    (("controller",), ("agent.cli", "gigaslice.roles.controller.role")),
    (("driver-limits",), ("agent.cli", "gigaslice.roles.driver_limits.service")),
    (("scheduler", "--policy=binpack"), ("agent.cli", "gigaslice.roles.scheduler.service")),
    (("dataset",), ("agent.cli", "gigaslice.roles.dataset_node.settings")),
    (("node",), ("agent.front", "agent.cli", "agent.config")),
])  # fmt: skip
def test_a_role_that_is_asked_to_end_while_it_is_loaded_ends_well(words, modules, number):
    for module in modules:
        assert ends(module, number, *words) == 0, module


def test_a_command_that_is_killed_says_so():
    assert ends("agent.cli", signal.SIGTERM, "nodes") == -signal.SIGTERM
    assert ends("agent.cli", signal.SIGTERM, "dataset", "ps") == -signal.SIGTERM
