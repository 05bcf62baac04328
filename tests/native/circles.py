# SPDX-License-Identifier: Apache-2.0
"""Which file of the library calls which, and which includes which: a layer is one as long as nothing goes round.

A file is its name without the ending, so a source and its header are one; `x_priv.h` belongs to `x`. Calls are read
from the compiled objects, whatever header declares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.native.check_library import NATIVE, tool

Graph = dict[str, set[str]]


def stem(name: str) -> str:
    """The file that a source, header or object belongs to."""
    return name.partition(".")[0].removesuffix("_priv")


def includes(folder: Path) -> Graph:
    """File -> files of the same folder whose headers it includes."""
    sources = sorted(folder.glob("*.[ch]"))
    graph: Graph = {stem(source.name): set() for source in sources}
    for source in sources:
        for header in re.findall(r'#include "(?:\w+/)*(\w+\.h)"', source.read_text()):
            if stem(header) in graph and (folder / header).exists():
                graph[stem(source.name)].add(stem(header))
    return graph


def calls(folder: Path, objects: Path) -> Graph:
    """File -> files of the same folder whose functions or variables it uses; OBJECTS as native.mk makes them."""
    defined: dict[str, str] = {}
    used: dict[str, set[str]] = {}
    for source in sorted(folder.glob("*.c")):
        used.setdefault(stem(source.name), set())
        for line in tool("gcc-nm", str(objects / folder.name / f"{source.name}.o")).splitlines():
            *_, kind, symbol = line.split()
            if kind == "U":
                used[stem(source.name)].add(symbol)
            elif kind.isupper():
                defined[symbol] = stem(source.name)
    return {
        file: {defined[symbol] for symbol in symbols if symbol in defined} for file, symbols in used.items()
    }


def circles(graph: Graph) -> Iterator[list[str]]:
    """Sets of files of which each leads to every other one."""
    reach = {file: reachable(graph, file) for file in graph}
    seen: set[str] = set()
    for file in sorted(graph):
        circle = sorted(other for other in reach[file] if other != file and file in reach.get(other, set()))
        if circle and file not in seen:
            seen.update(circle)
            yield [file, *circle]


def reachable(graph: Graph, start: str) -> set[str]:
    """All files that START leads to."""
    found: set[str] = set()
    edge = [start]
    while edge:
        new = graph.get(edge.pop(), set()) - found
        found |= new
        edge += new
    return found


def folder(name: str) -> Path:
    """A folder of the library."""
    return NATIVE / name
