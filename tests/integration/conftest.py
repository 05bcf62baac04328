# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run real programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.pools import Pools
from tests.native.running import Place


@pytest.fixture
def python() -> str:
    """The interpreter that has the project's packages."""
    return sys.executable


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The usual simulated machine, in this test's directory."""
    return Place(tmp_path)


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Callable[..., Pools]]:
    """Starts processes under a quota that use pools, on a simulated machine; they end with the test."""
    started = []

    def start(limit: str = "1GiB", machine: str | Path = "two-24g") -> Pools:
        started.append(Pools(Place(tmp_path, machine=machine), limit))
        return started[-1]

    yield start
    for one in started:
        for peer in one.peers:
            peer.kill()
