# SPDX-License-Identifier: Apache-2.0
"""Panics of libraries in Rust, as exceptions that one may catch.

PyO3 raises them as a BaseException, so that nothing that catches Exception sees them, and its class cannot be imported.
A thread or a task that they end leaves whoever waits for it without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

__all__ = ["GOES_ON", "LibraryPanicError", "panics_raised"]

GOES_ON = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
"""What is no Exception and ends what it comes to, as it is meant to. Everything else that is none is a mistake."""


class LibraryPanicError(Exception):
    """A library has found a mistake of its own, or was given what it cannot take. Its text is the library's."""


@contextlib.contextmanager
def panics_raised() -> Iterator[None]:
    """Runs calls of a library. Raises LibraryPanicError where it panics, and all else as it is."""
    try:
        yield
    except (Exception, *GOES_ON):
        raise
    except BaseException as error:  # noqa: BLE001  (its class has no name to catch it by)
        raise LibraryPanicError(f"{type(error).__name__}: {error}") from None
