# SPDX-License-Identifier: Apache-2.0
"""What lies beside the distributions: the notes and the sums."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["SUMS", "finish"]

SUMS = "SHA256SUMS"


def finish(dist: Path, version: str, notes: str) -> None:
    """Adds the release's notes to DIST, and then the sums of all files there, as sha256sum --check reads them."""
    (dist / f"gigaslice-{version}-notes.md").write_text(f"# Gigaslice {version}\n\n{notes}", encoding="utf-8")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(dist.iterdir())
        if path.name != SUMS
    ]
    (dist / SUMS).write_text("".join(lines), encoding="utf-8")
