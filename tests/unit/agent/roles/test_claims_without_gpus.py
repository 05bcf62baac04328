# SPDX-License-Identifier: Apache-2.0
"""On a node whose GPUs are not there claims are given up all the same, and none is prepared."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import grpc
import pytest

from agent import config
from agent.kubelet.pb import dra_v1_pb2 as api
from agent.kubelet.pb import dra_v1_pb2_grpc as rpc
from agent.link import Link
from agent.persistence.store import Store
from agent.roles.claims_without_gpus import ClaimsWithoutGpus
from agent.roles.gpu_wait import Bus, GpuWait
from agent.roles.records import CODEC
from gigaslice.core.errors import MissingError
from tests.fakes.claims_of_node import ClaimNode, claim, claiming, result
from tests.fakes.eventually import until


@pytest.fixture
def directory():
    """Short: the path of a socket may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        for part in ("k/plugins/gigaslice.io", "k/plugins_registry"):
            (Path(name) / part).mkdir(parents=True)
        (Path(name) / "libvcuda.so").write_bytes(b"library")
        yield Path(name)


@pytest.fixture
def settings(directory):
    given = {"api": "dra", "state-dir": directory / "state", "cdi-dir": directory / "cdi"}
    given |= {"kubelet-root": directory / "k", "scan-interval": "100ms", "metrics-address": "off"}
    given |= {"kube-api": "auto", "node-name": "node-a", "ledger-dir": directory / "run"}
    return config.load({name: str(value) for name, value in given.items()}, {})


@pytest.fixture
def prepared(directory):
    """A claim that was prepared before the GPUs were gone."""
    node = ClaimNode(directory, directory / "libvcuda.so")
    one = node.reserve(claim("c", result(0, 8)), claiming("train"))
    assert not asyncio.run(node.prepare(one))[0].error
    node.close()
    return api.Claim(namespace=one.namespace, name=one.name, uid=one.uid)


@pytest.fixture
def link():
    opened = Link.open()
    yield opened
    opened.close()


def kubelet(directory):
    return grpc.aio.insecure_channel(f"unix:{directory / 'k/plugins/gigaslice.io/dra.sock'}")


def test_what_ends_is_given_up_while_the_gpus_are_waited_for(directory, settings, prepared, link):
    """And the waiting ends with its sockets left to what comes next."""
    socket, state = directory / "k/plugins/gigaslice.io/dra.sock", directory / "state"
    answers = {}

    async def kubelets_side(stop):
        serving = asyncio.ensure_future(ClaimsWithoutGpus(settings, link).run(stop))
        await until(socket.is_socket)
        async with kubelet(directory) as channel:
            stub = rpc.DRAPluginStub(channel)
            prepare = await stub.NodePrepareResources(
                api.NodePrepareResourcesRequest(claims=[api.Claim(namespace="default", name="d", uid="u")])
            )
            answers["prepare"] = prepare.claims["u"].error
            unprepare = await stub.NodeUnprepareResources(
                api.NodeUnprepareResourcesRequest(
                    claims=[prepared, api.Claim(namespace="x", name="y", uid="never")]
                )
            )
            answers["unprepare"] = {uid: answer.error for uid, answer in unprepare.claims.items()}
        answers["done"] = True
        await serving

    def scan():
        if "done" not in answers:
            raise MissingError("no library")
        return ["gpu"]

    wait = GpuWait(scan, lambda: Bus((), driver=False), settings, meanwhile=kubelets_side)
    assert wait.until_found(MissingError("no library")) == ["gpu"]
    assert "GPUs are not there" in answers["prepare"]
    assert answers["unprepare"] == {prepared.uid: "", "never": ""}
    assert socket.is_socket(), "the kubelet sees no end of the driver"
    store = Store(state, directory / "libvcuda.so", codec=CODEC)
    store.open()
    assert not store.table.allocations and not list((directory / "cdi").iterdir())
    store.close()


def test_beside_an_agent_that_serves_nothing_is_offered(directory, settings, link):
    other = Store(settings.state_dir, directory / "libvcuda.so", codec=CODEC)
    other.open()

    async def story():
        stop = asyncio.Event()
        serving = asyncio.ensure_future(ClaimsWithoutGpus(settings, link).run(stop))
        await asyncio.sleep(0.3)
        assert not serving.done() and not list((directory / "k/plugins_registry").iterdir())
        stop.set()
        await serving

    asyncio.run(story())
    other.close()
