# SPDX-License-Identifier: Apache-2.0
"""Writes the fixtures of this version: `make fixtures`, run by `make release VERSION= CUT=yes`.

    code.tar.xz     the code that reads them (sources.py)
    SHA256SUMS      of all other files: what is there later is what was released
    libvcuda-*.so.xz  the library that it installed into containers, of one processor, without debug data
    facts.json      what that code reads in the others (reading.py)
    state/          a node agent's state directory; plugin/ the same without claims, whose records have an older version
    quotas/         a user's quotas of `vcuda run`
    dataset/        a dataset service's state directory
    texts.json      annotations, messages and objects
    objects.json    objects of our kinds, and crds/ with their definitions
    names.json      the names that people have in their own files; values.yaml: those of the chart

Files are kept without the zeros at their ends; `padded` puts those of ledgers back.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from release.artifacts import SUMS, sums
from release.changelog import releases
from tests.releases import reading, writing
from tests.releases.sources import ARCHIVE, LIBRARY, PROCESSOR, ROOT, compressed, packed
from vcuda.version import VERSION

FIXTURES = ROOT / "tests" / "fixtures" / "releases"
CHART = ROOT / "deploy" / "helm" / "gigaslice"
CRDS = CHART / "files"
STATES = {"state": "node-state", "plugin": "node-state", "quotas": "quotas", "dataset": "dataset-state"}
SHIPPED = ROOT / "build" / "shipped" / "libvcuda.so"
_LEFT_OUT = shutil.ignore_patterns("lib", "lock", ".cordon.json.lock", "machine")


def main() -> int:
    """Returns 2 for a version that has been released, whose fixtures are what they are, and on another processor."""
    if (
        VERSION in releases((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
        and (FIXTURES / VERSION).exists()
    ):
        print(f"error: {VERSION} is released, and its fixtures stay as they are", file=sys.stderr)
        return 2
    if os.uname().machine != PROCESSOR:
        print(f"error: fixtures have the library of {PROCESSOR}: run make fixtures on one", file=sys.stderr)
        return 2
    place = FIXTURES / VERSION
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        writing.node_state(made / "state")
        writing.node_state(made / "plugin", claims=False)
        writing.quotas(made / "quotas", made / "machine")
        writing.dataset_state(made / "dataset")
        for name in STATES:
            shutil.copytree(made / name, place / name, ignore=_LEFT_OUT)
        _write(place / "texts.json", writing.texts())
        _write(place / "objects.json", writing.objects())
        _write(place / "names.json", writing.names())
        facts = {name: reading.KINDS[kind](made / name) for name, kind in STATES.items()}
        facts["texts"] = reading.texts(place / "texts.json")
    ledgers = {
        ledger.relative_to(place).as_posix(): ledger.stat().st_size for ledger in place.rglob("ledger")
    }
    for name in ledgers:
        (place / name).write_bytes((place / name).read_bytes().rstrip(b"\0"))
    _write(place / "facts.json", {**facts, "ledgers": ledgers})
    (place / "crds").mkdir()
    for definition in sorted(CRDS.glob("crds*/*.yaml")):
        shutil.copy(definition, place / "crds" / definition.name)
    shutil.copy(CHART / "values.yaml", place / "values.yaml")
    (place / ARCHIVE).write_bytes(packed())
    (place / LIBRARY).write_bytes(compressed(SHIPPED.read_bytes()))
    (place / SUMS).write_text(sums(place), encoding="utf-8")
    print(
        f"{place.relative_to(ROOT)}: {sum(path.stat().st_size for path in place.rglob('*') if path.is_file())} bytes"
    )
    return 0


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def padded(fixture: Path, target: Path, ledgers: Mapping[str, int]) -> Path:
    """A copy of a directory of the fixtures as it was, with LEDGERS of so many bytes by their paths; returns TARGET."""
    shutil.copytree(fixture, target)
    for ledger in target.rglob("ledger"):
        size = ledgers[(Path(fixture.name) / ledger.relative_to(target)).as_posix()]
        ledger.write_bytes(ledger.read_bytes().ljust(size, b"\0"))
    return target


if __name__ == "__main__":
    sys.exit(main())
