# SPDX-License-Identifier: Apache-2.0
"""An image cut into ranges: what is asked for by one request of a parallel transfer, and hashed by itself.

50,000 files or 800 MiB a range was efficient for the transfers that these numbers come from; a file that is larger is
in several. Ranges cover the image without gaps and begin at blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from gigaslice.core.dataset.image.erofs import BLOCK
from gigaslice.core.dataset.image.plan import ImagePlan

__all__ = ["MAX_RANGE_BYTES", "MAX_RANGE_FILES", "ImageRange", "ranges"]

MAX_RANGE_FILES = 50_000
MAX_RANGE_BYTES = 800 << 20


@dataclass(frozen=True, slots=True)
class ImageRange:
    """A part of an image."""

    offset: int
    size: int
    files: int
    """How many files begin in it."""


def ranges(
    plan: ImagePlan, max_files: int = MAX_RANGE_FILES, max_bytes: int = MAX_RANGE_BYTES
) -> tuple[ImageRange, ...]:
    """The ranges of an image, in order; MAX_BYTES is a multiple of 4096."""
    extents = plan.extents()
    offsets = [extents[number][0] for number in extents.by_offset()]
    cuts = [0]
    for number in extents.by_offset():
        offset, size = extents[number]
        begin, block, end = cuts[-1], offset - offset % BLOCK, offset + size + -(offset + size) % BLOCK
        files = bisect_left(offsets, end) - bisect_left(offsets, begin)
        if block > begin and (files > max_files or end - begin > max_bytes):
            cuts.extend(range(begin + max_bytes, block, max_bytes))
            cuts.append(block)
        cuts.extend(range(cuts[-1] + max_bytes, end, max_bytes))
    cuts.extend(range(cuts[-1] + max_bytes, plan.size, max_bytes))
    return tuple(
        ImageRange(begin, end - begin, bisect_left(offsets, end) - bisect_left(offsets, begin))
        for begin, end in pairwise([*cuts, plan.size])
    )
