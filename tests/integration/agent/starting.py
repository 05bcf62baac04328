# SPDX-License-Identifier: Apache-2.0
"""The node agent as a program that stops as soon as it has announced itself to the one before: `starting.py node …`.

It is the agent's own process that stops, as by SIGSTOP, and goes on at SIGCONT. So a test has a successor that is
getting ready for as long as the test takes.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Runs the agent with that stop in it."""
    from agent.front import supervise
    from gigaslice_cli import entry

    announce = supervise.announce

    def announce_and_stop(path: str) -> None:
        announce(path)
        os.kill(os.getpid(), signal.SIGSTOP)

    supervise.announce = announce_and_stop
    return entry.main()


if __name__ == "__main__":
    sys.exit(main())
