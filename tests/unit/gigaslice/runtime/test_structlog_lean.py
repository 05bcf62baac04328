# SPDX-License-Identifier: Apache-2.0
"""What the agent must not load, since its memory is counted."""

import subprocess
import sys


def test_the_agent_logs_without_rich_and_a_command_may_still_have_it():
    code = (
        "import sys, agent.roles.node; assert 'structlog' in sys.modules; "
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'rich']; "
        "import rich.table; print(rich.table.Table.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Table\n", "")


def test_where_rich_was_there_before_nothing_changes():
    code = (
        "import rich, sys; from gigaslice.runtime.structlog_lean import structlog; "
        "print('rich' in sys.modules, structlog.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True structlog\n", "")
