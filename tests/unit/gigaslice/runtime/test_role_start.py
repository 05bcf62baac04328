# SPDX-License-Identifier: Apache-2.0
"""A role's beginning: what is odd about its settings is logged, and signals ask it to end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from gigaslice.runtime.role_start import set_at_signals, until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_the_end(number: signal.Signals) -> None:
    async def main() -> None:
        stop = set_at_signals(asyncio.Event())
        os.kill(os.getpid(), number)
        await asyncio.wait_for(until(stop), 20)

    asyncio.run(main())


def test_the_log_begins_with_what_is_odd_and_has_what_nobody_caught() -> None:
    script = (
        "from gigaslice.runtime.role_start import start_log\n"
        'start_log("a role", "info", "json", ["--x: has no effect"]).info("next")\n'
        "1 / 0"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    odd, following, failure = map(json.loads, (done.stdout + done.stderr).splitlines())
    assert (odd["event"], odd["detail"], odd["part"]) == ("configuration", "--x: has no effect", "a role")
    assert (following["event"], failure["event"]) == ("next", "internal error")
