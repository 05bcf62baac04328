# SPDX-License-Identifier: Apache-2.0
"""Each source file says in its head which licence it is under; REUSE.toml says it for everything else."""

from __future__ import annotations

import subprocess

from tests.unit.docs.test_docs import ROOT

LINE = ": ".join(
    ("SPDX-License-Identifier", "Apache-2.0")
)  # written out, `reuse` would take it for this file's own
SOURCES = ("*.py", "*.pyi", "*.c", "*.h", "*.def", "*.proto", "*.mk", "Makefile", "Dockerfile", ".ci/*")
NOT_OURS_TO_WRITE = (":!tests/fixtures", ":!*_pb2*")  # an earlier release, generated code


def test_each_source_file_names_its_licence_in_its_head() -> None:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", *SOURCES, *NOT_OURS_TO_WRITE]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in run.stdout.split("\0") if name]
    assert len(paths) > 1000
    missing = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if text and LINE not in "".join(text.splitlines()[:2]):
            missing.append(str(path.relative_to(ROOT)))
    assert missing == [], f"write `{LINE}` as the first line, or below #!"
