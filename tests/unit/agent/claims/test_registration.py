# SPDX-License-Identifier: Apache-2.0
"""The driver of claims behind a front in this process, with a kubelet's side by grpc's own client."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import grpc
import pytest

from agent.claims.messages import PrepareAnswer, PreparedDevice
from agent.claims.registration import ClaimRegistration
from agent.kubelet.pb import dra_v1_pb2 as api
from agent.kubelet.pb import dra_v1_pb2_grpc as rpc
from agent.link import Link
from gigaslice.core.errors import LockedError, SocketError
from gigaslice.runtime.pb import pluginregistration_v1_pb2 as plugin
from gigaslice.runtime.pb import pluginregistration_v1_pb2_grpc as plugin_rpc

GIVE_UP = 30.0
CLAIMS = [api.Claim(namespace="ns", name="a", uid="u")]


class Service:
    """Prepares at once, or once it may."""

    def __init__(self):
        self.may, self.asked = asyncio.Event(), asyncio.Event()
        self.may.set()

    async def prepare(self, claims, remaining):
        self.asked.set()
        await self.may.wait()
        device = PreparedDevice(("r",), "node", "gpu-0", ("gigaslice.io/vgpu=u",))
        return {claim.uid: PrepareAnswer((device,)) for claim in claims}

    async def unprepare(self, claims):
        return dict.fromkeys((claim.uid for claim in claims), "")


class Node:
    """A driver in a kubelet's directory."""

    def __init__(self, root):
        self.root, self.service = root, Service()
        self.endpoint = root / "plugins/gigaslice.io/dra.sock"
        self.registry = root / "plugins_registry/gigaslice.io-reg.sock"
        self.link, self.stop, self.accepted = Link.open(), asyncio.Event(), []
        self.registration = ClaimRegistration(
            self.service, root, self.link, registered=lambda: self.accepted.append(True)
        )

    @contextlib.asynccontextmanager
    async def serving(self):
        """Meanwhile it is offered."""
        async with self.link.attached():
            task = asyncio.ensure_future(self.registration.run(self.stop))
            try:
                await until(self.registry.is_socket)
                yield task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(self.link.close)


async def until(condition):
    async def wait():
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), GIVE_UP)


@pytest.fixture
def run():
    """Runs a story on a node."""

    def running(story):
        async def main(root):
            for name in ("plugins", "plugins_registry"):
                (root / name).mkdir()
            node = Node(root)
            async with node.serving() as task:
                await story(node, task)

        with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
            asyncio.run(main(Path(name)))

    return running


@contextlib.asynccontextmanager
async def stub(kind, path):
    async with grpc.aio.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield kind(channel)


def test_the_kubelet_registers_the_driver_and_calls_it(run):
    async def story(node, task):
        async with stub(plugin_rpc.RegistrationStub, node.registry) as kubelet:
            info = await kubelet.GetInfo(plugin.InfoRequest(), timeout=GIVE_UP)
            assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gigaslice.io", str(node.endpoint))
            assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
            assert node.registration.accepted is None
            status = plugin.RegistrationStatus(plugin_registered=True)
            await kubelet.NotifyRegistrationStatus(status, timeout=GIVE_UP)
            await until(lambda: node.accepted == [True] and node.registration.accepted)
            status = plugin.RegistrationStatus(plugin_registered=False, error="no")
            await kubelet.NotifyRegistrationStatus(status, timeout=GIVE_UP)
            await until(lambda: node.registration.accepted is False)
            assert node.accepted == [True]
        async with stub(rpc.DRAPluginStub, info.endpoint) as kubelet:
            request = api.NodePrepareResourcesRequest(claims=CLAIMS)
            prepared = await kubelet.NodePrepareResources(request, timeout=GIVE_UP)
            assert prepared.claims["u"].devices[0].cdi_device_ids == ["gigaslice.io/vgpu=u"]
            request = api.NodeUnprepareResourcesRequest(claims=CLAIMS)
            assert (await kubelet.NodeUnprepareResources(request, timeout=GIVE_UP)).claims["u"].error == ""

    run(story)


def test_what_the_kubelet_says_garbled_changes_nothing(run):
    async def story(node, task):
        async with grpc.aio.insecure_channel(f"unix:{node.registry}") as channel:
            notify = channel.unary_unary("/pluginregistration.Registration/NotifyRegistrationStatus")
            await notify(b"\x12\xff", timeout=GIVE_UP)
            await notify(b"\x08\x01", timeout=GIVE_UP)
        await until(lambda: node.registration.accepted)
        assert not task.done()

    run(story)


def test_an_end_leaves_sockets_and_calls_to_the_next_agent(run):
    async def story(node, task):
        node.service.may.clear()
        async with stub(rpc.DRAPluginStub, node.endpoint) as kubelet:
            request = api.NodePrepareResourcesRequest(claims=CLAIMS)
            call = kubelet.NodePrepareResources(request, timeout=GIVE_UP)
            await node.service.asked.wait()
            node.stop.set()
            await asyncio.wait_for(task, GIVE_UP)
            assert node.registry.is_socket() and node.endpoint.is_socket()
            await asyncio.sleep(0.2)
            assert not call.done()
            call.cancel()

    run(story)


@pytest.mark.parametrize("how", ["withdrawn", "cancelled"])
def test_what_is_not_served_any_more_is_withdrawn(run, how):
    async def story(node, task):
        if how == "withdrawn":
            node.registration.withdraw()
            await asyncio.wait_for(task, GIVE_UP)
        else:
            task.cancel()
        await until(lambda: not node.registry.exists() and not node.endpoint.exists())

    run(story)


def test_a_driver_of_that_name_elsewhere_is_an_error(run):
    async def story(node, task):
        other = Node(node.root)
        async with other.serving() as second:
            with pytest.raises(LockedError):
                await asyncio.wait_for(asyncio.shield(second), GIVE_UP)
        assert not task.done() and node.registry.is_socket()

    run(story)


def test_a_plain_file_in_the_place_of_a_socket_is_an_error(tmp_path):
    async def story(root):
        for name in ("plugins", "plugins_registry"):
            (root / name).mkdir()
        (root / "plugins_registry/gigaslice.io-reg.sock").write_text("no socket")
        node = Node(root)
        async with node.link.attached():
            with pytest.raises(SocketError, match="is not a socket"):
                await asyncio.wait_for(node.registration.run(node.stop), GIVE_UP)
        await asyncio.to_thread(node.link.close)
        assert not node.endpoint.exists(), "nothing is left half served"

    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        asyncio.run(story(Path(name)))
