# SPDX-License-Identifier: Apache-2.0
"""A driver of claims, served by a front."""

import tempfile
from pathlib import Path

import pytest

from tests.unit.agent.front.claims_place import Place, dialled


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        place = Place(Path(name))
        yield place
        place.close()


@pytest.fixture
def agent(place):
    return place.start()


@pytest.fixture
def kubelet(place, agent):
    """A connection to the driver, which stays open between the calls."""
    with dialled(place.service) as channel:
        yield channel
