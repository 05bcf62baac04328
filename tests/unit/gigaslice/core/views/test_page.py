from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

from gigaslice.core.views.cluster_picture import ClusterPicture, HolderView, NodeView
from gigaslice.core.views.page import HEADERS, PageQuery, render
from tests.unit.gigaslice.core.views.pictures import EVIL, cluster, gpu

VOID = {"meta", "link", "input", "br", "tr", "td", "th"}


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
    reader = read(render(cluster(), at="2026-11-23 05:20Z"))
    assert len(set(reader.ids)) == len(reader.ids)
    text = " ".join(reader.words)
    assert "as of 2026-11-23 05:20Z" in text
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
            NodeView(EVIL, (gpu(0, HolderView(EVIL, EVIL, 3), unhealthy=EVIL, model=EVIL),), problem=EVIL),
        ),
        waiting=tuple(replace(one, pod=EVIL, asks=EVIL, why=EVIL, details=(EVIL,)) for one in plain.waiting),
        classes=tuple(replace(one, name=EVIL, selects=EVIL, problem=EVIL) for one in plain.classes),
        moves=(EVIL,),
        note=EVIL,
    )
    page = render(evil, PageQuery(EVIL), EVIL)
    read(page)
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
    assert "No pod holds any" in text
    assert "no move of pods would free a whole GPU" in text


def test_a_page_of_a_large_cluster_is_small_enough_for_a_browser() -> None:
    assert len(render(cluster(nodes=1000))) < 3 << 20


def test_one_of_a_kind_is_said_as_one():
    holder = HolderView("team", "p", 1)
    one = NodeView("only", (gpu(0, holder, slices=1),))
    page = " ".join(read(render(ClusterPicture((one,)), PageQuery(), "now")).words)
    text = re.sub(r"\s+", " ", page)
    assert (
        "1 node " in text and "1 GPU " in text and "0 whole GPUs free" in text and "0 of 1 slice free" in text
    )
    assert not re.search(r"\b1 (whole |unhealthy |partly used )?(node|GPU|slice|pod)s\b", text), text
