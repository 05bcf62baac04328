# SPDX-License-Identifier: Apache-2.0
"""A real browser, headless, driven by chromedriver over WebDriver's HTTP: a few calls, so no library for it."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str:
    """What is not installed, as a sentence; empty where all is."""
    if not any(map(shutil.which, BROWSERS)) or not shutil.which("chromedriver"):
        return "no Chromium with chromedriver here; Debian: apt-get install chromium chromium-driver"
    return ""


class Browser:
    """One tab."""

    def __init__(self, session: str) -> None:
        self._session = session

    def call(self, method: str, path: str, body: object = None) -> Any:
        return _call(method, f"{self._session}{path}", body)

    def open(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def script(self, text: str) -> Any:
        """Runs a program in the page, whose policy does not bind the driver; what it returns."""
        return self.call("POST", "/execute/sync", {"script": text, "args": []})

    def devtools(self, command: str, **parameters: object) -> Any:
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, selector: str) -> str:
        found = self.call("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def click(self, selector: str) -> None:
        self.call("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self.call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Presses keys one after the other, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def visible(self, selector: str) -> int:
        """How many elements are shown."""
        text = json.dumps(selector)
        return int(
            self.script(
                f"return [...document.querySelectorAll({text})].filter(e => e.getClientRects().length).length"
            )
        )

    def text(self, selector: str = "body") -> str:
        """What is shown, in one call: the page may be replaced between two."""
        return str(self.script(f"return document.querySelector({json.dumps(selector)}).innerText"))

    def complaints(self) -> list[str]:
        """What the browser has written to its console since the last call."""
        return [one["message"] for one in self.call("POST", "/se/log", {"type": "browser"})]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Starts a browser with nothing remembered."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url)
            options = {
                "binary": program,
                "args": [*_FLAGS, f"--user-data-dir={folder}", "--window-size=1250,900"],
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = _call("POST", f"{url}/session", {"capabilities": {"alwaysMatch": wanted}})
            session = f"{url}/session/{made['sessionId']}"
            try:
                yield Browser(session)
            finally:
                _call("DELETE", session)
        finally:
            driver.terminate()
            driver.wait(20)


def _wait(url: str) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError):
            if _call("GET", f"{url}/status")["ready"]:
                return
        time.sleep(0.1)
    raise TimeoutError("chromedriver does not answer")


def _call(method: str, url: str, body: object = None) -> Any:
    data = json.dumps(body).encode() if method == "POST" else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()[:500]) from None
