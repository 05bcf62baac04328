# SPDX-License-Identifier: Apache-2.0
"""A node that serves claims."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.claims_of_node import ClaimNode, claim, claiming, result


@pytest.fixture
def directory(tmp_path):
    library = tmp_path / "libvcuda.so"
    library.write_bytes(b"library")
    return tmp_path


@pytest.fixture
def make_node(directory):
    """Returns a node over one directory; another call is the next process there."""
    nodes = []

    def made(**more):
        for before in nodes:
            before.close()
        node = ClaimNode(directory, directory / "libvcuda.so", **more)
        nodes.append(node)
        return node

    yield made
    nodes[-1].close()


@pytest.fixture
def node(make_node):
    return make_node()


@pytest.fixture
def full(make_node):
    """A node whose one GPU is taken, and two claims that were refused after one another."""
    node = make_node(gpus=1)
    node.first = node.reserve(claim("c", result(0, 24)), claiming("first"))
    node.late = [
        node.reserve(claim(name, result(0, 20)), claiming(f"pod-{name}", claims=(name,))) for name in "de"
    ]

    async def story():
        await node.prepare(node.first)
        for one in node.late:
            assert (await node.prepare(one))[0].error

    asyncio.run(story())
    return node


@pytest.fixture
def prepared(node):
    """A claim with a pod, and the pod is gone."""
    one = node.reserve(claim("c", result(0, 8)), claiming("train"))
    assert not asyncio.run(node.prepare(one))[0].error
    node.cluster.pods.clear()
    return one
