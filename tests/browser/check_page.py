# SPDX-License-Identifier: Apache-2.0
"""The web page in a real browser: `make test-browser`. Needs Chromium; skipped where there is none."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import pytest

from gigaslice.core.views.cluster_picture import ClusterPicture, HolderView, NodeView
from gigaslice.core.views.page import HEADERS, PageQuery, render
from tests.browser.driver import Browser, browser, missing
from tests.unit.gigaslice.core.views.pictures import NOW, cluster, gpu

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
EVIL = "<img src=x onerror='window.hurt=1'><script>window.hurt=1</script>\"'&"
TAB, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"


class Site:
    """The page as the controller serves it. view may be changed; down: no answer is one."""

    def __init__(self) -> None:
        self.view = cluster()
        self.down = False
        site = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Says nothing."""

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = PageQuery.parse(dict(parse_qsl(url.query)))
                body = render(site.view, query, NOW).encode()
                self.send_response(503 if site.down else 200)
                for name, value in HEADERS.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/"


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture
def site():
    found = Site()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def page(chromium: Browser, site: Site):
    chromium.devtools("Emulation.setScriptExecutionDisabled", value=False)
    chromium.devtools("Emulation.setEmulatedMedia", features=[])
    chromium.open(site.url)
    yield chromium
    assert [one for one in chromium.complaints() if "503" not in one] == []


def eventually(check, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_it_shows_the_cluster(page: Browser) -> None:
    text = page.text()
    for word in (
        "gpu-node-00",
        "team-a/trainer-0",
        "Who holds what",
        "nvidia.h100",
        "whole GPUs are free",
        "107 min",
    ):
        assert word in text
    assert page.visible("article .gpus svg") == 40


def test_the_filter_follows_typing_and_escape_ends_it(page: Browser) -> None:
    page.press("/")
    page.press(*"gpu-node-03")
    assert page.visible("article") == 1
    assert "shown" in page.text("#said")
    page.press(ESCAPE)
    assert page.visible("article") == 7


def test_it_can_be_used_by_keyboard(page: Browser) -> None:
    page.press(TAB)
    assert page.script("return document.activeElement.className") == "skip"
    page.press(ENTER, TAB)
    assert page.script("return document.activeElement.closest('section').id") == "waiting"
    page.script("document.querySelector('article summary').focus()")
    assert "Held by" not in page.text("article")
    page.press(ENTER)
    assert "Held by" in page.text("article")


def test_the_focus_is_where_it_was_after_a_refresh(page: Browser, site: Site) -> None:
    """A reader of the screen starts again from the top where the focus is lost."""
    page.script("document.querySelectorAll('article summary')[1].focus()")
    page.script("window.other = document.querySelector('#classes table')")
    site.view = replace(site.view, nodes=(gone := site.view.nodes)[:1] + gone[1:3], moves=("a new move",))
    eventually(lambda: "a new move" in page.text("main"))
    assert page.script("return document.activeElement.tagName") == "SUMMARY"
    assert page.script("return document.activeElement.parentElement.id") == "node-gpu-node-01"
    assert page.script("return window.other.isConnected"), "what has not changed stays as it was"


def test_what_is_said_is_named_for_readers_of_the_screen(page: Browser) -> None:
    tree = page.devtools("Accessibility.getFullAXTree")["nodes"]
    names = [
        (one["role"]["value"], one.get("name", {}).get("value", "")) for one in tree if not one["ignored"]
    ]
    assert ("table", "Waiting pods") in names or ("LayoutTable", "Waiting pods") in names
    assert ("rowheader", "team-a/trainer-0") in names
    pictures = [name for role, name in names if role == "image"]
    assert len(pictures) == 41
    assert all(pictures)
    unnamed = [
        one for one in names if one[0] in ("textbox", "searchbox", "button", "link", "region") and not one[1]
    ]
    assert unnamed == []


def test_it_refreshes_itself_and_keeps_what_is_open_and_filtered(page: Browser, site: Site) -> None:
    page.click("#holders summary")
    page.type("#q", "team-a trainer")
    assert page.visible("article") == 0
    site.view = replace(site.view, moves=("a new move",), nodes=site.view.nodes[:4])
    eventually(lambda: "a new move" in page.text("main"))
    page.press(ESCAPE)
    assert page.visible("#holders li") > 1
    page.type("#q", "team-a trainer")
    assert page.visible("article") == 0
    assert page.script("return document.activeElement.id") == "q"


def test_it_says_when_it_is_not_refreshed_and_recovers(page: Browser, site: Site) -> None:
    site.down = True
    eventually(lambda: "not refreshed" in page.text("#said"))
    site.down = False
    eventually(lambda: "not refreshed" not in page.text("#said"))


def test_a_user_may_stop_the_refresh(page: Browser, site: Site) -> None:
    page.click("#live")
    site.view = replace(site.view, moves=("a new move",))
    time.sleep(12)
    assert "a new move" not in page.text("main")


def test_names_of_others_do_nothing(page: Browser, site: Site) -> None:
    one = gpu(0, HolderView(EVIL, EVIL, 6), unhealthy=EVIL, model=EVIL)
    site.view = ClusterPicture((NodeView(EVIL, (one,), problem=EVIL),), (), (), (EVIL,), EVIL)
    page.open(site.url + "?q=%3Cscript%3E")
    assert page.script("return window.hurt === undefined && document.images.length === 0")
    assert EVIL in page.text("#moves ul")


def test_without_a_program_the_filter_is_a_form(page: Browser, site: Site) -> None:
    page.devtools("Emulation.setScriptExecutionDisabled", value=True)
    page.open(site.url)
    assert page.visible("#live") == 0
    page.type("#q", "gpu-node-03" + ENTER)
    eventually(lambda: page.visible("article") == 1)
    assert "Nodes (1 of 7)" in page.text("main")


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_it_is_light_or_dark_as_the_user_likes(page: Browser, scheme: str, dark: bool) -> None:
    page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    paper = page.script("return getComputedStyle(document.body).backgroundColor")
    red, *_ = (int(part) for part in paper.removeprefix("rgb(").removesuffix(")").split(","))
    assert (red < 80) is dark


@pytest.mark.parametrize("width", [320, 420, 1250])
def test_every_gpu_can_be_seen_in_a_narrow_window(page: Browser, width: int) -> None:
    page.devtools(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
    )
    try:
        assert page.script("return document.documentElement.scrollWidth") <= width
        edges = page.script(
            "return [...document.querySelectorAll('article .gpus svg')].map(e => e.getBoundingClientRect())"
            ".map(r => [r.left, r.right, r.width])"
        )
        assert len(edges) == 40
        assert all(left >= 0 and right <= width and wide > 100 for left, right, wide in edges)
    finally:
        page.devtools("Emulation.clearDeviceMetricsOverride")


def test_a_thousand_nodes_are_filtered_quickly(page: Browser, site: Site) -> None:
    site.view = cluster(nodes=1000)
    page.open(site.url)
    assert page.visible("article") == 100
    page.type("#q", "gpu-node-42")
    assert page.visible("article") == 1
    page.click("form button")
    eventually(lambda: "gpu-node-429" in page.text("main"))
