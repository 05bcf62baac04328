# SPDX-License-Identifier: Apache-2.0
"""A GPU of a node of claims becomes unhealthy: the cluster sees it, who is there stays, who comes goes elsewhere."""

from __future__ import annotations

import subprocess

import pytest

from gigaslice.core.claims.names import device_name
from tests.fakedriver.env import library_directory
from tests.integration.agent.conftest import PATIENCE, wait_until
from tests.integration.claims.node import gpus_of


@pytest.fixture
def node(begin, driver):
    return begin(gpus=2, machine=driver, health_cooldown="500ms")


def fakectl(node, *words):
    subprocess.run(
        [library_directory() / "fakectl", *map(str, words)],
        env=node.agent.driver,
        check=True,
        timeout=PATIENCE,
    )


def tainted(node):
    """The devices that claims get no more, with the reason."""
    return {
        device["name"]: [taint["value"] for taint in device["taints"]]
        for device in node.devices()
        if device.get("taints")
    }


def test_an_unhealthy_gpu_is_given_to_no_claim_until_it_has_recovered(node):
    first = node.run("first", memory="2Gi")
    (gpu,) = gpus_of(first.container())
    numbers = {event["gpu"]: number for number, event in enumerate(node.agent.events("GPU found"))}
    fakectl(node, "xid", numbers[gpu], 119)
    wait_until(lambda: tainted(node) == {device_name(gpu): ["xid-119"]}, "the taint")
    assert first.container().running and not first.container().restarts
    wait_until(lambda: tainted(node) == {}, "the GPU's recovery")
    assert len(node.devices()) == 2


def test_a_claim_goes_to_the_healthy_gpu_and_waits_for_one_where_all_are_unhealthy(node):
    fakectl(node, "xid", 0, 95)
    wait_until(lambda: len(tainted(node)) == 1, "the taint")
    (unhealthy,) = tainted(node)
    second = node.run("second", memory="2Gi")
    (gpu,) = gpus_of(second.container())
    assert device_name(gpu) != unhealthy
    fakectl(node, "xid", 1, 95)
    wait_until(lambda: len(tainted(node)) == 2, "the other taint")
    third = node.create("third", memory="2Gi")
    wait_until(lambda: third.reason == "Unschedulable", "the scheduler's word")
    assert second.container().running
