# SPDX-License-Identifier: Apache-2.0
"""One control plane, or one node, for all tests of this folder; where it is missing they are skipped and say so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import roles
from tests.cluster.claim_promises import promises_kept
from tests.cluster.claims_node import CDI, ClaimNode
from tests.cluster.control_plane import ControlPlane, find_binaries
from tests.cluster.node_kills import GPUS
from tests.cluster.test_node import Existing, existing_node


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An empty one: what tests install in it they name after themselves."""
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), binaries) as found:
        yield found


@pytest.fixture(scope="session")
def roles_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Another one, with the chart's accounts, rights and definitions, and without its policies."""
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    with ControlPlane(tmp_path_factory.mktemp("roles-plane"), binaries) as found:
        found.documents = roles.install(found, "admission.mode=none")
        yield found


@pytest.fixture(scope="session")
def claims_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimNode]:
    """A node with a real kubelet whose agent serves claims."""
    binaries, path, name, image = existing_node()
    with Existing(tmp_path_factory.mktemp("claims"), binaries, Path(path)) as plane:
        assert not list(CDI.glob("gigaslice.io-*")), "another agent has left claims there"
        with ClaimNode(plane, name, image) as node:
            time.sleep(2)  # policies act about a second after they are installed
            try:
                yield node
            finally:
                node.clear()
                node.api.delete(f"/api/v1/namespaces/{node.namespace}")


@pytest.fixture
def node(claims_served: ClaimNode) -> Iterator[ClaimNode]:
    """The node without pods, and again afterwards, with nothing left of what they had."""
    with promises_kept(claims_served) as promises:
        yield claims_served
        claims_served.clear()
        claims_served.nothing_left(30)
    assert promises.checks
    assert len(claims_served.devices()) == GPUS
