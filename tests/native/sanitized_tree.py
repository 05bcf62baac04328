# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of `gigaslice.roles.dataset_node.sources._tree` with a build of it that has sanitizers.

    LD_PRELOAD=$(gcc -print-file-name=libasan.so) python -m tests.native.sanitized_tree EXTENSION

Python itself has none: its allocator is to be malloc (PYTHONMALLOC), so that objects are watched too. Leaks are left to
the test that counts blocks, since Python keeps much until its end.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

NAME = "gigaslice.roles.dataset_node.sources._tree"
TESTS = Path(__file__).parents[1] / "unit/gigaslice/roles/dataset_node/sources"


def main(extension: str) -> int:
    """The exit code of pytest."""
    spec = importlib.util.spec_from_file_location(NAME, extension)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    tests = [str(TESTS / name) for name in ("test_tree.py", "test_posix.py")]
    from gigaslice.roles.dataset_node.sources import posix

    assert posix.look_up is module.look_up, "the tests are of another build"
    result = pytest.main(["-n", "0", *tests])
    return int(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
