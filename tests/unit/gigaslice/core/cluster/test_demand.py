# SPDX-License-Identifier: Apache-2.0
"""What pods ask for, and what is said to those that cannot be meant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gigaslice.core.classes.resource_class import ClassShare, ResourceClass
from gigaslice.core.cluster.demand import ClassUnits, ClusterUnits, PodDemand, asks_for_gpus, demand_of
from gigaslice.core.cluster.refusal import Refusal, RefusalReason
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.model import ContainerKind, Pod, PodContainer
from tests.fakes.clusters import CHECKED, bound, container, facts, pod
from tests.fakes.gpus import GIB

CLASSES = {
    "h100": ResourceClass("h100"),
    "t4": ResourceClass("t4"),
    "eighth": ResourceClass("eighth", share=ClassShare(8 * GIB, 30)),
    "odd": ResourceClass("odd", share=ClassShare(GIB + 1)),
}


def of(one: Pod, units: ClusterUnits | None = None) -> PodDemand:
    found = demand_of(one, CLASSES, units or CHECKED)
    assert isinstance(found, PodDemand), found
    return found


def units_of(one: PodContainer, **annotations: str) -> tuple[ClassUnits, ...]:
    return of(pod("x", one, annotations=annotations)).containers[0].classes


def test_a_pod_that_asks_for_nothing() -> None:
    one = pod("x", PodContainer("main", requests={"nvidia.com/gpu": 1}))
    assert not of(one).any and not asks_for_gpus(one)


def test_an_assignment_alone_is_no_request() -> None:
    written = bound("x", "n", (0, 8))
    assert asks_for_gpus(written)
    alone = replace(written, containers=(PodContainer("main"),))
    state = ClusterState(CHECKED)
    state.put_node(facts("n"))
    state.put_pod(alone)
    assert not asks_for_gpus(alone) and state.unused("n")


@pytest.mark.parametrize(
    ("resource", "counts"),
    [
        ("gigaslice.io/vgpu-memory", True),
        ("gigaslice.io/vgpu-memory.t4", True),
        ("gigaslice.io/vgpu-memory-2", False),
        ("gigaslice.io/gpu", True),
        ("gpuclass.gigaslice.io/t4", True),
        ("nvidia.com/gpu", False),
    ],
)
def test_a_pod_counts_by_what_it_asks_for(resource: str, counts: bool) -> None:
    assert asks_for_gpus(pod("x", PodContainer("main", requests={resource: 1}))) is counts


def test_equal_templates_are_equal() -> None:
    one, other = (pod(uid, container(f"main-{uid}", slices=8)) for uid in "ab")
    assert of(one) == of(other) and hash(of(one)) == hash(of(other))
    assert of(one) != of(pod("c", container(slices=9)))
    assert of(one) == of(pod("d", container(slices=8), annotations={"priority": "guaranteed"}))


@pytest.mark.parametrize(
    ("one", "units"),
    [
        (container(classes={"h100": 2}), [("h100", 2, 0, 100)]),
        (container(classes={"h100": 2}, gpus=2), [("h100", 2, 0, 100)]),
        (container(classes={"h100": 2}, slices=16), [("h100", 2, 8, 0)]),
        (container(classes={"h100": 2}, slices=17), [("h100", 1, 9, 0), ("h100", 1, 8, 0)]),
        (container(classes={"h100": 1, "t4": 1}, slices=8), [("h100", 1, 4, 0), ("t4", 1, 4, 0)]),
        (container(classes={"eighth": 2}), [("eighth", 2, 8, 30)]),
        (container(classes={"eighth": 2}, slices=16), [("eighth", 2, 8, 30)]),
        (container(classes={"odd": 1}), [("odd", 1, 2, 0)]),
        (container(classes={"eighth": 1, "odd": 1}, slices=10), [("eighth", 1, 8, 30), ("odd", 1, 2, 0)]),
    ],
)  # fmt: skip
def test_units(one: PodContainer, units: list[tuple[str, int, int, int]]) -> None:
    assert list(units_of(one)) == [ClassUnits(*row) for row in units]


def test_a_compute_share_beside_a_class() -> None:
    assert units_of(container(classes={"h100": 1}, slices=8), cores="50") == (ClassUnits("h100", 1, 8, 50),)
    assert units_of(container(classes={"eighth": 1}), cores="30") == (ClassUnits("eighth", 1, 8, 30),)


@pytest.mark.parametrize(
    ("name", "text"),
    [("exclusive", "true"), ("elastic", "16GiB"), ("priority", "guaranteed"), ("time-slicing", "false")],
)
def test_what_nobody_has_checked_is_refused(name: str, text: str) -> None:
    """By the scheduler as by the agent: a pod that the one took and the other held back would wait for ever."""
    one = pod("x", container(slices=8), annotations={name: text})
    found = demand_of(one, CLASSES)
    assert isinstance(found, Refusal) and found.reason is RefusalReason.INVALID
    assert f"gigaslice.io/allow-{name}" in found.text and "container main" in found.text
    assert isinstance(demand_of(one, CLASSES, CHECKED), PodDemand)


def test_slices_by_type() -> None:
    one = pod("x", PodContainer("main", requests={"gigaslice.io/vgpu-memory.h100": 8}))
    assert of(one).containers[0].resource == "gigaslice.io/vgpu-memory.h100"


def test_init_containers_and_same_gpu() -> None:
    first = container("first", slices=1, kind=ContainerKind.INIT)
    found = of(pod("x", first, container(slices=2), annotations={"same-gpu.main": "true"}))
    assert [one.kind for one in found.containers] == [ContainerKind.INIT, ContainerKind.APP]
    assert found.same_gpu and all(one.options.same_gpu for one in found.containers)


TWO_KINDS = PodContainer("main", requests={"gigaslice.io/vgpu-memory": 1, "gigaslice.io/vgpu-memory.t4": 1})


@pytest.mark.parametrize(
    ("one", "annotations", "sentence"),
    [
        (container(classes={"h10": 1}), {}, 'no GPU class "h10"; did you mean "h100"?'),
        (container(classes={"zzz": 1}), {}, "kubectl get resourceclasses"),
        (TWO_KINDS, {}, "are both asked for; write one of the two"),
        (container(slices=8, gpus=1), {}, "write gigaslice.io/vgpu-memory for memory of shared GPUs"),
        (container(slices=8), {"gpus": "many"}, "must be a whole number"),
        (container(slices=1), {"gpus": "2"}, "2 GPUs cannot share 1 slices"),
        (container(gpus=2), {"gpus": "3"}, "gigaslice.io/gpus of 2 whole GPUs has no meaning"),
        (container(gpus=2), {"memory": "1,1"}, "gigaslice.io/memory of 2 whole GPUs"),
        (container(classes={"h100": 2}), {"gpus": "3"}, "leave gigaslice.io/gpus out"),
        (container(classes={"h100": 2}, slices=4), {"memory": "2,2"}, "leave gigaslice.io/memory out"),
        (
            container(classes={"h100": 2}, gpus=1),
            {},
            "2 of gigaslice.io/gpu altogether; write 2, or leave it out",
        ),
        (container(classes={"h100": 2}, gpus=2, slices=2), {}, "write one of the two beside the class"),
        (container(classes={"h100": 2}, slices=1), {}, "cannot be spread over 2 GPUs; write 2 or a multiple"),
        (container(classes={"h100": 1, "t4": 1}, slices=3), {}, "write 2 or a multiple"),
        (
            container(classes={"eighth": 2}, slices=8),
            {},
            "16 of gigaslice.io/vgpu-memory altogether; write 16",
        ),
        (container(classes={"eighth": 2}, gpus=2), {}, "write 16 of gigaslice.io/vgpu-memory in place of it"),
        (container(classes={"eighth": 2}), {"cores": "50"}, "class eighth says 30"),
        (
            container(classes={"eighth": 1, "h100": 1}, slices=8, gpus=1),
            {},
            "class eighth is a share of a GPU and class h100 a whole one; ask for one kind in a container",
        ),
    ],
)
def test_contradictions(one: PodContainer, annotations: dict[str, str], sentence: str) -> None:
    found = demand_of(pod("x", one, annotations=annotations), CLASSES)
    assert isinstance(found, Refusal) and sentence in found.text and found.permanent
    assert found.reason in (RefusalReason.INVALID, RefusalReason.UNKNOWN_CLASS)
    assert "container main" in found.text and "\n" not in found.text
