# SPDX-License-Identifier: Apache-2.0
"""Where every start of `gigaslice` begins: the node agent under a front, any other command by itself.

The front is what the kubelet is connected to, and must stay small: nothing of the agent is imported before the fork.
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]

_ROLES = ("controller", "dataset", "driver-limits", "node", "scheduler")


def main() -> int:
    """Runs the command of sys.argv and returns its exit code."""
    _end_well()
    if sys.argv[1:2] == ["node"]:
        from agent.front import supervise

        return supervise.run(_command)
    return _command()


def _command() -> int:
    _end_well()  # a second time: the front gives the process that it forks the defaults
    from gigaslice_cli.frame import main as command

    return command()


def _end_well() -> None:
    """Has a role that is asked to end while it is being loaded end with 0, as it does later.

    Nothing has been begun then. As the first process of a container it would not even hear the signal.
    """
    words = sys.argv[1:3]
    if words[:1] and words[0] in _ROLES and not (words[0] == "dataset" and words[1:] and words[1][:1] != "-"):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
