"""Bytes as people write and read them.

Sizes are parsed by the same C code that the library inside the container uses, so "8GiB" can never mean two numbers.
This module deliberately knows nothing of configuration, devices or files.
"""

from __future__ import annotations

import vcuda

__all__ = ["format_bytes", "parse_bytes"]

_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def parse_bytes(text: str) -> int:
    """Bytes of "8GiB", "512MiB", "8G" (= GiB) or "1073741824".

    Raises ValueError, with a sentence for the user, for anything else, for zero, negative and absurd sizes.
    """
    return vcuda.parse_size(text)


def format_bytes(count: int) -> str:
    """Writes bytes with the largest binary unit that is not above them: "8 GiB", "1.5 GiB", "0 B"."""
    for size, name in _STEPS:
        if abs(count) >= size:
            text = f"{count / size:.1f}".removesuffix(".0")
            return f"{text} {name}"
    return f"{count} B"
