# SPDX-License-Identifier: Apache-2.0
"""The commands of ours on the pages: which are run literally from an installed wheel, and why the others are not.

Taken from the blocks of README.md and docs/*.md, so that a command that is added has to be run or explained here
(tests/packaging/test_page_commands.py). `make test-dist` runs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"(?ms)^```(?:sh|ini)\n(.*?)^```$")
_OURS = re.compile(
    r"(?:^|[\s/=|])(?:vcuda|gigaslice) [a-z]|LD_PRELOAD=|VCUDA_MEMORY_LIMIT=|pip (?:un)?install"
)

# What commands need that a clean environment has not: by how they begin.
ELSEWHERE = {
    "kubectl ": "a cluster; the commands in it are the image's",
    "docker run ": "docker",
    "podman run ": "podman",
    "gigaslice dataset prefetch coco ": "an API server (tests/unit/gigaslice/roles/dataset_node/subcommands has one)",
    "gigaslice dataset prefetch s3://": "an API server",
    "gigaslice dataset pack s3://": "a bucket (tests/integration/dataset/test_packing_into_stores.py has one)",
    "gigaslice dataset pack https://": "a bucket",
    "ExecStart=": "systemd; the command is run by the line of README.md with --exec's relatives",
    "vcuda jupyter install --memory 8GiB --python ": "an environment of the user's with ipykernel",
}


@dataclass(frozen=True, slots=True)
class PageCommand:
    """A line of a block on a page. text: without the remark behind it."""

    page: str
    text: str

    @property
    def reason(self) -> str:
        """Why it is not run; empty where it is."""
        return next((why for begin, why in ELSEWHERE.items() if self.text.startswith(begin)), "")


def commands() -> Iterator[PageCommand]:
    """All of them, in the order of the pages."""
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                text = re.sub(r"\s+# .*$", "", line).strip()
                if text and not text.startswith("#") and _OURS.search(text):
                    yield PageCommand(page.relative_to(ROOT).as_posix(), text)
