# SPDX-License-Identifier: Apache-2.0
"""The image of a dataset: one EROFS file system whose layout follows from the listing alone. Pure.

`plan` says where every file's bytes belong before any of them has arrived, so they can be written in any order, by many
at once, and again after a crash. `ranges` cuts an image into what a transfer hashes, `read_tree` reads one back and was
written from the format, not from the writer.
"""

from gigaslice.core.dataset.image.plan import LAYOUT_VERSION, Extents, ImagePlan, plan
from gigaslice.core.dataset.image.ranges import MAX_RANGE_BYTES, MAX_RANGE_FILES, ImageRange, ranges
from gigaslice.core.dataset.image.reader import ImageEntry, read_tree

__all__ = [
    "LAYOUT_VERSION",
    "MAX_RANGE_BYTES",
    "MAX_RANGE_FILES",
    "Extents",
    "ImageEntry",
    "ImagePlan",
    "ImageRange",
    "plan",
    "ranges",
    "read_tree",
]
