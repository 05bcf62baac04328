"""Fixtures of the tests that run real programs."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def python() -> str:
    """The interpreter that has the project's packages."""
    return sys.executable
