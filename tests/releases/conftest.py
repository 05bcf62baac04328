# SPDX-License-Identifier: Apache-2.0
"""Every release that has fixtures, with its own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.releases.make import FIXTURES, padded
from tests.releases.sources import READER, ROOT, built

BUILT = ROOT / "build" / "releases"


@dataclass(frozen=True)  # without slots: what is read once is kept
class Release:
    """A release: its fixtures and its code."""

    fixtures: Path

    @property
    def version(self) -> str:
        return self.fixtures.name

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What it read in its own files."""
        found: dict[str, Any] = json.loads((self.fixtures / "facts.json").read_text())
        return found

    def state(self, name: str, target: Path) -> Path:
        """A copy of one of its state directories, as it had it."""
        return padded(self.fixtures / name, target, self.facts["ledgers"])

    @cached_property
    def tree(self) -> Path:
        """Its code, compiled."""
        return built(self.fixtures, BUILT)

    @property
    def environment(self) -> dict[str, str]:
        """Of its programs: its own code before that of today, which an editable installation would give them."""
        return {**os.environ, "PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1"}

    def read(self, kind: str, path: Path) -> Any:
        """What its code reads there. Raises AssertionError with its last words where it ends with an error."""
        command = [sys.executable, str(self.tree / READER), kind, str(path)]
        done = subprocess.run(
            command,
            cwd=self.tree,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])  # before it: what was logged


RELEASES = sorted(path for path in FIXTURES.iterdir() if path.is_dir())


@pytest.fixture(scope="session", params=RELEASES, ids=lambda path: path.name)
def release(request: pytest.FixtureRequest) -> Release:
    return Release(request.param)


def as_json(value: object) -> Any:
    """VALUE as a reader prints it."""
    return json.loads(json.dumps(value, sort_keys=True))
