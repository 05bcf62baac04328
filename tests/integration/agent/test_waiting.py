# SPDX-License-Identifier: Apache-2.0
"""The whole agent on a node without GPUs: it waits quietly, and starts by itself when a driver appears."""

import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.fakedriver.env import library_directory
from tests.integration.agent.conftest import PATIENCE, RESOURCE, pod, wait_until


@pytest.fixture
def bare(kubelet, agent, driver, directory):
    """The agent, waiting, and the directory in which it would find a driver's libraries."""
    libraries = directory / "libraries"
    libraries.mkdir()
    agent.driver = {**driver, "LD_LIBRARY_PATH": str(libraries)}
    agent.flags |= {"--inventory": "nvml", "--sysfs": directory / "sys"}
    probe = [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"]
    if subprocess.run(probe, env=agent.driver, capture_output=True, check=False).returncode == 0:
        pytest.skip("this machine has a driver of its own")
    kubelet.start()
    agent.start()
    agent.wait_event("waiting for GPUs")
    return libraries


def asked(agent, path):
    port = agent.wait_event("metrics served")["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE) as answer:
        return answer.read().decode()


def install(libraries):
    """As a driver's installer does it: the file appears whole under its name."""
    shutil.copy(library_directory() / "libnvidia-ml.so.1", libraries / "new")
    (libraries / "new").rename(libraries / "libnvidia-ml.so.1")


def test_a_driver_that_appears_is_served_without_a_restart(bare, kubelet, agent):
    assert asked(agent, "healthz") == asked(agent, "readyz") == "ok\n"
    assert 'gigaslice_waiting_for_gpus{node="' in asked(agent, "metrics")
    assert kubelet.registry.registrations == []
    assert not agent.socket.exists() and not agent.state.exists()
    install(bare)
    wait_until(lambda: kubelet.allocatable().get(RESOURCE), "slices")
    assert kubelet.run_pod(pod("a", 8)).phase == "Running"
    agent.wait_event("metrics served", 2)
    assert "gigaslice_waiting_for_gpus{" not in asked(agent, "metrics")
    assert len(agent.events("waiting for GPUs")) == 1
    assert agent.terminate() == 0


def test_it_ends_when_it_is_asked_to_and_when_it_is_killed_nothing_stays(bare, agent):
    assert agent.terminate() == 0
    agent.start()
    agent.wait_event("waiting for GPUs", 2)
    agent.kill()
    assert not agent.state.exists() and not agent.socket.exists()


def test_the_socket_of_an_agent_that_had_gpus_goes(bare, agent, kubelet, directory):
    """A driver was removed: what a killed agent left would look like one that does not answer."""
    agent.kill()
    install(bare)
    agent.start()
    wait_until(lambda: kubelet.allocatable().get(RESOURCE), "slices")
    agent.kill()
    assert agent.socket.is_socket()
    (bare / "libnvidia-ml.so.1").unlink()
    agent.start()
    agent.wait_event("waiting for GPUs", 2)
    assert not agent.socket.exists()


def test_a_driver_that_only_the_machine_has_makes_the_container_anew(bare, agent, directory):
    gpu = directory / "sys/bus/pci/devices/0000:3b:00.0"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    (directory / "sys/module/nvidia").mkdir(parents=True)
    assert agent.process.wait(PATIENCE) == 3
    agent.process = None
    assert "so that the container is made anew" in agent.output.read_text()
    agent.start()  # and then it waits: the module was there before
    agent.wait_event("waiting for GPUs", 3)
    agent.wait_event("metrics served", 2)
    assert "gpu-unusable" in asked(agent, "metrics")


HANGS = """
#include <unistd.h>
int nvmlInitWithFlags(unsigned flags) { for (;;) pause(); }
"""


def test_a_driver_that_hangs_at_the_start_leaves_logs_probes_and_an_end(kubelet, agent, driver, directory):
    libraries = directory / "libraries"
    libraries.mkdir()
    (directory / "hangs.c").write_text(HANGS)
    build = ["cc", "-shared", "-fPIC", "-o", libraries / "libnvidia-ml.so.1", directory / "hangs.c"]
    subprocess.run(build, check=True)
    agent.driver = {**driver, "LD_LIBRARY_PATH": str(libraries)}
    agent.flags |= {"--inventory": "nvml", "--sysfs": directory / "sys"}
    kubelet.start()
    agent.start()
    assert "has not answered" in agent.wait_event("waiting for NVML")["detail"]
    assert asked(agent, "healthz") == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="503"):
        asked(agent, "readyz")
    assert kubelet.registry.registrations == []
    assert agent.terminate() == 0
