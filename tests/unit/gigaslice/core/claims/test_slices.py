# SPDX-License-Identifier: Apache-2.0
"""What a node publishes of its GPUs, and that no GPU, label or amount makes a slice that a server refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.claims.slices import PublishedGpu, device_documents, pool_specs, quantity, slice_name
from gigaslice.core.kube.quantity import parse_quantity
from gigaslice.core.model import Topology
from tests.fakes.gpus import GIB, make_gpu, pairs_topology, uuid
from tests.fakes.kubeapi.slice_rules import check_slice
from tests.unit.gigaslice.core.claims.slice_validator import problems

PROPERTIES = {
    "architecture": "Hopper",
    "computeCapability": "9.0",
    "driver": "580.95.05",
    "cudaDriver": "13.0",
    "nvlink": "18",
    "pcieRoot": "pci0000:17",
}


def documents(
    *devices: PublishedGpu, topology: Topology | None = None, order: tuple[str, ...] = (), **more: Any
) -> Any:
    return device_documents(devices, topology or Topology.flat(len(devices)), order, **more).devices


def named(*devices: PublishedGpu, **more: Any) -> list[int]:
    return [device["attributes"]["index"]["int"] for device in documents(*devices, **more)]


def test_a_gpu_as_it_is_published():
    gpu = make_gpu(
        3, 79, "NVIDIA H100 80GB HBM3", memory_bytes=79 * GIB + 5, numa_node=1, pci_bus_id="00000000:1B:00.0"
    )
    device = PublishedGpu(gpu, properties=PROPERTIES, labels={"tier": "gold", "example.com/rack": "r7"})
    assert documents(device) == (
        {
            "name": "gpu-6e1b5c1e-0000-4000-8000-000000000003",
            "allowMultipleAllocations": True,
            "attributes": {
                "architecture": {"string": "Hopper"},
                "cudaComputeCapability": {"version": "9.0.0"},
                "cudaDriverVersion": {"version": "13.0.0"},
                "driverVersion": {"version": "580.95.5"},
                "example.com/rack": {"string": "r7"},
                "index": {"int": 3},
                "model": {"string": "NVIDIA H100 80GB HBM3"},
                "nvlinks": {"int": 18},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "resource.kubernetes.io/numaNode": {"int": 1},
                "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:17"},
                "tier": {"string": "gold"},
                "type": {"string": "gpu"},
                "uuid": {"string": uuid(3)},
            },
            "capacity": {
                "memory": {
                    "value": "79Gi",
                    "requestPolicy": {
                        "default": "79Gi",
                        "validRange": {"min": "1Gi", "max": "79Gi", "step": "1Gi"},
                    },
                },
                "cores": {
                    "value": "100",
                    "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
                },
            },
        },
    )


def test_lent_host_memory_is_not_published():
    """It is nothing that a claim can be sure of: what does not fit the GPU goes on there only where the claim may."""
    (device,) = documents(PublishedGpu(make_gpu(0, 32, host_bytes=8 * GIB)))
    assert device["capacity"]["memory"]["value"] == "24Gi"


def test_what_another_api_has_given_out_is_not_published():
    gpu = make_gpu(0, 24)
    (device,) = documents(PublishedGpu(gpu, other_bytes=8 * GIB + 1, other_cores=30))
    assert device["capacity"]["memory"]["value"] == "15Gi", "only whole slices"
    assert device["capacity"]["memory"]["requestPolicy"]["default"] == "15Gi"
    assert device["capacity"]["cores"]["value"] == "70"
    assert documents(PublishedGpu(gpu, other_bytes=24 * GIB)) == ()


def test_one_slice_is_no_range():
    """A range must have room for a step above its minimum, or the server refuses the slice."""
    (device,) = documents(PublishedGpu(make_gpu(0, 24), other_bytes=23 * GIB, other_cores=100))
    assert device["capacity"] == {
        "memory": {"value": "1Gi", "requestPolicy": {"default": "1Gi", "validValues": ["1Gi"]}},
        "cores": {"value": "0", "requestPolicy": {"default": "0", "validValues": ["0"]}},
    }


@pytest.mark.parametrize(("word", "value"), [("xid-79", "xid-79"), ("it fell off", "unhealthy")])
def test_an_unhealthy_gpu_has_a_taint(word: str, value: str):
    sick = PublishedGpu(make_gpu(1, healthy=False), unhealthy=word)
    healthy, tainted = documents(PublishedGpu(make_gpu(0)), sick)
    assert tainted["taints"] == [{"key": "gigaslice.io/unhealthy", "value": value, "effect": "NoSchedule"}]
    assert "taints" not in healthy
    assert named(PublishedGpu(make_gpu(0)), sick, taints=False) == [0], (
        "where the server keeps none it is left out"
    )


def test_devices_are_in_the_given_order():
    devices = [PublishedGpu(make_gpu(index)) for index in range(4)]
    assert named(*devices, order=(uuid(2), uuid(0), "GPU-gone")) == [2, 0, 1, 3]


def test_groups_of_near_gpus():
    devices = [PublishedGpu(make_gpu(index)) for index in range(6)]
    topology = pairs_topology(6, nvlinks=lambda i, j: 4 * (i != j and i < 4 and j < 4 and i // 2 == j // 2))
    groups = [
        (device["attributes"].get("pairGroup"), device["attributes"].get("nvlinkGroup"))
        for device in documents(*devices, topology=topology)
    ]
    zero, two, four = ({"string": f"pair-{n}"} for n in (0, 2, 4))
    bridge0, bridge2 = ({"string": f"nvlink-{n}"} for n in (0, 2))
    assert groups == [(zero, bridge0)] * 2 + [(two, bridge2)] * 2 + [(four, None)] * 2
    flat = documents(*devices)
    assert not any({"pairGroup", "nvlinkGroup"} & device["attributes"].keys() for device in flat)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("my-tier", "x", 'its name must be letters, digits and "_", 32 at most'),
        ("t" * 33, "x", 'its name must be letters, digits and "_", 32 at most'),
        ("Example.com/tier", "x", "what is before the / must be a domain of 63 characters at most"),
        ("uuid", "x", "there is an attribute of that name"),
        ("gigaslice.io/uuid", "x", "there is an attribute of that name"),
        ("resource.kubernetes.io/numaNode", "7", "there is an attribute of that name"),
        ("tier", "ä" * 33, "its value must have 64 bytes at most"),
        ("tier", "", "its value must have 64 bytes at most"),
    ],
)
def test_labels_that_can_be_no_attributes_are_left_out(key: str, value: str, sentence: str):
    made = device_documents(
        [PublishedGpu(make_gpu(), labels={key: value, "good": "1"})], Topology.flat(1), ()
    )
    assert made.notes == (f"label {key} of {uuid(0)} is not published with its device: {sentence}",)
    assert made.devices[0]["attributes"]["good"] == {"string": "1"}
    without = documents(PublishedGpu(make_gpu(), labels={"good": "1"}))
    assert made.devices == without


def test_labels_beyond_the_limit_are_left_out():
    labels = {f"label_{number:02}": "x" for number in range(40)}
    made = device_documents(
        [PublishedGpu(make_gpu(), properties=PROPERTIES, labels=labels)], Topology.flat(1), ()
    )
    fields = made.devices[0]["attributes"], made.devices[0]["capacity"]
    assert sum(map(len, fields)) == 32 and "label_00" in fields[0]
    assert "a device has at most 32 attributes and capacities" in made.notes[0]


def test_many_gpus_are_several_slices():
    devices = documents(*(PublishedGpu(make_gpu(index)) for index in range(130)))
    specs = pool_specs("node-a", devices, 7)
    assert list(specs) == sorted(specs) == ["node-a-gigaslice", "node-a-gigaslice-1", "node-a-gigaslice-2"]
    assert [len(spec["devices"]) for spec in specs.values()] == [64, 64, 2]
    assert all(
        spec["pool"] == {"name": "node-a", "generation": 7, "resourceSliceCount": 3}
        for spec in specs.values()
    )
    assert [device for spec in specs.values() for device in spec["devices"]] == list(devices)
    assert list(pool_specs("node-a", (), 1)) == ["node-a-gigaslice"], "a pool without devices is one slice"


def test_names_of_slices():
    assert slice_name("a.example") == "a.example-gigaslice"
    long = ["x" * 62 + "." + "y" * 180 + end for end in ("1234567890", "1234567891")]
    names = [slice_name(node, number) for node in long for number in (0, 3)]
    assert len(set(names)) == 4 and all(len(name) <= 253 for name in names)


@given(st.integers(0, 1 << 60))
def test_quantities_are_written_as_they_come_back(count: int):
    assert parse_quantity(quantity(count)) == count


GPU_TEXTS = st.text(max_size=80) | st.sampled_from(
    ["NVIDIA L4", "580.95.05", "9.0", "18", "0000:1b:00.0", "xid-79"]
)
LABELS = st.dictionaries(
    st.text(max_size=40)
    | st.from_regex(r"([a-z.-]{1,70}/)?[a-zA-Z_]{1,40}", fullmatch=True)
    | st.just("model"),
    GPU_TEXTS,
    max_size=40,
)


@st.composite
def published(draw: st.DrawFn) -> tuple[list[PublishedGpu], Topology]:
    count = draw(st.integers(0, 9))
    unit = draw(st.sampled_from([GIB, 256 << 20, 8 * GIB, 1 << 20, 1000, 1]) | st.integers(1, 1 << 36))
    devices = []
    for index in range(count):
        slices = draw(st.integers(1, 200))
        gpu = make_gpu(
            index,
            slices,
            draw(GPU_TEXTS),
            slice_bytes=unit,
            memory_bytes=slices * unit + draw(st.integers(0, unit - 1)),
            numa_node=draw(st.none() | st.integers(0, 9)),
            pci_bus_id=draw(GPU_TEXTS),
        )
        devices.append(
            PublishedGpu(
                gpu,
                draw(st.just("") | GPU_TEXTS),
                draw(st.dictionaries(st.sampled_from(sorted(PROPERTIES)), GPU_TEXTS)),
                draw(LABELS),
                draw(st.integers(-unit, 201 * unit)),
                draw(st.integers(-1, 120)),
            )
        )
    links = draw(st.integers(0, 4))
    return devices, pairs_topology(count, nvlinks=links) if count else Topology.flat(0)


@given(published(), st.booleans(), st.integers(0, 1 << 62))
def test_no_node_makes_a_slice_that_a_server_refuses(
    node: tuple[list[PublishedGpu], Topology], taints: bool, generation: int
):
    devices, topology = node
    made = device_documents(devices, topology, [], taints=taints)
    assert made == device_documents(devices, topology, [], taints=taints)
    for name, spec in pool_specs("node-a.example", made.devices, generation).items():
        assert list(problems(name, spec)) == []
        assert list(check_slice({"metadata": {"name": name}, "spec": spec}, None)) == []
    capacities = {device["name"]: device["capacity"] for device in made.devices}
    for device in devices:
        capacity = capacities.get(f"gpu-{device.gpu.uuid.removeprefix('GPU-')}")
        if capacity is not None:
            size = parse_quantity(capacity["memory"]["value"])
            assert 0 < size <= device.gpu.memory_bytes - max(0, device.other_bytes)
    assert all(note.isprintable() for note in made.notes)
