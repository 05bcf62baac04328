# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run real programs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.native.running import Place


@pytest.fixture
def python() -> str:
    """The interpreter that has the project's packages."""
    return sys.executable


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The usual simulated machine, in this test's directory."""
    return Place(tmp_path)
