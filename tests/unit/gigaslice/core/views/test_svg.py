# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET

from gigaslice.core.views.cluster_picture import ClusterPicture, HolderView, LinkGroup, NodeView
from gigaslice.core.views.svg import cluster_svg, colour, gpu_svg, memory_svg
from tests.unit.gigaslice.core.views.pictures import EVIL, GIB, cluster, gpu

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str, tag: str = "text") -> list[str]:
    return [one.text or "" for one in ET.fromstring(svg).iter(SVG + tag)]


def drawn(*gpus, **more) -> str:
    return cluster_svg(ClusterPicture((NodeView("node-a", gpus, **more),)))


def test_a_picture_is_whole_xml_with_a_title_and_a_description() -> None:
    root = ET.fromstring(cluster_svg(cluster()))
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "title desc"
    assert {one.get("id") for one in root if one.tag in (SVG + "title", SVG + "desc")} == {"title", "desc"}
    assert "at most" in (root.findtext(SVG + "desc") or "")


def test_every_node_and_gpu_is_there_with_what_is_free() -> None:
    found = texts(drawn(gpu(0, HolderView("team", "job-7", 8)), gpu(1)))
    assert "GPU0" in found
    assert "GPU1" in found
    assert "4 GiB free" in found
    assert "12 GiB free" in found
    assert any(text.startswith("node-a · 2 × L4 · 8 GiB of 24 GiB held") for text in found)


def test_models_stand_at_each_gpu_only_where_a_node_has_several() -> None:
    assert "GPU1 T4" in texts(drawn(gpu(0), gpu(1, model="Tesla T4")))


def test_a_slice_is_as_wide_as_it_is_large() -> None:
    svg = drawn(gpu(0, HolderView("team", "a", 3), HolderView("team", "b", 9)))
    fills = {colour("team", "a"): 0.0, colour("team", "b"): 0.0}
    for one in ET.fromstring(svg).iter(SVG + "rect"):
        if one.get("fill") in fills:
            fills[one.get("fill")] = float(one.get("width"))
    assert fills[colour("team", "b")] == 3 * fills[colour("team", "a")] > 0


def test_more_than_a_gpu_has_stays_in_its_box() -> None:
    svg = drawn(gpu(0, HolderView("team", "a", 8), HolderView("team", "b", 8)))
    widths = [
        float(one.get("width"))
        for one in ET.fromstring(svg).iter(SVG + "rect")
        if "hsl" in one.get("fill", "")
    ]
    bar, boxes = widths[0], widths[1:]
    assert sum(boxes) <= 104
    assert bar > 0


def test_unhealthy_gpus_are_hatched_and_say_why() -> None:
    svg = drawn(gpu(0, unhealthy="Xid 79"), gpu(1))
    assert svg.count('fill="url(#unhealthy)"') == 2  # the box, and its part of the bar
    assert "Xid 79" in texts(svg)
    assert "url(#unhealthy)" not in drawn(gpu(1))


def test_names_of_others_are_text_and_nothing_else() -> None:
    svg = drawn(gpu(0, HolderView(EVIL, EVIL, 12), unhealthy=EVIL, model=EVIL))
    ET.fromstring(svg)
    assert "<b>" not in svg
    assert "\x1b" not in svg
    assert "\u202e" not in svg


def test_what_keeps_pods_away_is_said() -> None:
    svg = drawn(gpu(0), schedulable=False, ready=False)
    assert any("cordoned · not ready" in text for text in texts(svg))


def test_links_are_brackets_of_those_that_stand_side_by_side() -> None:
    pairs = (LinkGroup("PIX", (0, 1)), LinkGroup("NVL", (0, 2)), LinkGroup("NODE", (0, 1, 2)))
    found = texts(drawn(gpu(0), gpu(1), gpu(2), links=pairs))
    assert found.count("PIX") == 1
    assert found.count("NODE") == 1
    assert "NVL" not in found  # GPU1 stands between them


def test_equal_clusters_give_equal_pictures_in_every_process() -> None:
    program = (
        "from tests.unit.gigaslice.core.views.pictures import cluster;"
        "from gigaslice.core.views.svg import cluster_svg;"
        "print(cluster_svg(cluster()))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert other.stdout.rstrip("\n") == cluster_svg(cluster())


def test_a_namespace_has_one_hue() -> None:
    assert colour("team", "a").split()[0] == colour("team", "b").split()[0]
    assert len({colour("team", f"job-{number}") for number in range(40)}) > 2


def test_many_gpus_of_a_node_go_into_several_rows() -> None:
    svg = drawn(*map(gpu, range(16)))
    lines = {one.get("y") for one in ET.fromstring(svg).iter(SVG + "rect") if one.get("width") == "104"}
    assert len(lines) == 2


def test_what_is_in_use_is_a_strip_as_wide_as_its_part() -> None:
    half = HolderView("team", "a", 6, 0, 3 * GIB)
    beyond = HolderView("team", "b", 6, 0, 99 * GIB)
    svg = gpu_svg(gpu(0, half, beyond, HolderView("team", "c", 0)), named=False)
    root = ET.fromstring("<g xmlns='http://www.w3.org/2000/svg'>" + svg + "</g>")
    strips = [float(one.get("width")) for one in root.iter(SVG + "rect") if one.get("fill") == "#000"]
    assert strips == [26, 52]  # a quarter of the box; and no more than the pod's own half
    assert "team/a: 6 GiB, 3 GiB in use" in (root[0].get("aria-label") or "")
    assert "#000" not in gpu_svg(gpu(0, HolderView("team", "a", 6)), named=False)


def test_an_empty_cluster_is_a_picture_too() -> None:
    ET.fromstring(cluster_svg(ClusterPicture()))


def test_the_bar_adds_up() -> None:
    view = ClusterPicture((NodeView("a", (gpu(0, HolderView("t", "p", 6)), gpu(1), gpu(2, unhealthy="x"))),))
    sums = view.sums()
    assert (sums.held_bytes, sums.free_partly_bytes, sums.free_whole_bytes) == (6 * GIB, 6 * GIB, 12 * GIB)
    assert sums.unhealthy_bytes == 12 * GIB
    assert sums.fragmentation == 1 / 3
    root = ET.fromstring("<g xmlns='http://www.w3.org/2000/svg'>" + memory_svg(sums, 360) + "</g>")
    parts = [float(one.get("width")) for one in root.iter(SVG + "rect") if one.get("fill") != "none"]
    assert parts == [60, 120, 60, 120]
