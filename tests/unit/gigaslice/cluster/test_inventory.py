"""The annotation in which a node's agent publishes what the node has."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.cluster.inventory import InventoryFormatError, InventoryGpu, NodeInventory
from gigaslice.model import AnnotationRights, Gpu, LinkLevel, Occupant, Share, Topology

GIB = 1 << 30


@st.composite
def inventories(draw):
    size = draw(st.integers(0, 4))
    gpus = []
    for number in range(size):
        unhealthy = draw(st.sampled_from(["", "Xid 79: fallen off the bus"]))
        gpu = Gpu(
            f"GPU-{number}", number, draw(st.sampled_from(["NVIDIA H100 80GB HBM3", "Tesla T4"])),
            draw(st.integers(GIB, 80 * GIB)), draw(st.integers(0, 80)), GIB,
            draw(st.sampled_from([0, GIB])), draw(st.sampled_from([None, 0, 1])),
            f"00000000:0{number}:00.0", not unhealthy,
        )  # fmt: skip
        properties = draw(st.dictionaries(st.sampled_from(["driver", "rack"]), st.text(max_size=5)))
        gpus.append(InventoryGpu(gpu, unhealthy, draw(st.integers(0, 80)), properties=properties))
    levels = [[LinkLevel.INTERNAL] * size for _ in range(size)]
    links = [[0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i):
            levels[i][j] = levels[j][i] = draw(st.sampled_from(LinkLevel))
            links[i][j] = links[j][i] = draw(st.integers(0, 18))
    held = ()
    if size:
        held = (Occupant("uid-1", (Share("GPU-0", draw(st.integers(0, 9)), draw(st.integers(0, 50))),)),)
    return NodeInventory(
        tuple(gpus),
        Topology.build(levels, links),
        held,
        draw(st.sampled_from(["", "gigaslice.io/gpu"])),
        draw(st.sampled_from(AnnotationRights)),
    )


@given(inventories())
def test_what_is_written_is_read(inventory):
    assert NodeInventory.decode(inventory.encode()) == inventory


def eight():
    gpus = tuple(
        InventoryGpu(
            Gpu(
                f"GPU-{n:08d}-0000-0000-0000-000000000000",
                n,
                "NVIDIA H100 80GB HBM3",
                80 * GIB,
                79,
                GIB,
                0,
                n // 4,
            )
        )
        for n in range(8)
    )
    return NodeInventory(gpus, Topology.flat(8))


def test_eight_gpus_take_two_kilobytes():
    assert len(eight().encode()) < 2500


def test_properties_that_are_derived_cannot_be_overwritten():
    gpu = InventoryGpu(eight().gpus[5].gpu, properties={"model": "another", "rack": "r7"})
    assert gpu.all_properties("node-a") == {
        "vendor": "NVIDIA", "model": "NVIDIA H100 80GB HBM3", "memory": "81920MiB", "numa": "1", "node": "node-a",
        "uuid": gpu.gpu.uuid, "rack": "r7",
    }  # fmt: skip


def test_unknown_keys_of_a_later_agent_are_left_alone():
    document = json.loads(eight().encode())
    document["later"] = {"x": 1}
    document["gpus"][0]["later"] = 1
    assert NodeInventory.decode(json.dumps(document)) == eight()


def test_another_schema_names_both_versions():
    document = json.loads(eight().encode()) | {"schema": 2}
    with pytest.raises(InventoryFormatError, match="schema 2, and 1 is known"):
        NodeInventory.decode(json.dumps(document))


def mutations():
    whole = json.loads(eight().encode())
    yield "no JSON"
    yield "[" * 100_000
    yield "{}"
    for key in ("gpus", "levels"):
        yield json.dumps({name: value for name, value in whole.items() if name != key})
    for key in ("uuid", "index", "model", "memoryBytes", "slices", "sliceBytes", "resource"):
        for value in (None, "", -1, True, [], 1 << 70):
            if key == "index" and value == "":
                continue
            yield json.dumps(whole | {"gpus": [whole["gpus"][0] | {key: value}, *whole["gpus"][1:]]})
    yield json.dumps(whole | {"gpus": whole["gpus"][:1] * 8})
    yield json.dumps(whole | {"levels": whole["levels"][:-1]})
    yield json.dumps(whole | {"levels": [*whole["levels"][:-1], [7] * 7]})
    yield json.dumps(whole | {"held": {"uid": [[8, 1, 0]]}})
    yield json.dumps(whole | {"held": {"uid": [[-1, 1, 0]]}})
    yield json.dumps(whole | {"held": {"uid": [[0, 1]]}})


@pytest.mark.parametrize("text", list(mutations()))
def test_what_makes_no_sense_is_refused(text):
    with pytest.raises(InventoryFormatError):
        NodeInventory.decode(text)
