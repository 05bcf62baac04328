# SPDX-License-Identifier: Apache-2.0
"""A node that serves claims, from the slice to the limits of a container and back."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes.kubeapi.device_documents import request_document
from tests.fakes.kubelet import ContainerSpec
from tests.fakes.nodes import GIB
from tests.integration.agent.conftest import gpu_limits, wait_until
from tests.integration.claims.node import CLAIM_QUICK, gpus_of
from tests.native.running import SUCCESS
from vcuda import contract


def test_a_claim_becomes_the_limits_of_its_container_and_ends_with_the_pod(begin):
    claims = begin(gpus=2)
    pod = claims.run("train", memory="8Gi")
    (result,) = claims.claim_of(pod)["status"]["allocation"]["devices"]["results"]
    (limits,) = gpu_limits(pod.container())
    assert limits.memory_bytes == 8 * GIB
    (gpu,) = gpus_of(pod.container())
    assert result["device"] == f"gpu-{gpu.removeprefix('GPU-')}"
    (allocation,) = claims.agent.status()
    assert allocation["consumers"] == ["default/train/main"]
    claims.kubelet.delete_pod(pod)
    wait_until(lambda: not claims.agent.status(), "the end of the allocation")
    wait_until(lambda: not claims.api.all("resourceclaims"), "the end of the claim")


def test_pods_of_one_claim_have_one_share(begin):
    claims = begin(gpus=1)
    claims.claim("shared", request_document(memory="4Gi"))
    pods = [claims.run(name, claims.named("shared")) for name in ("p", "q")]
    assert len({gpus_of(pod.container()) for pod in pods}) == 1
    assert len(claims.agent.status()) == 1
    for pod in pods:
        claims.kubelet.delete_pod(pod)
    wait_until(lambda: not claims.agent.status(), "the end of the allocation")


def test_first_fit_follows_the_published_order_and_never_gives_too_much(begin):
    claims = begin(gpus=2, gib=8)
    first = claims.run("a", memory="5Gi")
    second = claims.run("b", memory="5Gi")
    assert gpus_of(first.container()) != gpus_of(second.container())
    third = claims.create("c", memory="5Gi")
    wait_until(lambda: third.reason == "Unschedulable", "the refusal")
    claims.kubelet.delete_pod(first)
    third.wait("Running")


def test_what_a_forced_deletion_frees_waits_for_its_processes(begin, driver, program):
    """The allocator gives the GPU away at once, while programs still have its memory."""
    claims = begin(gpus=2, gib=22, machine=driver)
    first, _ = (claims.run(name, memory="20Gi") for name in ("a", "b"))
    client = program(first.container())
    assert client.do("alloc a", 10 * GIB).code == SUCCESS
    claims.kubelet.delete_pod(first, force=True)
    second = claims.create("c", memory="20Gi")
    wait_until(lambda: len(claims.kubelet.claims.names("NodePrepareResources")) == 3, "the call")
    wait_until(lambda: claims.kubelet.claims.names("NodeUnprepareResources"), "the end of the first")
    assert not second.container().runs
    client.kill()
    second.wait("Running")
    assert gpus_of(second.container()) == gpus_of(first.container())


def test_a_container_without_the_claim_has_nothing_of_it(begin):
    claims = begin(gpus=1)
    containers = (ContainerSpec("main", claims=("vgpu",)), ContainerSpec("log"))
    pod = claims.run("p", containers=containers, memory="2Gi")
    assert gpu_limits(pod.container("main"))[0].memory_bytes == 2 * GIB
    assert not pod.container("log").started.mounts


def test_a_later_pod_with_two_shared_claims_has_the_pages_of_both(begin):
    """The kubelet calls once for each claim, so this one starts without a call; its library sees two quotas."""
    claims = begin(gpus=1)
    for name in ("one", "two"):
        claims.claim(name, request_document(memory="4Gi"))
        claims.run(f"first-{name}", claims.named(name))
    calls = len(claims.kubelet.claims.names("NodePrepareResources"))
    both = tuple(replace(claims.named(name)[0], name=name) for name in ("one", "two"))
    pod = claims.run("both", both)
    assert len(claims.kubelet.claims.names("NodePrepareResources")) == calls
    targets = [mount.target for mount in pod.container().started.mounts]
    pages = [target for target in targets if target.startswith(f"{contract.CONTAINER_ALLOCATIONS}/")]
    assert len(pages) == 2 and targets.count(contract.CONTAINER_LIMITS) == 1
    wait_until(
        lambda: any("can have that of one claim" in said["message"] for said in claims.api.events()),
        "the sentence",
    )


def test_a_pod_that_comes_while_its_claim_is_unprepared_starts_all_the_same(begin, directory):
    """A kubelet of 1.36 gives it the claim, and would forget that with the answer (kubernetes#140527)."""
    race = replace(CLAIM_QUICK, claims=replace(CLAIM_QUICK.claims, race=True, call_s=45.0))
    claims = begin(gpus=1, settings=race)
    claims.claim("shared", request_document(memory="4Gi"))
    first = claims.run("first", claims.named("shared"))
    goes_on, worker = directory / "goes-on", claims.agent.worker
    worker.suspend()
    leaving = claims.begin_deleting(first)
    wait_until(lambda: claims.kubelet.claims.names("NodeUnprepareResources"), "the last call")
    waits = ContainerSpec("waits", command=("sh", "-c", f"until [ -e {goes_on} ]; do sleep 0.05; done"))
    second = claims.create("second", claims.named("shared"), init_containers=(waits,))
    wait_until(lambda: second.init_containers[0].running, "its sandbox")
    worker.resume()
    leaving.join(60)
    goes_on.touch()
    second.wait("Running")
    assert len(claims.kubelet.claims.names("NodePrepareResources")) == 1
    (limits,) = gpu_limits(second.container())
    assert limits.memory_bytes == 4 * GIB
    assert len(claims.agent.status()) == 1
    claims.kubelet.delete_pod(second)
    wait_until(lambda: not claims.agent.status(), "the end of the allocation")
