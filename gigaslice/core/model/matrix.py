# SPDX-License-Identifier: Apache-2.0
"""The text of `nvidia-smi topo -m` to a Topology: what people paste into reports, inventories and tests.

The text shows one word per pair, so an NVLink count hides the PCIe level; it is then read off the affinity
columns (same NUMA node: NODE, else SYS). NIC rows and columns carry nothing that placement uses and are
skipped, as is everything from the legend on. Terminal underlining of the header is accepted. Nothing here runs
the program.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gigaslice.core.errors import TopologyError, TopologyTextError
from gigaslice.core.model.topology import LinkLevel, Topology

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NVLINK = re.compile(r"NV(\d+)")
_GPU = re.compile(r"GPU(\d+)")
_COLUMNS = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|\S+")
_ABSENT = ("", "N/A")


@dataclass(frozen=True, slots=True)
class TopoMatrix:
    """What the text says: links, and per GPU its NUMA node (None) and CPU list ("") where printed."""

    topology: Topology
    numa_nodes: tuple[int | None, ...]
    cpu_affinity: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    links: tuple[str, ...]
    cpus: str
    numa: int | None


def parse_topo_matrix(text: str) -> TopoMatrix:
    """Read the output of `nvidia-smi topo -m`; TopologyTextError with the line number if it is not that."""
    lines = [(number, _ESCAPES.sub("", line)) for number, line in enumerate(text.splitlines(), start=1)]
    numbered = iter([(number, line) for number, line in lines if line.strip()])
    header_line, columns = _header(numbered)
    count = sum(1 for column in columns if _GPU.fullmatch(column))
    if columns[:count] != [f"GPU{i}" for i in range(count)]:
        raise TopologyTextError(header_line, "GPU columns are not in order; paste the whole output")
    rows = list(_rows(numbered, columns, count))
    if len(rows) != count:
        last = rows[-1].line if rows else header_line
        raise TopologyTextError(last, f"{len(rows)} GPU rows for {count} GPU columns; paste the whole output")
    pairs = [[_pair(rows, i, j) for j in range(count)] for i in range(count)]
    return TopoMatrix(
        topology=Topology.build(
            [[level for level, _ in row] for row in pairs], [[links for _, links in row] for row in pairs]
        ),
        numa_nodes=tuple(row.numa for row in rows),
        cpu_affinity=tuple(row.cpus for row in rows),
    )


def _header(numbered: Iterator[tuple[int, str]]) -> tuple[int, list[str]]:
    for number, line in numbered:
        columns = _COLUMNS.findall(line)
        if columns and columns[0] == "GPU0":
            return number, columns
        raise TopologyTextError(number, f"expected the header GPU0 GPU1 …, found {line.strip()!r}")
    raise TopologyTextError(1, "no matrix; paste the output of nvidia-smi topo -m")


def _rows(numbered: Iterator[tuple[int, str]], columns: list[str], count: int) -> Iterator[_Row]:
    index = 0
    for number, line in numbered:
        name, *cells = line.split()  # columns are padded with a varying number of tabs; no cell has a space
        if name.startswith("Legend"):
            return
        if not _GPU.fullmatch(name):
            continue
        if name != f"GPU{index}":
            raise TopologyTextError(number, f"row {name} where GPU{index} is due; paste the rows in order")
        yield _row(number, name, cells, columns, count)
        index += 1


def _row(number: int, name: str, cells: list[str], columns: list[str], count: int) -> _Row:
    links = cells[:count]
    if len(links) < count:
        raise TopologyTextError(number, f"{name} has {len(links)} of {count} links; paste the whole output")
    # strict=False: a GPU without affinity has fewer cells than the header has columns
    extra = dict(zip(columns[count:], cells[count:], strict=False))
    numa = extra.get("NUMA Affinity", "")
    if numa in _ABSENT:
        node = None
    elif re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", numa):
        node = int(re.split("[-,]", numa)[0])  # near several nodes it says "0-1": take the first
    else:
        raise TopologyTextError(number, f"{name}: NUMA affinity {numa!r} is no number")
    cpus = extra.get("CPU Affinity", "")
    return _Row(number, tuple(links), "" if cpus in _ABSENT else cpus, node)


def _pair(rows: list[_Row], i: int, j: int) -> tuple[LinkLevel, int]:
    row, word = rows[i], rows[i].links[j]
    if (word == "X") != (i == j):
        raise TopologyTextError(row.line, f"GPU{i}-GPU{j} is {word!r}; X belongs on the diagonal only")
    if word == "X":
        return LinkLevel.INTERNAL, 0
    nvlink = _NVLINK.fullmatch(word)
    if nvlink:
        return _level_behind_nvlink(row, rows[j]), int(nvlink[1])
    try:
        return LinkLevel.from_word(word), 0
    except TopologyError as error:
        raise TopologyTextError(row.line, f"GPU{i}-GPU{j}: {error}") from None


def _level_behind_nvlink(row: _Row, other: _Row) -> LinkLevel:
    """Return the PCIe level of a pair whose word is taken by its NVLinks, as near as the affinities tell."""
    both_have_numa = row.numa is not None and other.numa is not None
    same = row.numa == other.numa if both_have_numa else row.cpus == other.cpus != ""
    return LinkLevel.NODE if same else LinkLevel.SYSTEM
