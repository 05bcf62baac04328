# SPDX-License-Identifier: Apache-2.0
"""The manifest of a pack, for tests that read it whole and damaged."""

from __future__ import annotations

from gigaslice.core.dataset.pack_manifest import PackManifest, PackRange

__all__ = ["MANIFEST"]

MANIFEST = PackManifest(
    source="/data/coco",
    layout=1,
    image="0123456789abcdef.img",
    size=12288,
    image_digest="a" * 64,
    listing="fedcba9876543210.listing",
    listing_size=77,
    listing_digest="b" * 64,
    files=3,
    bytes=9000,
    ranges=(PackRange(0, 8192, 2, "c" * 64), PackRange(8192, 4096, 1, "d" * 64)),
)
