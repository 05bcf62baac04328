# SPDX-License-Identifier: Apache-2.0
"""`nvidia-smi topo -m` as machines print it, read, written and refused."""

from pathlib import Path

import pytest

from gigaslice.core.errors import TopologyTextError
from gigaslice.core.model import LinkLevel, Topology, parse_topo_matrix
from gigaslice.core.placement.tree import Inner, build_tree

GOLDEN = Path(__file__).parent.parent / "placement" / "golden"

HGX = ["NVL+SYS", ["NVL+NODE", 0, 1, 2, 3], ["NVL+NODE", 4, 5, 6, 7]]
TREES: dict[str, object] = {
    "one-gpu": 0,
    "two-pcie": ["PHB", 0, 1],
    "k80-old-driver": ["SYS", ["PHB", ["PIX", 0, 1], ["PIX", 2, 3]], ["PIX", 4, 5]],
    "a100-bridges": ["PIX", ["NVL+NODE", 0, 2], ["NVL+NODE", 1, 3]],
    "dgx1-v100": ["SYS", ["NODE", 0, 1, 2, 3], ["NODE", 4, 5, 6, 7]],
    "hgx-h200": HGX,
}
NUMA = {
    "one-gpu": (None,),
    "two-pcie": (0, 0),
    "k80-old-driver": (None,) * 6,
    "a100-bridges": (0,) * 4,
    "dgx1-v100": (None,) * 8,
    "hgx-h200": (0,) * 4 + (1,) * 4,
}


def _read(name: str) -> str:
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def _nested(node: Inner | int) -> object:
    return node if isinstance(node, int) else [node.kind, *map(_nested, node.children)]


def written(topology, numa_nodes=(), cpu_affinity=()) -> str:
    """What `nvidia-smi topo -m` would print, without legend; affinity columns only where given."""
    header = [f"GPU{i}" for i in range(topology.size)]
    rows = [[f"GPU{i}", *(_word(topology, i, j) for j in range(topology.size))] for i in range(topology.size)]
    if cpu_affinity:
        header.append("CPU Affinity")
        rows = [[*row, cpus or "N/A"] for row, cpus in zip(rows, cpu_affinity, strict=True)]
    if numa_nodes:
        header.append("NUMA Affinity")
        rows = [
            [*row, "N/A" if node is None else str(node)] for row, node in zip(rows, numa_nodes, strict=True)
        ]
    return "".join("\t".join(cells) + "\n" for cells in [["", *header], *rows])


def _word(topology: Topology, i: int, j: int) -> str:
    if i == j:
        return " X "
    links = topology.nvlinks[i][j]
    return f"NV{links}" if links else topology.levels[i][j].word


def test_every_golden_text_is_tested() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == TREES.keys() == NUMA.keys()


@pytest.mark.parametrize("name", TREES)
def test_golden_text_gives_its_tree(name: str) -> None:
    matrix = parse_topo_matrix(_read(name))
    tree = build_tree(matrix.topology, tuple(range(matrix.topology.size)))
    assert (_nested(tree.inner[-1]) if tree.inner else 0) == TREES[name]
    assert matrix.numa_nodes == NUMA[name]
    assert matrix.topology.degraded == ()


@pytest.mark.parametrize("name", TREES)
def test_written_text_reads_back_the_same(name: str) -> None:
    matrix = parse_topo_matrix(_read(name))
    text = written(matrix.topology, matrix.numa_nodes, matrix.cpu_affinity)
    assert parse_topo_matrix(text) == matrix


def test_affinities_and_link_counts_are_read() -> None:
    matrix = parse_topo_matrix(_read("dgx1-v100"))
    assert matrix.cpu_affinity[3:5] == ("0-19,40-59", "20-39,60-79")
    assert matrix.topology.nvlinks[0] == (0, 1, 1, 2, 2, 0, 0, 0)
    assert matrix.topology.levels[0][4] is LinkLevel.SYSTEM  # hidden by NV2, told by the CPU lists
    assert matrix.topology.levels[0][3] is LinkLevel.NODE


def test_every_word_is_written_and_read() -> None:
    for level in LinkLevel:
        topology = Topology.flat(3, level)
        assert parse_topo_matrix(written(topology)).topology == topology


def test_one_sided_link_count_is_a_warning() -> None:
    matrix = parse_topo_matrix("GPU0 GPU1\nGPU0 X NV2\nGPU1 PHB X\n")
    assert matrix.topology.nvlinks == ((0, 0), (0, 0))
    assert matrix.topology.levels[0][1] is LinkLevel.SYSTEM
    assert len(matrix.topology.degraded) == 2


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "no matrix"),
        ("\n\nNo devices were found\n", 3, "expected the header"),
        ("GPU0 GPU2\nGPU0 X PIX\n", 1, "not in order"),
        ("GPU0 GPU1\nGPU0 X PIX\n", 2, "1 GPU rows for 2"),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU0 X PIX\n", 3, "GPU1 is due"),
        ("GPU0 GPU1\nGPU0 X\nGPU1 PIX X\n", 2, "1 of 2 links"),
        ("GPU0 GPU1\nGPU0 X FOO\nGPU1 FOO X\n", 2, "'FOO' is no link level"),
        ("GPU0 GPU1\nGPU0 X X\nGPU1 X X\n", 2, "diagonal"),
        ("GPU0 GPU1\nGPU0 PIX PIX\nGPU1 PIX X\n", 2, "diagonal"),
        ("GPU0 CPU Affinity NUMA Affinity\nGPU0 X 0-3 left\n", 2, "NUMA affinity 'left'"),
        ("GPU0\nGPU0 X\nGPU1 X\n", 3, "2 GPU rows for 1"),
    ],
)
def test_bad_text_is_one_line_with_its_number(text: str, line: int, words: str) -> None:
    with pytest.raises(TopologyTextError) as caught:
        parse_topo_matrix(text)
    message = str(caught.value)
    assert caught.value.line == line
    assert message.startswith(f"topology text, line {line}: ")
    assert words in message
    assert "\n" not in message
