# SPDX-License-Identifier: Apache-2.0
"""What lies beside the distributions: the notes and the sums.

`python -m release.artifacts DIST` adds both for the version of this tree, of which CHANGELOG.md has a section. The
release workflow runs it once the chart names the published image (.ci/publish); it imports Python's own modules alone.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from release import versions
from release.changelog import ChangelogError, section

__all__ = ["SUMS", "finish", "notes_name", "sums"]

SUMS = "SHA256SUMS"
ROOT = Path(__file__).resolve().parents[1]


def notes_name(version: str) -> str:
    """The name of the file with the changelog's section."""
    return f"gigaslice-{version}-notes.md"


def finish(dist: Path, version: str, notes: str) -> None:
    """Adds the release's notes to DIST, and then the sums of all files there, as sha256sum --check reads them."""
    (dist / notes_name(version)).write_text(f"# Gigaslice {version}\n\n{notes}", encoding="utf-8")
    (dist / SUMS).write_text(sums(dist), encoding="utf-8")


def sums(folder: Path) -> str:
    """The digests of all files below FOLDER but its own list of them, in the form of sha256sum."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
        for path in paths
    )


def main(arguments: Sequence[str]) -> int:
    """Returns 0, or 3 where DIST is empty or the changelog has no section for this version."""
    dist = Path(arguments[0])
    version = versions.present(ROOT)
    try:
        notes = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    except ChangelogError as error:
        print(f"error: {error}: the release was not cut (RELEASING.md)", file=sys.stderr)
        return 3
    if not dist.is_dir() or not any(dist.iterdir()):
        print(f"error: there is nothing in {dist}/ to publish: make dist", file=sys.stderr)
        return 3
    finish(dist, version, notes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
