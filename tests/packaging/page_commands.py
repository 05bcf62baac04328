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

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_OURS = re.compile(
    r"(?:^|[\s/=|])(?:vcuda|gigaslice) [a-z]|LD_PRELOAD=|VCUDA_MEMORY_LIMIT=|pip (?:un)?install"
)
_SCRIPTS = ("sh", "ini")
"""Kinds of blocks of which every line is a command. In others those behind `$ ` are."""


def _elsewhere() -> dict[str, str]:
    """The commands of elsewhere.yaml with the reason."""
    document = yaml.safe_load((Path(__file__).parent / "elsewhere.yaml").read_text(encoding="utf-8"))
    return {command: reason for reason, group in document.items() for command in group}


ELSEWHERE = _elsewhere()


@dataclass(frozen=True, slots=True)
class PageCommand:
    """A line of a block on a page. text: without the remark behind it."""

    page: str
    text: str

    @property
    def reason(self) -> str:
        """Why it is not run; empty where it is."""
        return ELSEWHERE.get(self.text, "")


def commands() -> Iterator[PageCommand]:
    """All of them, in the order of the pages."""
    for page in PAGES:
        for text in commands_of(page.read_text(encoding="utf-8")):
            yield PageCommand(page.relative_to(ROOT).as_posix(), text)


def commands_of(page: str) -> Iterator[str]:
    """Those in the blocks of a page's text, also of blocks in lists."""
    for token in MarkdownIt().parse(page):
        if token.type not in ("fence", "code_block"):
            continue
        prompt = "" if token.info.strip() in _SCRIPTS else "$ "
        for line in token.content.replace("\\\n", " ").splitlines():
            if not line.startswith(prompt):
                continue
            text = " ".join(re.sub(r"\s+# .*$", "", line.removeprefix(prompt)).split())
            if text and not text.startswith("#") and _OURS.search(text):
                yield text
