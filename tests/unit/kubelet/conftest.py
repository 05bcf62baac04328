from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import pytest

from agent.kubelet.allocator import Allocator
from agent.placement import Policy
from tests.fakes.nodes import inventory


@pytest.fixture
def short_dir():
    """A directory whose path leaves room for the name of a unix socket, which tmp_path may not."""
    directory = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def allocator(store):
    return make_allocator(store)


def make_allocator(store, found=None):
    numbers = itertools.count(1)
    return Allocator(
        store,
        found or inventory(),
        Policy.GAIA,
        now=lambda: 1700000000.0,
        new_id=lambda: f"{next(numbers):032x}",
    )
