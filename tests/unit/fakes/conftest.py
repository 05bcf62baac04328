# SPDX-License-Identifier: Apache-2.0
"""Nodes and plugins that end with the test."""

from __future__ import annotations

import pytest

from tests.fakes.kubelet import FakeKubelet, Pace, Runtime, Settings
from tests.unit.fakes.plugin import Plugin, gpus

QUICK = Settings(
    dial_timeout_s=20.0,
    status_period_s=0.02,
    readmit_after_s=0.2,
    pace=Pace(
        crash_backoff_s=0.02, start_retries_s=(0.05, 0.05), pre_start_timeout_s=20.0, force_kill_delay_s=0.3
    ),
)


@pytest.fixture
def node(short_dir):
    """make(**arguments) -> started FakeKubelet; pods without commands need no namespaces."""
    made = []

    def make(**arguments):
        arguments = {"settings": QUICK, "runtime": Runtime("plain"), "seed": 7, **arguments}
        kubelet = FakeKubelet(short_dir, **arguments)
        made.append(kubelet)
        kubelet.start()
        return kubelet

    yield make
    for kubelet in made:
        kubelet.close()


@pytest.fixture
def plugin():
    """make(kubelet, devices, **arguments) -> Plugin, not yet serving."""
    made = []

    def make(kubelet, devices=None, **arguments):
        one = Plugin(kubelet.plugin_directory, gpus(3, 8) if devices is None else devices, **arguments)
        made.append(one)
        return one

    yield make
    for one in made:
        one.stop()
