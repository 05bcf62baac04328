# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of this node are joined, as placement sees it: the access-cost tree of each pool of equal GPUs.

Reads the hardware (or an inventory file) and touches no state, so it runs beside an agent or without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import count

from agent.inventory.source import Inventory
from gigaslice.core.model import NodeState
from gigaslice.core.placement.tree import Inner, Tree, build_tree

__all__ = ["FORMATS", "Drawing", "as_dot", "as_svg", "as_text", "draw"]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A node of a drawn tree: a line of text and what hangs below it. `gpu` is the position of a leaf, else None."""

    label: str
    children: tuple[Drawing, ...] = ()
    gpu: int | None = None


def draw(inventory: Inventory) -> tuple[Drawing, ...]:
    """One tree per pool, in pool order."""
    state = NodeState.build(inventory.gpus, inventory.topology)
    return tuple(_pool(state, build_tree(state.topology, pool.members)) for pool in state.pools())


def _pool(state: NodeState, tree: Tree) -> Drawing:
    gpus = [state.gpus[position] for position in tree.members]
    title = f"{gpus[0].model}  {len(gpus)} × {gpus[0].slices} slices"
    root: Inner | int = tree.inner[-1] if tree.inner else 0
    return Drawing(title, (_below(state, tree, root),))


def _below(state: NodeState, tree: Tree, node: Inner | int) -> Drawing:
    if isinstance(node, int):
        gpu = state.gpus[tree.members[node]]
        words = [f"GPU{gpu.index}", gpu.uuid, f"access cost {tree.access_cost[node]}"]
        words += [f"NUMA {gpu.numa_node}"] if gpu.numa_node is not None else []
        words += [gpu.pci_bus_id] if gpu.pci_bus_id else []
        return Drawing("  ".join(words + ([] if gpu.healthy else ["unhealthy"])), gpu=tree.members[node])
    cost = "costs differ (mesh)" if node.cost is None else f"cost {node.cost}"
    return Drawing(f"{node.kind}  {cost}", tuple(_below(state, tree, child) for child in node.children))


def as_text(trees: tuple[Drawing, ...]) -> str:
    """For a terminal: one line per node of the trees, joined by box-drawing characters."""

    def lines(node: Drawing, lead: str) -> list[str]:
        drawn = []
        for number, child in enumerate(node.children):
            last = number == len(node.children) - 1
            drawn.append(f"{lead}{'└─ ' if last else '├─ '}{child.label}")
            drawn += lines(child, lead + ("   " if last else "│  "))
        return drawn

    return "\n".join("\n".join([tree.label, *lines(tree, "")]) for tree in trees)


def as_dot(trees: tuple[Drawing, ...]) -> str:
    """For Graphviz: a graph per invocation, a tree per pool."""
    numbers = count()
    out = ["graph topology {", "  node [shape=box, fontname=monospace];"]

    def add(node: Drawing) -> str:
        name = f"n{next(numbers)}"
        text = node.label.replace("\\", "\\\\").replace('"', '\\"').replace("  ", "\\n")
        out.append(f'  {name} [label="{text}"];')
        out.extend(f"  {name} -- {below};" for below in [add(child) for child in node.children])
        return name

    for tree in trees:
        add(tree)
    return "\n".join([*out, "}"])


_COLUMN, _ROW, _BOX, _LINE = 190, 96, 174, 15  # pixels


def as_svg(trees: tuple[Drawing, ...]) -> str:
    """A picture that needs no other program: leaves side by side, every node above the middle of its children."""
    shapes: list[str] = []
    column = count()

    def place(node: Drawing, depth: int) -> tuple[float, int]:
        """Draws NODE and all below it; where its middle is, and how deep it reaches."""
        below = [place(child, depth + 1) for child in node.children]
        y = depth * _ROW + 8
        x = sum(middle for middle, _ in below) / len(below) if below else next(column) * _COLUMN + _COLUMN / 2
        words = node.label.split("  ")
        height = _LINE * len(words) + 10
        shapes.extend(
            f'<path d="M{x:g} {y + height} V{y + _ROW - 6} H{middle:g} V{y + _ROW}" fill="none" stroke="#888"/>'
            for middle, _ in below
        )
        shapes.append(
            f'<rect x="{x - _BOX / 2:g}" y="{y}" width="{_BOX}" height="{height}" rx="4" fill="#eef" stroke="#446"/>'
        )
        shapes.extend(
            f'<text x="{x:g}" y="{y + _LINE * (line + 1)}" text-anchor="middle">{escape(_short(word))}</text>'
            for line, word in enumerate(words)
        )
        return x, max([depth, *(reach for _, reach in below)])

    deepest = max((place(tree, 0)[1] for tree in trees), default=0)
    width, height = next(column) * _COLUMN, (deepest + 1) * _ROW + 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="11">'
    )
    return "\n".join([head, *shapes, "</svg>"])


def _short(word: str) -> str:
    """What fits into a box; a UUID is told apart by its beginning."""
    return word if len(word) <= 24 else word[:23] + "…"


FORMATS = {"text": as_text, "dot": as_dot, "svg": as_svg}
