# SPDX-License-Identifier: Apache-2.0
"""The annotation in which a node's agent publishes what the node has."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.cluster.inventory import InventoryFormatError, InventoryGpu, NodeInventory
from gigaslice.core.model import AnnotationRights, Gpu, LinkLevel, Occupant, Share, Topology
from tests.fakes.clusters import inventory_gpu, node_inventory

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
        *(draw(recorded(size)) for _ in range(2)),
    )


def recorded(size):
    gpus = st.lists(st.sampled_from([f"GPU-{at}" for at in range(size)] or ["-"]), unique=True).map(tuple)
    return st.dictionaries(st.text(max_size=5), gpus if size else st.just(()), max_size=2)


@given(inventories())
def test_what_is_written_is_read(inventory):
    assert NodeInventory.decode(inventory.encode()) == inventory


def eight():
    return node_inventory(
        inventory_gpu(
            "n", n, 79, uuid=f"GPU-{n:08d}-0000-0000-0000-000000000000", model="NVIDIA H100 80GB HBM3",
            memory_bytes=80 * GIB, numa_node=n // 4, free=0,
        )
        for n in range(8)
    )  # fmt: skip


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
    for value in (
        "x",
        1,
        True,
        [1],
        [None],
        [[]],
        {"uid": None},
        {"uid": "x"},
        {"uid": [None]},
        {"uid": ["abc"]},
    ):
        yield json.dumps(whole | {"held": value})
    for value in ("x", None, ["x"], [None], [[]], [1], {"0": whole["gpus"][0]}):
        yield json.dumps(whole | {"gpus": value})
    for value in (None, "x", {}, [None], ["x"], [[0]], [[], [None], *whole["levels"][2:]]):
        yield json.dumps(whole | {"levels": value})
    for value in ("x", True, [1], {"a": 1}):
        yield json.dumps(whole | {"nvlinks": value})
    for key, values in {
        "properties": ("x", [1], {"rack": 1}, {"rack": ["a"]}), "unhealthy": (1, ["x"], {}), "pciBusId": (1, []),
        "numa": ("0", -1, [0]), "free": ("1", -1), "hostBytes": ("1", 1 << 62), "slices": (1 << 40,),
        "memoryBytes": (1 << 60,), "index": (1.5, "0"),
    }.items():  # fmt: skip
        for value in values:
            yield json.dumps(whole | {"gpus": [whole["gpus"][0] | {key: value}, *whole["gpus"][1:]]})
    yield json.dumps(whole | {"wholeResource": 1})
    yield json.dumps(whole | {"schema": {"x" * 10_000: float("inf")}})
    yield json.dumps(whole)[:-1] + ',"later":NaN}'
    for key in ("exclusive", "lent"):
        for value in (
            {"uid": [8]},
            {"uid": [-1]},
            {"uid": 0},
            {"uid": ["0"]},
            {"uid": [True]},
            ["uid"],
            "uid",
        ):
            yield json.dumps(whole | {key: value})


@pytest.mark.parametrize("text", list(mutations()))
def test_what_makes_no_sense_is_refused(text):
    with pytest.raises(InventoryFormatError) as refusal:
        NodeInventory.decode(text)
    assert len(str(refusal.value)) < 300 and str(refusal.value).isprintable()


def test_halves_of_surrogate_pairs_are_made_clean():
    document = json.loads(eight().encode())
    document["gpus"][0] |= {
        "model": "\ud800",
        "unhealthy": "x\udfff",
        "properties": {"\udc00": "\ud83d\ude00"},
    }
    document["held"] = {"\ud900": [[0, 1, 0]]}
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False)):
        found = NodeInventory.decode(text)
        assert (found.gpus[0].gpu.model, found.gpus[0].unhealthy) == ("\ufffd", "x\ufffd")
        assert found.held[0].name == "\ufffd"
        found.encode().encode()


def test_what_is_null_is_what_is_missing():
    document = json.loads(eight().encode())
    document["gpus"][0] |= {"unhealthy": None, "pciBusId": None, "properties": None, "numa": None}
    document |= {"held": None, "nvlinks": None, "wholeResource": None}
    found = NodeInventory.decode(json.dumps(document))
    assert found.gpus[0].gpu.healthy and found.gpus[0].properties == {} and found.whole_resource == ""
