# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inventory.static import StaticSource, parse_inventory
from gigaslice.core.errors import InventoryError
from tests.fakes.nodes import GIB, uuid

TWO = f"""\
gpus:
  - uuid: {uuid(0)}
    model: NVIDIA L4
    memory: 24GiB
    numa: 0
    pci: "00000000:3b:00.0"
  - uuid: {uuid(1)}
    model: NVIDIA L4
    memory: 22.5GiB
    healthy: false
"""
TOPOLOGY = """\
topology: |
  \tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
  GPU0\t X \tNV4\t0-15\t0
  GPU1\tNV4\t X \t16-31\t1
"""


def read(text, slice_bytes=GIB):
    return parse_inventory(text.encode() if isinstance(text, str) else text, "inventory x", slice_bytes)


def mistakes(text, slice_bytes=GIB):
    with pytest.raises(InventoryError) as caught:
        read(text, slice_bytes)
    assert all("\n" not in line for line in caught.value.mistakes)
    return caught.value.mistakes


def test_gpus_are_read_with_all_they_have():
    first, second = read(TWO.replace("22.5GiB", "23040MiB")).gpus
    assert (first.uuid, first.index, first.model, first.slices, first.numa_node) == (
        uuid(0),
        0,
        "NVIDIA L4",
        24,
        0,
    )
    assert (first.pci_bus_id, first.healthy) == ("00000000:3b:00.0", True)
    assert (second.slices, second.memory_bytes, second.numa_node, second.healthy) == (
        22,
        23040 << 20,
        None,
        False,
    )


def test_a_pasted_matrix_gives_links_and_numa_nodes():
    found = read(TWO.replace("22.5GiB", "24GiB") + TOPOLOGY)
    assert found.topology.nvlinks == ((0, 4), (4, 0))
    assert [gpu.numa_node for gpu in found.gpus] == [0, 1]


def test_what_the_list_says_of_numa_beats_the_matrix():
    found = read(TWO.replace("22.5GiB", "24GiB").replace("numa: 0", "numa: 3") + TOPOLOGY)
    assert [gpu.numa_node for gpu in found.gpus] == [3, 1]


def test_every_mistake_comes_with_its_line():
    text = f"""\
gpus:
  - uuid: GPU-x
    model: ""
    memory: 0GiB
    numa: -1
    colour: green
  - 3
  - uuid: {uuid(0)}
    model: L4
    memory: 1GiB
  - uuid: {uuid(0)}
    model: L4
    memory: [1, 2]
    healthy: perhaps
speed: 1
"""
    lines = mistakes(text)
    expected = {2: "gpus[0].uuid", 3: "gpus[0].model", 4: "gpus[0].memory", 5: "gpus[0].numa", 6: "'colour'",
                7: "gpus[1]", 13: "gpus[3].memory", 14: "gpus[3].healthy", 15: "'speed'"}  # fmt: skip
    for number, part in expected.items():
        assert any(f"line {number}: " in line and part in line for line in lines), (number, part, lines)


def test_missing_fields_are_all_named():
    lines = mistakes("gpus:\n  - {}\n")
    assert [key for key in ("uuid", "model", "memory") if any(f"has no {key}" in line for line in lines)] == [
        "uuid",
        "model",
        "memory",
    ]


def test_the_same_gpu_twice():
    text = TWO.replace("22.5GiB", "24GiB").replace(uuid(1), uuid(0))
    assert any("is gpus[0] already" in line for line in mistakes(text))


def test_a_key_twice():
    assert any("has model twice" in line for line in mistakes(TWO.replace("numa: 0", "model: other")))


def test_a_gpu_smaller_than_a_slice():
    lines = mistakes(TWO.replace("22.5GiB", "24GiB"), slice_bytes=25 * GIB)
    assert len([line for line in lines if "less than one slice of 25 GiB" in line]) == 2


@pytest.mark.parametrize(
    "text", ["", "gpus:", "gpus: []", "gpus: 3", "- a", "3", "gpus: {a: 1}", "# only a comment"]
)
def test_no_list_of_gpus(text):
    assert mistakes(text)


@pytest.mark.parametrize("raw", [b"gpus: [", b"\xff\xff", b"a: *b", b"\0\0", b"%YAML 9"])
def test_what_is_not_yaml(raw):
    (line,) = mistakes(raw)
    assert "not YAML" in line


def test_a_matrix_with_a_mistake_is_reported_with_the_line_in_the_file():
    text = TWO.replace("22.5GiB", "24GiB") + TOPOLOGY.replace("GPU1\tNV4", "GPU1\tWIFI")
    count = len(TWO.splitlines())
    (line,) = mistakes(text)
    assert f"line {count + 4}:" in line
    assert "WIFI" in line


def test_a_matrix_of_another_machine():
    one = TWO[: TWO.index(f"  - uuid: {uuid(1)}")]
    assert any("topology has 2 GPUs, gpus has 1" in line for line in mistakes(one + TOPOLOGY))


@given(st.binary(max_size=300))
def test_any_bytes_are_an_inventory_or_lines_about_them(raw):
    try:
        read(raw)
    except InventoryError as error:
        assert error.mistakes
        assert all(line.startswith("inventory x") for line in error.mistakes)


@given(st.integers(0, len(TWO + TOPOLOGY)), st.text(max_size=5))
def test_a_damaged_inventory_is_one_or_lines_about_it(position, junk):
    text = (TWO + TOPOLOGY).replace("22.5GiB", "24GiB")
    try:
        found = read(text[:position] + junk + text[position + len(junk) :])
    except InventoryError as error:
        assert error.mistakes
    else:
        assert len(found.gpus) == found.topology.size


def test_the_file_is_read_at_every_scan(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text(TWO.replace("22.5GiB", "24GiB"))
    source = StaticSource(path, GIB)
    assert [gpu.healthy for gpu in source.scan().gpus] == [True, False]
    path.write_text(TWO.replace("22.5GiB", "24GiB").replace("healthy: false", "healthy: true"))
    assert [gpu.healthy for gpu in source.scan().gpus] == [True, True]
    assert source.process_memory() is None
    source.close()


@pytest.mark.parametrize("kind", ["missing", "directory", "huge"])
def test_a_file_that_cannot_be_an_inventory(tmp_path, kind):
    path = tmp_path / "inventory.yaml"
    if kind == "directory":
        path.mkdir()
    if kind == "huge":
        path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(InventoryError, match=r"inventory\.yaml"):
        StaticSource(path, GIB).scan()
