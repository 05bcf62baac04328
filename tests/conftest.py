# SPDX-License-Identifier: Apache-2.0
"""What every test may rely on: an environment without the settings of the shell that runs it.

Variables that steer the library, the fake driver or the agent would change what a test means, so they are
gone before the first import of the code under test. Signals that the calling shell ignores (nohup, a job in the
background of a script) would be ignored by every program that a test starts. Tests start hundreds of interpreters, and
rewriting the assertions of all test modules takes each process of `make test` fifteen seconds: compiled code is kept
below build/, also where the environment forbids that elsewhere. Examples that hypothesis thinks of may take as long as
they do: nothing is asserted about time.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("gigaslice", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gigaslice")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ.setdefault(
    "PYTHONPYCACHEPREFIX", str(Path(__file__).resolve().parents[1] / "build" / "pycache")
)

STEERING = (
    "KUBECONFIG",
    "VCUDA_",
    "GIGASLICE_",
    "FAKEDRIVER_",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "LD_PRELOAD",
)


for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also the tests marked long: more seeds of the same")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(autouse=True)
def _plain_log():
    """A role that a test runs in this process sets up its log. Tests that follow read what is logged by default."""
    yield
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(STEERING):
            monkeypatch.delenv(name)
