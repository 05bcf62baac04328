"""Where every start of `gigaslice` begins: the node agent under a front, any other command by itself.

The front is what the kubelet is connected to, and must stay small: nothing of the agent is imported before the fork.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command of sys.argv and returns its exit code."""
    if sys.argv[1:2] == ["node"]:
        from agent.front import supervise  # noqa: PLC0415  (so also the other way round)

        return supervise.run(_command)
    return _command()


def _command() -> int:
    from agent.cli import main as command  # noqa: PLC0415

    return command()
