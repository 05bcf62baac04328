# SPDX-License-Identifier: Apache-2.0
"""`make demo-cluster` on a real control plane: the same story and claims as on the stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.control_plane import find_binaries
from tests.integration.cluster.test_demo_cluster import (
    holds_and_leaves_nothing_behind,
    interrupted_it_leaves_nothing_behind,
)


@pytest.fixture(autouse=True)
def binaries() -> dict[str, str]:
    found = find_binaries()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def test_the_short_demo_holds_and_leaves_nothing_behind(binaries: dict[str, str], tmp_path: Path) -> None:
    text = holds_and_leaves_nothing_behind(tmp_path / "log", "real")
    assert f"control plane: {', '.join(binaries)} from " in text


@pytest.mark.parametrize("at", ["starting the control plane", "starting the agents"])
def test_an_interrupted_demo_leaves_nothing_behind(at: str, tmp_path: Path) -> None:
    interrupted_it_leaves_nothing_behind(tmp_path / "log", "real", at)
