"""What registration remembers from one attempt to the next; its life beside a kubelet is in tests/integration/agent."""

import asyncio
import contextlib
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

from agent.kubelet import registration as module
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from agent.kubelet.registration import Registration
from agent.kubelet.sockets import hidden_name, identify


class Silent(rpc.DevicePluginServicer):
    """A plugin that nobody calls."""

    options, streams = None, 0

    async def close(self):
        """Nothing is open."""


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


def test_a_kubelet_that_wipes_the_directory_while_a_server_starts(monkeypatch):
    """It removes every socket there when it starts: also the one that is about to get its public name."""
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        directory = Path(name)
        names = []
        aio_server = module.grpc.aio.server

        def server():
            made = aio_server()
            start = made.start

            async def start_and_wipe():
                await start()
                if len(names) < 3:
                    names[-1].unlink()

            made.start = start_and_wipe
            return made

        def hidden(where):
            names.append(hidden_name(where))
            return names[-1]

        monkeypatch.setattr(module.grpc.aio, "server", server)
        monkeypatch.setattr(module.sockets, "hidden_name", hidden)

        registration = Registration(Silent(), directory, "own.sock", "example.com/x")
        stop = asyncio.Event()

        async def run():
            work = asyncio.create_task(registration.run(stop))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(work), 1.0)
            assert (directory / "own.sock").is_socket()
            stop.set()
            registration.wake()
            await work

        asyncio.run(run())
        assert len(names) == 3
        assert not (directory / "own.sock").exists()


def test_a_socket_that_is_relabelled_is_still_the_own_one():
    """restorecon and chown change a file and no server: the agent must not take itself for another program."""
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        path = Path(name) / "own.sock"
        registration = Registration(Silent(), path.parent, path.name, "example.com/x")
        stop = asyncio.Event()

        async def run():
            work = asyncio.create_task(registration.run(stop))
            for mode in (0o700, 0o755):
                while not path.exists() or identify(path) != registration._mine:
                    assert not work.done(), work.exception()
                    await asyncio.sleep(0.01)
                path.chmod(mode)
            while identify(path) != registration._mine:
                assert not work.done(), work.exception()
                await asyncio.sleep(0.01)
            assert len(registration._servers) == 1
            stop.set()
            registration.wake()
            await work

        asyncio.run(asyncio.wait_for(run(), 30))
        assert not path.exists()
