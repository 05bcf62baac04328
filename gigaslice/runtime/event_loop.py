"""Which event loop runs a role. The cluster's roles take uvloop where it is installed: half the time for each event.

Nothing depends on it. The node agent does not use it: it waits most of the time, and its memory counts on every node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_quickly"]

T = TypeVar("T")


def run_quickly(main: Coroutine[Any, Any, T]) -> T:
    """Runs MAIN as `asyncio.run` does, in uvloop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415  (an optional package)
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
