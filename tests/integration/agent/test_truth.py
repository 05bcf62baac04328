# SPDX-License-Identifier: Apache-2.0
"""Metrics and the audit on a node with programs under the library, and some that pass it by."""

import subprocess
import urllib.error
import urllib.request

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakedriver.env import library_directory
from tests.fakes.kubeapi import NODE, ApiServer, Fault
from tests.fakes.kubelet import FakeKubelet, Runtime
from tests.integration.agent.conftest import QUICK, RESOURCE, AgentProcess, gpu_of, pod, wait_until
from tests.integration.agent.test_live import resize
from tests.native.running import GIB, MIB, OUT_OF_MEMORY, SUCCESS, Client


def get(agent, path):
    """Status and text of an answer."""
    port = agent.wait_event("metrics served")["port"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics(agent, name, **labels):
    """Values of the samples of NAME that have LABELS."""
    families = text_string_to_metric_families(get(agent, "/metrics")[1])
    return [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def test_series_are_there_from_the_allocation_on_and_go_with_it(gpu_node, agent):
    running = gpu_node.run_pod(pod("a", 8))
    gpu = gpu_of(running.container("c0"))
    assert metrics(agent, "gigaslice_container_memory_limit_bytes", gpu_uuid=gpu) == [8 * GIB]
    assert metrics(agent, "gigaslice_container_memory_used_bytes", gpu_uuid=gpu) == [0]
    wait_until(lambda: metrics(agent, "gigaslice_container_slices", pod="a", container="c0") == [8], "names")
    assert sum(metrics(agent, "gigaslice_gpu_slices", state="allocated")) == 8
    assert metrics(agent, "gigaslice_allocate_duration_seconds_count") == [1]
    (memory,) = metrics(agent, "gigaslice_gpu_memory_bytes", gpu_uuid=gpu)
    (slice_bytes,) = metrics(agent, "gigaslice_gpu_slice_bytes", gpu_uuid=gpu)
    assert slice_bytes == GIB and 20 * GIB < memory <= 24 * GIB
    assert metrics(agent, "gigaslice_gpu_info", gpu_uuid=gpu, model="NVIDIA L4") == [1]
    assert metrics(agent, "gigaslice_container_processes", pod="a") == [0]
    assert metrics(agent, "gigaslice_container_start_waiting", pod="a") == [0]
    assert metrics(agent, "gigaslice_kubelet_registrations_total") == [1]
    assert metrics(agent, "gigaslice_state_dir_usable") == [1]
    gpu_node.delete_pod(running)
    wait_until(lambda: metrics(agent, "gigaslice_container_slices") == [], "the end of the series")


def test_health_and_readiness(gpu_node, agent):
    assert get(agent, "/healthz")[0] == 200
    assert wait_until(lambda: get(agent, "/readyz")[0] == 200, "readiness")
    gpu_node.stop()
    wait_until(lambda: get(agent, "/readyz")[0] == 503, "the kubelet's end to be seen")
    assert get(agent, "/healthz")[0] == 200
    assert metrics(agent, "gigaslice_kubelet_registered") == [0]


def test_use_is_what_the_driver_sees(gpu_node, agent, program):
    container = gpu_node.run_pod(pod("a", 8)).container("c0")
    client = program(container)
    assert client.do("alloc a", 3 * GIB).code == SUCCESS
    assert client.do("alloc b", 6 * GIB).code == OUT_OF_MEMORY
    where = {"gpu_uuid": gpu_of(container)}
    wait_until(
        lambda: metrics(agent, "gigaslice_container_memory_measured_bytes", **where) > [3 * GIB], "a round"
    )
    (used,) = metrics(agent, "gigaslice_container_memory_used_bytes", **where)
    (measured,) = metrics(agent, "gigaslice_container_memory_measured_bytes", **where)
    assert metrics(agent, "gigaslice_container_memory_drift_bytes", **where) == [measured - used]
    wait_until(lambda: metrics(agent, "gigaslice_container_oom_errors_total") == [1], "its name, and a round")
    assert metrics(agent, "gigaslice_container_attached") == [1]
    assert metrics(agent, "gigaslice_container_processes") == [1]
    assert metrics(agent, "gigaslice_container_memory_peak_bytes", **where) >= [3 * GIB]
    assert metrics(agent, "gigaslice_gpu_foreign_memory_bytes", **where) == [0]


def test_a_program_without_the_library_counts_against_its_container(gpu_node, agent, program, bypass):
    container = gpu_node.run_pod(pod("a", 8)).container("c0")
    other = program(container)
    assert bypass(container).do("alloc a", 6 * GIB).code == SUCCESS
    event = agent.wait_event("process without the library")
    assert "client" in event["detail"]
    where = {"gpu_uuid": gpu_of(container)}
    wait_until(
        lambda: metrics(agent, "gigaslice_container_memory_without_library_bytes", **where) >= [6 * GIB], "it"
    )
    assert other.do("alloc b", 3 * GIB).code == OUT_OF_MEMORY, "the quota holds for the others"
    assert other.do("alloc b", GIB).code == SUCCESS
    assert not agent.events("container exceeds its quota")


def test_more_than_its_quota_is_an_error_in_the_log(gpu_node, agent, bypass):
    container = gpu_node.run_pod(pod("a", 2)).container("c0")
    client = bypass(container)
    assert client.do("alloc a", 3 * GIB).code == SUCCESS
    assert gpu_of(container) in agent.wait_event("container exceeds its quota")["over"]
    assert metrics(agent, "gigaslice_container_attached") == [0]
    client.kill()
    where = {"gpu_uuid": gpu_of(container)}
    wait_until(
        lambda: metrics(agent, "gigaslice_container_memory_without_library_bytes", **where) == [0], "its end"
    )


def test_a_program_in_no_container_is_foreign(gpu_node, agent, driver):
    client = Client({**driver, "CUDA_VISIBLE_DEVICES": "0"})
    try:
        assert client.ready().do("alloc a", GIB).code == SUCCESS
        wait_until(
            lambda: max(metrics(agent, "gigaslice_gpu_foreign_memory_bytes"), default=0) > GIB,
            "foreign memory",
        )
        assert not agent.events("process without the library")
    finally:
        client.kill()


def test_the_agent_stays_small(gpu_node, agent, program):
    for number in range(8):
        gpu_node.run_pod(pod(f"p{number}", 2))
    for _ in range(20):
        assert get(agent, "/metrics")[0] == 200
    assert psutil.Process(agent.process.pid).memory_info().rss < 64 * MIB


@pytest.fixture
def watched_node(directory, driver, request):
    """As `gpu_node` with an API server, --overuse=evict, and the flags of the test's parameter."""
    with (
        ApiServer(NODE) as api,
        FakeKubelet(directory / "kubelet", 7, settings=QUICK, runtime=Runtime("plain"), api=api) as kubelet,
    ):
        agent = AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        agent.driver = driver
        agent.flags |= {"--kubeconfig": api.kubeconfig(directory), "--node-name": "node-a"}
        agent.flags |= {"--inventory": "nvml", "--overuse": "evict", "--evict-grace": "1s"}
        agent.flags |= getattr(request, "param", {})
        agent.start()
        agent.wait_event("watching")
        wait_until(lambda: kubelet.allocatable().get(RESOURCE), "slices")
        yield api, kubelet, agent
        assert agent.terminate() == 0
        assert "Traceback" not in agent.output.read_text()


def reasons(api):
    return {event["reason"]: event for event in api.events()}


def test_an_unhealthy_gpu_is_said_on_the_pods_that_hold_it_and_on_no_other(watched_node):
    api, kubelet, agent = watched_node
    first = kubelet.run_pod(pod("a", 4)).container("c0")
    second = kubelet.run_pod(pod("b", 23))
    assert gpu_of(first) != gpu_of(second.container("c0"))
    wait_until(lambda: len([row for row in agent.status() if row["pod"]]) == 2, "names")
    gpus = [event["gpu"] for event in agent.events("GPU found")]
    order = [library_directory() / "fakectl", "xid", str(gpus.index(gpu_of(first))), "95"]
    subprocess.run(order, env=agent.driver, check=True)
    event = wait_until(lambda: reasons(api).get("GPUUnhealthy"), "the event")
    assert event["involvedObject"]["name"] == "a"
    assert event["type"] == "Warning" and "Xid 95" in event["message"]


def test_by_policy_a_pod_that_passes_the_library_by_is_evicted(watched_node, bypass):
    api, kubelet, agent = watched_node
    container = kubelet.run_pod(pod("a", 2)).container("c0")
    good = kubelet.run_pod(pod("b", 2)).container("c0")
    client = bypass(container)
    assert client.do("alloc a", 3 * GIB).code == SUCCESS
    wait_until(lambda: api.sent("POST", "/eviction"), "the eviction")
    assert [one["metadata"]["name"] for one in api.sent("POST", "/eviction")] == ["a"]
    agent.wait_event("pod evicted for overuse")
    wait_until(lambda: {"ProcessWithoutLibrary", "GPUMemoryOveruse"} <= reasons(api).keys(), "both events")
    assert good.running
    assert metrics(agent, "gigaslice_overuse_evictions_total") == [1]


def told(api, reason):
    return [event["message"] for event in api.events() if event["reason"] == reason]


def test_a_disruption_budget_is_respected_and_asked_again(watched_node, bypass):
    api, kubelet, agent = watched_node
    api.faults.append(Fault("POST", "/eviction", 429))
    container = kubelet.run_pod(pod("a", 2)).container("c0")
    assert bypass(container).do("alloc a", 3 * GIB).code == SUCCESS
    refused = agent.wait_event("pod not evicted")
    assert "PodDisruptionBudget" in refused["detail"]
    assert metrics(agent, "gigaslice_overuse_evictions_total") == [0]
    (threat,) = wait_until(lambda: told(api, "GPUMemoryOveruse"), "the event before")
    assert "the pod is evicted if that lasts 1 seconds more" in threat


@pytest.mark.parametrize("watched_node", [{"--overuse": "dry-run"}], indirect=True)
def test_a_dry_run_has_the_api_server_say_what_would_be(watched_node, bypass):
    api, kubelet, agent = watched_node
    container = kubelet.run_pod(pod("a", 2)).container("c0")
    assert bypass(container).do("alloc a", 3 * GIB).code == SUCCESS
    agent.wait_event("pod would be evicted for overuse")
    assert [one["deleteOptions"]["dryRun"] for one in api.sent("POST", "/eviction")] == [["All"]]
    assert metrics(agent, "gigaslice_overuse_evictions_total") == [0]


@pytest.mark.parametrize("watched_node", [{"--evict-over-limit": "on"}, {}], indirect=True, ids=["on", "off"])
def test_a_limit_lowered_below_use_is_policy_too(watched_node, program, request):
    api, kubelet, agent = watched_node
    first = kubelet.run_pod(pod("a", 8)).container("c0")
    bad = kubelet.run_pod(pod("b", 2)).container("c0")
    client = program(first)
    assert client.do("alloc a", 6 * GIB).code == SUCCESS
    wait_until(lambda: len([row for row in agent.status() if row["pod"]]) == 2, "names")
    assert resize(agent, "a", "--memory", "4GiB")[0] == 0
    agent.wait_event("container exceeds its current limit")
    assert client.do("alloc b", MIB).code == OUT_OF_MEMORY
    (text,) = wait_until(lambda: told(api, "GPULimitExceeded"), "the event")
    if "[on]" in request.node.name:
        wait_until(lambda: api.sent("POST", "/eviction"), "the eviction")
        assert [one["metadata"]["name"] for one in api.sent("POST", "/eviction")] == ["a"]
        return
    assert "no pod is evicted" in text
    assert client.do("free a").code == SUCCESS, "it may mend itself"
    assert client.do("alloc b", GIB).code == SUCCESS
    assert api.sent("POST", "/eviction") == [] and bad.running
