"""What registration remembers from one attempt to the next; its life beside a kubelet is in tests/integration/agent."""

import asyncio
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

from agent.kubelet.registration import Registration


def attempt(registration):
    """One attempt, to its end."""

    async def run():
        registration._start_attempt()
        await registration._attempt

    asyncio.run(run())


def test_a_new_kubelet_does_not_pay_for_the_failures_of_the_one_before():
    """A socket is there a moment before somebody listens; the attempt that falls into it is repeated soon."""
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        directory = Path(name)
        plugin = SimpleNamespace(options=None, streams=0)
        registration = Registration(plugin, directory, "own.sock", "example.com/x")
        for failures in (1, 2, 3):
            with socket.socket(socket.AF_UNIX) as dead:
                if failures == 1:
                    dead.bind(str(directory / "kubelet.sock"))  # and nobody listens, as after a kill
                attempt(registration)
            assert registration._failures == failures
        (directory / "kubelet.sock").unlink()
        with socket.socket(socket.AF_UNIX) as fresh:
            fresh.bind(str(directory / "kubelet.sock"))
            attempt(registration)
        assert registration._failures == 1
