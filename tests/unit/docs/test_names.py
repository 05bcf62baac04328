# SPDX-License-Identifier: Apache-2.0
"""A name means one thing: public classes of the Python code have names of their own."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def classes() -> dict[str, list[str]]:
    found = defaultdict(list)
    for top in ("agent", "gigaslice", "gigaslice_cli", "vcuda"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.parent.name == "pb":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_no_class_name_stands_twice() -> None:
    found = classes()
    assert len(found) > 200
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
