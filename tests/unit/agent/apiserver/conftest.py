"""The API server that the clients of these tests have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.apiserver import find_access
from agent.apiserver.wire import Api
from tests.fakes.kubeapi import NODE, ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(NODE) as made:
        yield made


@pytest.fixture
def wire(server, tmp_path):
    """Makes a client of the server, with the seconds it waits."""

    def make(**seconds: float) -> Api:
        access, _ = find_access(server.kubeconfig(tmp_path), "")
        assert access is not None
        return Api(access, **seconds)

    return make
