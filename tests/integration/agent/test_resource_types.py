# SPDX-License-Identifier: Apache-2.0
"""One resource for each type of GPU: a kubelet stand-in and the agent as a process of its own."""

import pytest

from tests.fakes.kubelet import ContainerSpec, PodSpec
from tests.fakes.nodes import uuid
from tests.integration.agent.conftest import RESOURCE, allocation_dir, gpu_of, wait_until

H100, L4, WHOLE = RESOURCE + ".h100", RESOURCE + ".l4", "gigaslice.io/gpu"
GPUS = f"""gpus:
  - {{uuid: {uuid(0)}, model: NVIDIA H100 80GB HBM3, memory: 80GiB, numa: 0}}
  - {{uuid: {uuid(1)}, model: NVIDIA L4, memory: 24GiB, numa: 0}}
  - {{uuid: {uuid(2)}, model: NVIDIA L4, memory: 24GiB, numa: 1}}
"""


@pytest.fixture
def typed(kubelet, agent):
    agent.inventory.write_text(GPUS)
    agent.flags |= {"--resource-per-type": "auto", "--whole-gpus": WHOLE}
    kubelet.start()
    agent.start()
    wait_until(lambda: offered(kubelet) == (80, 48, 3), "both types")
    return kubelet


def offered(kubelet):
    return tuple(kubelet.allocatable().get(name) for name in (H100, L4, WHOLE))


def asking(name, **resources):
    return PodSpec(name, (ContainerSpec("c0", resources),))


def test_each_type_is_counted_and_given_by_itself(typed, agent):
    assert RESOURCE not in typed.allocatable()
    one = typed.run_pod(asking("one", **{H100: 8}))
    other = typed.run_pod(asking("other", **{L4: 20}))
    assert gpu_of(one.container("c0")) == uuid(0)
    assert gpu_of(other.container("c0")) in (uuid(1), uuid(2))
    assert allocation_dir(one.container("c0")) != allocation_dir(other.container("c0"))
    wait_until(lambda: {row["pod"] for row in agent.status()} == {"one", "other"}, "names")
    assert typed.run_pod(asking("much", **{L4: 30})).reason == "Unschedulable"
    agent.kill()
    wait_until(lambda: not any(offered(typed)[:2]), "the kubelet to see its end")
    agent.start()
    wait_until(lambda: offered(typed)[:2] == (80, 48), "registered again")
    assert typed.run_pod(asking("third", **{L4: 24})).phase == "Running"
    assert one.container("c0").running


def test_a_gpu_given_out_whole_takes_its_slices_off_its_own_type(typed):
    running = typed.run_pod(asking("whole", **{WHOLE: 1}))
    gpu = gpu_of(running.container("c0"))
    left = (0, 48) if gpu == uuid(0) else (80, 24)
    wait_until(lambda: offered(typed)[:2] == left, "the type of that GPU has less")


def test_a_gpu_of_a_new_type_gets_its_resource_and_no_pod_notices(typed, agent):
    running = typed.run_pod(asking("one", **{H100: 8}))
    registrations = len(typed.registry.registrations)
    agent.inventory.write_text(
        GPUS + f"  - {{uuid: {uuid(3)}, model: NVIDIA A100-SXM4-40GB, memory: 40GiB, numa: 1}}\n"
    )
    wait_until(lambda: typed.allocatable().get(RESOURCE + ".a100"), "the new type")
    wait_until(
        lambda: offered(typed) == (80, 48, 4 - 1), "its GPU among the whole ones"
    )  # each list for itself
    other = typed.run_pod(asking("other", **{RESOURCE + ".a100": 40}))
    assert gpu_of(other.container("c0")) == uuid(3)
    assert running.container("c0").running
    assert len(typed.registry.registrations) == registrations + 1, "the others stayed registered"
    assert agent.process.poll() is None


@pytest.mark.parametrize(
    ("types", "says"),
    [
        ("H100=big,NVIDIA H100=h100", 'a GPU that has "H100" in its model can have "NVIDIA H100" too'),
        ("80GB=big,H100=h100", "NVIDIA H100 80GB HBM3 is big and h100; types must not overlap"),
        ("H100", "is no type; write auto, or words of a model"),
    ],
)
def test_types_that_overlap_are_refused_at_the_start(agent, types, says):
    agent.inventory.write_text(GPUS)
    code, lines = agent.run(resource_per_type=types)
    assert code != 0
    assert any(says in line for line in lines), lines
