# SPDX-License-Identifier: Apache-2.0
"""StepProgress of the programs under tests, as commands show theirs: lines begin with the program's name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from gigaslice.runtime import progress
from gigaslice.runtime.progress import StepProgress

__all__ = ["each", "step"]

T = TypeVar("T")


def each(
    items: Iterable[T], text: str | Callable[[T], str], *, total: int = 0, even: bool = False
) -> Iterator[T]:
    """Yields ITEMS, and shows which it is at: see gigaslice.runtime.progress.each."""
    return progress.each(items, text, total=total, name=_program(), even=even)


def step(text: str, *, quiet: bool = False) -> StepProgress:
    """Shows that TEXT goes on, for as long as its block runs."""
    return StepProgress(text, name=_program(), quiet=quiet)


def _program() -> str:
    """ "fits" of `python -m tests.bench.fits`, "demo" of `python -m tests.demo`."""
    path = Path(sys.argv[0])
    return path.parent.name if path.stem == "__main__" else path.stem
