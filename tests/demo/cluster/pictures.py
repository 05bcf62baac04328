# SPDX-License-Identifier: Apache-2.0
"""`make pictures`: the documentation's pictures of the web page, of the demo's cluster, in light and dark.

They are taken while a pod waits and the controller has found a move, which it looks for once a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from pathlib import Path

from gigaslice.runtime import logs
from tests.browser.driver import browser, missing
from tests.demo.cluster.stage import stage
from tests.demo.cluster.story import Story
from tests.demo.cluster.waiting import holds
from tests.demo.machine import ROOT
from tests.demo.report import Report
from tests.demo.supervise import prefix, supervise

_WIDTH, _HEIGHT = 1000, 1180
_MOST_BYTES = 200_000
_MOVES_SECONDS = 90.0  # more than the controller's pause between two searches
_NOT_INSTALLED = 3


def take(url: str, folder: Path) -> list[Path]:
    """Opens the page in both schemes; the files."""
    files = []
    with browser() as tab:
        tab.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=_WIDTH,
            height=_HEIGHT,
            deviceScaleFactor=1,
            mobile=True,
        )
        tab.devtools("Emulation.setScrollbarsHidden", hidden=True)
        for scheme in ("light", "dark"):
            tab.devtools(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            tab.open(url)
            picture = base64.b64decode(tab.devtools("Page.captureScreenshot", format="png")["data"])
            if len(picture) > _MOST_BYTES:
                raise SystemExit(
                    f"error: the {scheme} picture has {len(picture)} bytes, more than {_MOST_BYTES}"
                )
            files.append(folder / f"page-{scheme}.png")
            files[-1].write_bytes(picture)
    return files


async def play(folder: Path, named: str) -> None:
    report = Report()
    async with stage(report, named, "stand-ins") as cluster:
        story = Story(cluster, report, 0.0)
        await story.placement()
        await story.data()
        await story.nearly_full()
        report.step("waiting for the controller to look for moves, and for the agents' numbers")

        async def complete() -> bool:
            page = await story.page()
            return "in use of what is held" in page and "cordon it" in page.partition('id="moves"')[2]

        if not await holds(complete, _MOVES_SECONDS):
            raise SystemExit("error: the page shows no move, or no use of memory")
        for file in await asyncio.to_thread(take, cluster.processes.page, folder):
            report.told(f"{file}: {file.stat().st_size} bytes")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pictures", description="Takes the documentation's pictures.")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="where they are written")
    parser.add_argument("--prefix", default="", help=argparse.SUPPRESS)  # the child that takes them has one
    arguments = parser.parse_args(argv)
    if reason := missing():
        print(f"error: {reason}", file=sys.stderr)
        return _NOT_INSTALLED
    if arguments.prefix:
        logs.set_up("error", "console")
        asyncio.run(play(arguments.folder, arguments.prefix))
        return 0
    return supervise([sys.executable, "-m", "tests.demo.cluster.pictures", *argv, "--prefix", prefix()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
