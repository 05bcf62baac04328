"""One control plane for all tests of this folder; without binaries they are skipped with the line that says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import roles
from tests.cluster.control_plane import ControlPlane, find_binaries


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
