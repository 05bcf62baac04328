# SPDX-License-Identifier: Apache-2.0
"""The node agent as a program that waits for a slow API server as long as a test does: `patient.py node …`.

An admission gives a pod up that no server has shown it within three seconds. The servers of these tests are part of the
test's process, and may be slower than that on a loaded machine. A test of what pods get is not one of that.
"""

from __future__ import annotations

import sys

SECONDS = 60.0


def main() -> int:
    """Runs the agent with those times."""
    from agent.front import supervise
    from gigaslice_cli import entry

    run = supervise.run

    def patient(agent):
        def waiting():
            from agent.deviceplugin import admission

            admission._READ_SECONDS = admission._ASSIGNED_SECONDS = SECONDS
            return agent()

        return run(waiting)

    supervise.run = patient
    return entry.main()


if __name__ == "__main__":
    sys.exit(main())
