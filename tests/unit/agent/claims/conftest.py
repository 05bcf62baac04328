# SPDX-License-Identifier: Apache-2.0
"""A node that serves claims."""

from __future__ import annotations

import pytest

from tests.fakes.claims_of_node import ClaimNode


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
