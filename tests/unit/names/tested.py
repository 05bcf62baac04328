# SPDX-License-Identifier: Apache-2.0
"""Whether each metric and each hooked function is named in a test. `make names`, in `make check`.

A name in a test does not prove that the test is good. A name in none proves that nothing would notice its loss, and
that is what is found here. A test that walks over a whole table does not count: it holds for a line whose value is
never collected, and for a hook that charges nothing. A table that says for each name what is called and what must come
of it does count, as tests/native/clients/work.def.

There are no exceptions: each metric and each hook has a test.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.telemetry.metrics import METRICS as AGENT_METRICS
from gigaslice.roles.controller.metrics import METRICS as CONTROLLER_METRICS
from gigaslice.roles.dataset_node.metrics import METRICS as DATASET_METRICS
from gigaslice.roles.scheduler.metrics import METRICS as SCHEDULER_METRICS
from tests.native import check_library

TESTS = Path(__file__).resolve().parents[2]
FOLDERS = ("unit", "integration", "native")
"""What `make test` runs without a GPU and a cluster, and the programs that these tests start."""
OTHER = ("unit/fakedriver", "unit/docs", "unit/names", "native/runtimes.py")
"""Tests of the simulated driver, which run without the library; of the documentation; and this check."""
REMEDY = 'name it in a test that fails without it (CONTRIBUTING.md, "Your first change")'


def metric_names() -> set[str]:
    """The metrics of all roles."""
    tables = (AGENT_METRICS, CONTROLLER_METRICS, DATASET_METRICS, SCHEDULER_METRICS)
    return {row.name for table in tables for row in table}


def words_of_python(source: str) -> set[str]:
    """The words of a module's code and texts, without comments and docstrings. Tests have programs in their texts."""
    words: set[str] = set()
    remarks: set[ast.Constant] = set()
    for node in ast.walk(ast.parse(source)):  # a statement comes before what is in it
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            remarks.add(node.value)
        elif isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and node not in remarks:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            words.update(re.findall(r"\w+", text))
    return words


def words_of_c(source: str) -> set[str]:
    """The words of a C file without its comments."""
    return set(re.findall(r"\w+", re.sub(r"/\*.*?\*/|//[^\n]*", " ", source, flags=re.DOTALL)))


def files_of_tests() -> Iterator[Path]:
    """The tests, and the programs that they run."""
    for folder in FOLDERS:
        for path in sorted((TESTS / folder).rglob("*.*")):
            name = path.relative_to(TESTS).as_posix()
            if path.suffix in (".py", ".c", ".h", ".def") and not name.startswith(OTHER):
                yield path


def words_of_tests(files: Iterable[Path]) -> set[str]:
    """All words of FILES; the name of a histogram's series is that of the histogram."""
    words: set[str] = set()
    for path in files:
        read = words_of_python if path.suffix == ".py" else words_of_c
        words |= read(path.read_text(encoding="utf-8"))
    return words | {re.sub(r"_(bucket|count|sum)$", "", word) for word in words}


def mistakes(names: set[str], words: set[str]) -> Iterator[str]:
    """A line for each of NAMES that WORDS lack."""
    for name in sorted(names - words):
        yield f"{name} is named in no test: {REMEDY}"


def main() -> int:
    """Prints the mistakes; 1 if there are any."""
    names = metric_names() | check_library.listed_symbols()
    lines = list(mistakes(names, words_of_tests(files_of_tests())))
    print("\n".join([*lines, f"tested names: {len(names)} metrics and hooks, {len(lines)} mistakes"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
