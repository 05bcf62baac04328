# SPDX-License-Identifier: Apache-2.0
"""The drawn tree: what it says, in a form that each consumer can read."""

import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from agent.commands import topology_drawing
from agent.inventory.source import Inventory
from gigaslice.core.model import Topology
from gigaslice_cli import frame
from tests.fakes.gpus import make_gpu, pairs_topology
from tests.fakes.nodes import uuid

NODE = 40


def inventory(models=("NVIDIA L4",) * 4, levels=None):
    """Four GPUs in two pairs on two sockets, unless told otherwise."""
    gpus = tuple(
        make_gpu(n, model=model, numa_node=n // 2, pci_bus_id=f"00000000:{n:02x}:00.0")
        for n, model in enumerate(models)
    )
    pairs = pairs_topology(len(models), sockets=len(models))
    return Inventory(gpus, Topology.build(levels) if levels else pairs)


def test_the_text_has_a_line_for_every_node_and_the_costs_of_the_tree():
    lines = topology_drawing.as_text(topology_drawing.draw(inventory())).splitlines()
    assert lines[0] == "NVIDIA L4  4 × 24 slices"
    assert lines[1] == "└─ SYS  cost 50"
    assert lines[2] == "   ├─ PIX  cost 10"
    assert lines[3].startswith(f"   │  ├─ GPU0  {uuid(0)}  access cost 110  NUMA 0")
    assert [
        re.search(r"GPU\d ", line)[0].strip() for line in lines if uuid(0)[:4] in line and "access" in line
    ] == [
        "GPU0",
        "GPU1",
        "GPU2",
        "GPU3",
    ]


def test_each_model_has_its_own_tree_and_an_unhealthy_gpu_says_so():
    mixed = inventory(("NVIDIA L4", "NVIDIA H200", "NVIDIA L4"), [[0, 50, 40], [50, 0, 50], [40, 50, 0]])
    unhealthy = Inventory((*mixed.gpus[:2], make_gpu(2, healthy=False)), mixed.topology)
    text = topology_drawing.as_text(topology_drawing.draw(unhealthy))
    assert text.count("slices") == 2
    assert uuid(2) in next(line for line in text.splitlines() if line.endswith("unhealthy"))


def test_a_mesh_has_costs_that_differ():
    links = [[0, 2, 1, 0], [2, 0, 0, 1], [1, 0, 0, 2], [0, 1, 2, 0]]
    mesh = Inventory(
        inventory().gpus, Topology.build([[0 if i == j else NODE for j in range(4)] for i in range(4)], links)
    )
    assert "costs differ (mesh)" in topology_drawing.as_text(topology_drawing.draw(mesh))


def test_the_picture_is_xml_with_a_box_and_a_line_for_every_node():
    picture = ElementTree.fromstring(topology_drawing.as_svg(topology_drawing.draw(inventory())))
    space = "{http://www.w3.org/2000/svg}"
    boxes = picture.findall(f"{space}rect")
    assert len(boxes) == 1 + 3 + 4
    assert len(picture.findall(f"{space}path")) == len(boxes) - 1
    places = {(box.get("x"), box.get("y")) for box in boxes}
    assert len(places) == len(boxes), "boxes lie upon each other"
    width, height = float(picture.get("width")), float(picture.get("height"))
    assert all(float(b.get("x")) + float(b.get("width")) <= width for b in boxes)
    assert all(float(b.get("y")) + float(b.get("height")) <= height for b in boxes)


def test_the_graph_is_well_formed():
    text = topology_drawing.as_dot(topology_drawing.draw(inventory()))
    names = set(re.findall(r"^  (n\d+) \[", text, re.M))
    edges = re.findall(r"^  (n\d+) -- (n\d+);$", text, re.M)
    assert len(names) == 8 and len(edges) == 7
    assert {end for edge in edges for end in edge} == names
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=text, text=True, check=True, capture_output=True)


@pytest.fixture
def two_gpus(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "".join(["gpus:\n", *(f"  - {{uuid: {uuid(n)}, model: A & B <1>, memory: 24GiB}}\n" for n in (0, 1))])
    )
    return str(path)


@pytest.mark.parametrize("form", ["text", "dot", "svg"])
def test_the_command(form, two_gpus, capsys):
    assert frame.main(["topology", "--inventory", two_gpus, "--slice", "2GiB", "--format", form]) == 0
    out, _ = capsys.readouterr()
    assert "2 × 12 slices" in out
    if form == "svg":
        ElementTree.fromstring(out)


def test_a_missing_inventory_is_one_line(capsys):
    assert frame.main(["topology", "--inventory", "/nowhere/x.yaml"]) != 0
    assert capsys.readouterr().err.count("\n") == 1
