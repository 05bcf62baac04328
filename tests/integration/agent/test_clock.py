# SPDX-License-Identifier: Apache-2.0
"""An agent on a machine whose time is set while it runs, by years and in both directions."""

import shutil
import struct
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.integration.agent.conftest import PATIENCE, RESOURCE, allocation_dir, pod, wait_back, wait_until

YEARS = 10 * 365 * 86400
HERE = Path(__file__).resolve().parent


@pytest.fixture
def wall(agent, directory):
    """wall(seconds): sets the agent's time that much off."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the library is built with it"
    library, offset = directory / "wall.so", directory / "offset"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "wall.c"], check=True)

    def put(seconds):
        with offset.open("r+b" if offset.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))

    put(0)
    agent.driver = {**agent.environment(), "LD_PRELOAD": str(library), "WALL_OFFSET": str(offset)}
    return put


@pytest.fixture
def timed_node(wall, kubelet, agent):
    kubelet.start()
    agent.start()
    kubelet.wait_allocatable(RESOURCE, 48, PATIENCE)
    return kubelet


def year_of(event):
    return datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00")).year


@pytest.mark.parametrize("jump", [YEARS, -YEARS, 3600, -3600])
def test_spans_are_not_measured_on_the_wall(timed_node, agent, wall, jump):
    first = timed_node.run_pod(pod("a", 8))
    wait_until(lambda: all(row["pod"] for row in agent.status()), "the name")
    wall(jump)
    second = timed_node.run_pod(pod("b", 8))
    wait_until(lambda: {row["pod"] for row in agent.status()} == {"a", "b"}, "the names")
    if abs(jump) == YEARS:
        logged = wait_until(lambda: agent.events("container identified")[1:], "the second name")[0]
        assert abs(year_of(logged) - datetime.now(timezone.utc).year) >= 9, "the agent's time has jumped"
    directory = allocation_dir(first.container("c0"))
    timed_node.delete_pod(first)
    wait_until(lambda: not directory.exists(), "the end of the first")
    wall(0)
    assert timed_node.run_pod(pod("c", 24)).phase == "Running"
    timed_node.restart()
    timed_node.wait_allocatable(RESOURCE, 48, PATIENCE)
    assert second.container("c0").running and not second.container("c0").restarts
    assert timed_node.run_pod(pod("d", 8)).phase == "Running"


@pytest.mark.parametrize("jump", [YEARS, -YEARS])
def test_a_start_in_another_year_finds_everything(timed_node, agent, wall, jump):
    """What was written lies ten years ahead or behind."""
    pods = [timed_node.run_pod(pod(f"p{number}", 8)) for number in range(3)]
    wait_until(lambda: all(row["pod"] for row in agent.status()), "names")
    before = sorted((row["allocation"], row["pod"], row["limit_bytes"]) for row in agent.status())
    agent.kill()
    wall(jump)
    agent.start()
    wait_back(timed_node, agent)
    assert sorted((row["allocation"], row["pod"], row["limit_bytes"]) for row in agent.status()) == before
    assert timed_node.run_pod(pod("more", 24)).phase == "Running"
    assert all(one.container("c0").running and not one.container("c0").restarts for one in pods)
    timed_node.delete_pod(pods[0])
    wait_until(lambda: len(agent.status()) == 3, "its end")
