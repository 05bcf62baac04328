# SPDX-License-Identifier: Apache-2.0
"""Files of the tree that a program makes: written anew, or with --check compared with what the program makes.

The programs of deploy/helm and the tables of docs use it. What must not make its files to check them does not:
proto/generate.py compares checksums, since the compiler is not everywhere, and deploy/image/lock.py would ask an index.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["ROOT", "old_files", "write_or_check"]

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(
    made: Callable[[], Mapping[Path, str]],
    target: str,
    description: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """The main function of a program that makes files.

    Args:
        made: Makes the text of every file; asked once.
        target: The target of the Makefile that writes them anew, for the message.
        description: What --help says above the flags: the program's docstring.
        arguments: What was typed; those of the process where there is None.

    Returns:
        The exit code: 1 where --check finds a file that is old or missing.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 where a file is old"
    )
    check = parser.parse_args(arguments).check
    texts = made()
    if not check:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        return 0
    old = [str(path.relative_to(ROOT)) for path in old_files(texts)]
    if old:
        print(f"{', '.join(old)}: not what the program makes; run make {target}", file=sys.stderr)
    return bool(old)


def old_files(texts: Mapping[Path, str]) -> list[Path]:
    """The files of TEXTS that are missing or have another text."""
    return [
        path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
