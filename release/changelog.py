# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md as text: what is unreleased becomes the section of a version. Pure.

The form is that of Keep a Changelog: `## [Unreleased]` on top, then `## [1.2.3] - 2026-11-28`, the newest first.
"""

from __future__ import annotations

import re
from datetime import date
from itertools import zip_longest

__all__ = ["ChangelogError", "cut", "releases", "section"]

UNRELEASED = "Unreleased"
_HEADING = re.compile(r"(?m)^## \[(?P<name>[^\]\n]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?[ \t]*$")
_LINK = re.compile(r"(?mi)^\[(?P<name>[^\]\n]+)\]: (?P<url>\S+)\n?")
_COMPARED = re.compile(r"(?P<base>\S+/compare/)(?P<before>\S+)\.\.\.HEAD")


class ChangelogError(Exception):
    """The changelog does not have the form from which a release can be made. Says what to write."""


def releases(text: str) -> dict[str, str]:
    """The date of each released version, the newest first."""
    return {
        match["name"]: match["date"] or "" for match in _HEADING.finditer(text) if match["name"] != UNRELEASED
    }


def section(text: str, name: str) -> str:
    """What is under the heading of a version, or of `Unreleased`, without the heading. Raises ChangelogError."""
    headings = list(_HEADING.finditer(text))
    for heading, following in zip_longest(headings, headings[1:]):
        if heading["name"] == name:
            end = following.start() if following else len(text)
            return _LINK.sub("", text[heading.end() : end]).strip() + "\n"
    raise ChangelogError(f"CHANGELOG.md has no section ## [{name}]")


def cut(text: str, version: str, on: date) -> str:
    """TEXT with what is unreleased as the section of VERSION, below a new and empty `Unreleased`.

    A link of `Unreleased` that compares with HEAD, where there is one, becomes the version's; a new one compares with
    it.

    Raises:
        ChangelogError: Nothing is unreleased, or VERSION has a section already.
    """
    if version in releases(text):
        raise ChangelogError(f"CHANGELOG.md has a section {version} already")
    if not _says_something(section(text, UNRELEASED)):
        raise ChangelogError(
            "nothing stands under ## [Unreleased] in CHANGELOG.md: say there what users notice"
        )
    heading = next(match for match in _HEADING.finditer(text) if match["name"] == UNRELEASED)
    made = f"## [{UNRELEASED}]\n\n## [{version}] - {on.isoformat()}"
    return _with_links(text[: heading.start()] + made + text[heading.end() :], version)


def _says_something(body: str) -> bool:
    return any(line.strip() and not line.startswith("#") for line in body.splitlines())


def _with_links(text: str, version: str) -> str:
    for link in _LINK.finditer(text):
        compared = _COMPARED.fullmatch(link["url"])
        if link["name"] == UNRELEASED and compared:
            base, before = compared["base"], compared["before"]
            lines = f"[{UNRELEASED}]: {base}v{version}...HEAD\n[{version}]: {base}{before}...v{version}\n"
            return text[: link.start()] + lines + text[link.end() :]
    return text
