# SPDX-License-Identifier: Apache-2.0
"""Whether a version can be released from a tree, and the tree with it. What is generated is made by the caller."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from release import changelog, versions

__all__ = ["CHANGELOG", "Tree", "cut_tree", "problems"]

CHANGELOG = Path("CHANGELOG.md")


@dataclass(frozen=True, slots=True)
class Tree:
    """What is known of a tree before a release.

    Attributes:
        version: What `vcuda/version.py` says.
        changelog: The text of CHANGELOG.md.
        tags: The tags of the repository.
        changed: Files that differ from the last commit.
    """

    version: str
    changelog: str
    tags: Collection[str] = ()
    changed: Collection[str] = ()


def problems(tree: Tree, version: str, on: date) -> list[str]:
    """Why VERSION cannot be released from TREE, each with what to do; an empty list where it can."""
    if not versions.is_release(version):
        return [f"{version!r} is no version to release: three numbers, such as VERSION=1.2.3"]
    said = []
    if tree.changed:
        names = ", ".join(sorted(tree.changed)[:5])
        said.append(f"the tree has changes that are not committed ({names}): commit or stash them")
    if f"v{version}" in tree.tags:
        said.append(f"the tag v{version} exists: a version is released once")
    released = changelog.releases(tree.changelog)
    newest = max((name for name in released if versions.is_release(name)), key=versions.key, default=None)
    if newest is not None and versions.key(version) <= versions.key(newest):
        said.append(f"{version} does not come after {newest}, the newest release in {CHANGELOG}")
    if not tree.version.endswith("-dev") and tree.version != version:
        said.append(
            f"{versions.HOME} says {tree.version}: between releases it is a version that ends in -dev"
        )
    try:
        changelog.cut(tree.changelog, version, on)
    except changelog.ChangelogError as error:
        said.append(str(error))
    return said


def cut_tree(root: Path, version: str, on: date) -> list[Path]:
    """Makes the tree below ROOT that of the release VERSION; the files that were written, relative to ROOT.

    Raises:
        changelog.ChangelogError: CHANGELOG.md does not have the form for it; nothing was written then.
    """
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    (root / CHANGELOG).write_text(changelog.cut(text, version, on), encoding="utf-8")
    return [CHANGELOG, *versions.rewrite(root, version)]
