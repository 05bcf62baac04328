# SPDX-License-Identifier: Apache-2.0
"""The API server that the clients of these tests have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.apiserver import find_access
from agent.apiserver.node_client import node_client
from gigaslice.kubeapi.client import KubeClient
from tests.fakes.kubeapi import NODE, ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(NODE) as api_server:
        yield api_server


@pytest.fixture
def client_of(server, tmp_path):
    """Makes a client of the server, with the seconds it waits."""

    def make(**seconds: float) -> KubeClient:
        access, _ = find_access(server.kubeconfig(tmp_path), "")
        assert access is not None
        return node_client(access, **seconds)

    return make
