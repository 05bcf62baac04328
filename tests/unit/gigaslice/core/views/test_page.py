# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

from gigaslice.core.views.cluster_picture import (
    ClusterPicture,
    HolderView,
    LinkGroup,
    NodeView,
    WaitingPodView,
)
from gigaslice.core.views.page import HEADERS, PageQuery, render
from tests.unit.gigaslice.core.views.pictures import EVIL, GIB, NOW, cluster, gpu

VOID = {"meta", "link", "input", "br"}


ATTRIBUTES = {
    "aria-hidden", "aria-label", "aria-labelledby", "autocomplete", "charset", "checked", "class", "content", "d",
    "data-text", "datetime", "fill", "fill-opacity", "font-size", "for", "height", "hidden", "href", "id", "lang",
    "method", "name", "opacity", "open", "patterntransform", "patternunits", "placeholder", "pointer-events",
    "preserveaspectratio", "rel", "role", "rx", "scope", "stroke", "stroke-opacity", "stroke-width", "tabindex",
    "text-anchor", "title", "type", "value", "viewbox", "width", "x", "y",
}  # fmt: skip
"""All that the page has: a name of another that got out of its quotes would add one."""


class _Reader(HTMLParser):
    """Checks that elements end where they should, and keeps what a test asks about."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.words.append(data)


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    assert not reader.open
    return reader


def test_the_page_is_well_formed_and_its_ids_are_unique() -> None:
    reader = read(render(cluster(), now=NOW))
    assert len(set(reader.ids)) == len(reader.ids)
    text = " ".join(reader.words)
    assert re.search(r"as of\s+06:00:00 UTC", text)
    for word in ("gpu-node-00", "team-a/trainer-0", "would help: ask for 6 GiB", "nvidia.h100", "frees GPU3"):
        assert word in text


def test_nothing_is_loaded_and_nothing_runs_but_what_the_headers_name() -> None:
    page = render(cluster())
    reader = read(page)
    assert not [one for one in reader.attributes if one[1].startswith("on") or one[1] in ("style", "src")]
    links = [value for _, name, value in reader.attributes if name == "href"]
    assert all(link.startswith(("#", "?", "data:,")) for link in links)
    policy = HEADERS["Content-Security-Policy"]
    for tag in ("style", "script"):
        (body,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
        assert "'sha256-" + b64encode(sha256(body.encode()).digest()).decode() + "'" in policy


def test_names_of_others_are_text_and_nothing_else() -> None:
    plain = cluster()
    evil = replace(
        plain,
        nodes=(
            NodeView(
                EVIL,
                (gpu(0, HolderView(EVIL, EVIL, 3), unhealthy=EVIL, model=EVIL),),
                (LinkGroup(EVIL, (0,)),),
                problem=EVIL,
            ),
        ),
        waiting=(WaitingPodView(EVIL, EVIL, EVIL, EVIL, EVIL, (EVIL, EVIL), (EVIL, EVIL)),),
        classes=tuple(replace(one, name=EVIL, selects=EVIL, problem=EVIL) for one in plain.classes),
        moves=(EVIL,),
        note=EVIL,
    )
    page = render(evil, PageQuery(EVIL), NOW)
    reader = read(page)
    everywhere = read(render(replace(evil, note=""), now=NOW))
    assert len(reader.words) > 0 and {name for _, name, _ in everywhere.attributes} <= ATTRIBUTES
    page += render(evil, now=NOW)
    assert "<b>&" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page


def test_the_filter_is_of_the_whole_cluster() -> None:
    view = cluster(nodes=250)
    assert render(view).count("<article") == 100
    last = render(view, PageQuery("gpu-node-249"))
    assert last.count("<article") == 1
    assert "Nodes (1 of 251)" in last
    assert 'value="gpu-node-249"' in last


def test_all_nodes_are_on_some_page_once() -> None:
    view = cluster(nodes=250)
    found = []
    for page in range(3):
        found += re.findall(r"<h3>(\S+)", render(view, PageQuery("", page)))
    assert found == [node.name for node in view.nodes]
    assert render(view, PageQuery("", 99)) == render(view, PageQuery("", 2))


def test_a_filter_finds_pods_and_namespaces() -> None:
    one = NodeView("a", (gpu(0, HolderView("team", "job-7", 3)),))
    view = ClusterPicture((one, NodeView("b", (gpu(1),))))
    assert render(view, PageQuery("JOB-7 team")).count("<article") == 1
    assert render(view, PageQuery("job-8")).count("<article") == 0


def test_a_query_that_makes_no_sense_is_none() -> None:
    assert PageQuery.parse({"page": "-1", "q": " a  b "}) == PageQuery("a b")
    assert PageQuery.parse({"page": "٣"}) == PageQuery()
    assert PageQuery.parse({"page": "9" * 5000}) == PageQuery()
    assert PageQuery.parse({"page": "2"}) == PageQuery("", 2)
    assert len(PageQuery.parse({"q": "x" * 5000}).text) == 200


def test_an_empty_cluster_says_so() -> None:
    text = " ".join(read(render(ClusterPicture())).words)
    assert "No node reports a GPU." in text
    assert "No pod holds any" in text
    assert "no move of pods would free a whole GPU" in text


def test_a_page_of_a_large_cluster_is_small_enough_for_a_browser() -> None:
    assert len(render(cluster(nodes=1000))) < 3 << 20


def test_one_of_a_kind_is_said_as_one():
    holder = HolderView("team", "p", 1)
    one = NodeView("only", (gpu(0, holder, slices=1),))
    page = " ".join(read(render(ClusterPicture((one,)), PageQuery(), NOW)).words)
    text = re.sub(r"\s+", " ", page)
    assert "1 node " in text and "1 GPU " in text and "Nothing is free on any node" in text
    assert not re.search(r"\b1 (whole |unhealthy |partly used )?(node|GPU|slice|pod)s\b", text), text


def waiting(**fields) -> str:
    pod = WaitingPodView("team", "p", "2026-11-23T04:12:09Z", "8 GiB", "waits: no node has what it asks for")
    return " ".join(read(render(ClusterPicture(waiting=(replace(pod, **fields),)), now=NOW)).words)


def test_a_waiting_pod_has_its_age_and_the_nearest_reason_on_its_line() -> None:
    text = waiting(details=("a: 6 + 6 GiB free", "b: not ready"), suggestions=("ask for 6 GiB", "wait"))
    line = text[text.index("team/p") : text.index("2 more")]
    assert "107 min" in line
    assert "04:12" not in line
    assert "a: 6 + 6 GiB free (the nearest of 2 kinds of nodes)" in line
    assert "would help: ask for 6 GiB" in line
    assert "b: not ready" in text[text.index("2 more") :]
    assert "waits: no node has what it asks for" in waiting()
    assert (
        "more"
        not in waiting(details=("a: 6 GiB free",), suggestions=("ask for 6 GiB",)).partition("Moves")[0]
    )


def test_what_is_used_stands_beside_what_is_held_or_is_said_to_be_unmeasured() -> None:
    held = HolderView("team", "job-7", 8, 0, 3 * GIB)
    seen = NodeView("seen", (gpu(0, held, HolderView("team", "job-8", 2, 0, 0)),))
    unseen = NodeView("unseen", (gpu(1, HolderView("team", "job-9", 4)),))
    text = " ".join(read(render(ClusterPicture((seen, unseen)))).words)
    assert "3 GiB  in use of what is held (of 10 GiB measured)" in text
    assert "10 GiB of 12 GiB held, 3 GiB in use" in text
    assert "4 GiB of 12 GiB held, use not measured" in text
    assert "job-7 on seen: 8 GiB, 3 GiB in use, 1 GPU" in text
    assert "job-8 on seen: 2 GiB, 0 B in use, 1 GPU" in text
    assert "job-9 on unseen: 4 GiB, not measured, 1 GPU" in text
    nowhere = " ".join(read(render(ClusterPicture((unseen,)))).words)
    assert "not measured  what pods use of that" in nowhere
    assert "page-usage is off, or no agent answers" in nowhere


def test_the_legend_names_what_is_on_the_page() -> None:
    links = (LinkGroup("NVL+PIX", (0, 1)), LinkGroup("NODE", (0, 2)))
    gpus = (gpu(0, HolderView("team-b", "p", 1)), gpu(1, HolderView("team-a", "q", 1)), gpu(2))
    page = render(ClusterPicture((NodeView("a", gpus, links),)))
    legend = page[page.index('<details id="legend"') : page.index("</dl>")]
    assert "<dt>NODE</dt><dd>GPUs in one NUMA node</dd>" in legend
    assert "<dt>NVL+PIX</dt><dd>GPUs joined by NVLink, behind one PCIe switch</dd>" in legend
    assert legend.index("NVL+PIX") < legend.index("NODE")
    assert legend.index("team-a") < legend.index("team-b")
    assert "PXB" not in legend


def test_near_gpus_stand_in_a_frame_and_every_other_link_is_written() -> None:
    links = (LinkGroup("PIX", (1, 2)), LinkGroup("NVL+PIX", (0, 3)), LinkGroup("NODE", (0, 1, 2, 3)))
    page = render(ClusterPicture((NodeView("a", tuple(gpu(n) for n in range(4)), links),)))
    card = page[page.index("<article") : page.index("</article>")]
    assert re.findall(r'aria-label="(GPU\d)', card) == ["GPU0", "GPU1", "GPU2", "GPU3"]
    frame = card[card.index('<li class="near">') :]
    assert 'aria-label="PIX: GPUs behind one PCIe switch"' in frame
    assert frame[: frame.index("</ul>")].count('role="img"') == 2
    assert "NVL+PIX: GPU0 and GPU3; NODE: GPU0 to GPU3" in card


def test_tables_have_captions_and_headings() -> None:
    page = render(cluster(), now=NOW)
    tables = re.findall(r"<table>(.*?)</table>", page, re.S)
    assert len(tables) > 8
    for one in tables:
        assert "<caption" in one
        columns = len(re.findall(r'<th scope="col"', one))
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", one[one.index("<tbody>") :], re.S):
            assert row.startswith('<th scope="row">')
            assert row.count("<td") == columns - 1


def test_what_links_lead_to_is_there() -> None:
    reader = read(render(cluster()))
    targets = [value[1:] for tag, name, value in reader.attributes if name == "href" and value[:1] == "#"]
    assert len(targets) == 6
    assert set(targets) <= set(reader.ids)
    labelled = [value for _, name, value in reader.attributes if name == "aria-labelledby"]
    assert set(labelled) <= set(reader.ids)
