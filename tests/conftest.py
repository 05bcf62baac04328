"""What every test may rely on: an environment without the settings of whoever runs it.

Variables that steer the library, the fake driver or the agent would change what a test means, so they are
gone before the first import of the code under test.
"""

from __future__ import annotations

import os

import pytest

STEERING = (
    "VCUDA_",
    "GIGASLICE_",
    "FAKEDRIVER_",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "LD_PRELOAD",
)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(STEERING):
            monkeypatch.delenv(name)
