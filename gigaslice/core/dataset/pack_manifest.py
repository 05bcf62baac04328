# SPDX-License-Identifier: Apache-2.0
"""The manifest of a pack: which image and listing belong together, and digests of both and of the image's ranges. Pure.

A pack is a directory or a prefix of a bucket that holds the image of a dataset, its listing, and `dataset.json`, which
names both. It is the last that is written. A node asks for the ranges in parallel and checks each by its digest.

What a manifest says may be wrong or hostile, and a kernel must not be given an image that a tenant made. So a node
takes no byte of a pack's metadata: the listing is checked as any other and planned anew, and only the files' bytes come
from the image. That the plan is that of the pack's writer is what `layout` says.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gigaslice.core.dataset.errors import ImageError
from gigaslice.core.kube.json_text import read_json

__all__ = ["MANIFEST_NAME", "MAX_MANIFEST_BYTES", "PackManifest", "PackRange"]

MANIFEST_NAME = "dataset.json"
MAX_MANIFEST_BYTES = 16 << 20
_FORMAT, _VERSION = "gigaslice-dataset-pack", 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class PackRange:
    """A range of the image, and the BLAKE3 of its bytes."""

    offset: int
    size: int
    files: int
    blake3: str


@dataclass(frozen=True, slots=True)
class PackManifest:
    """What `dataset.json` says."""

    source: str
    """What was packed, for people."""
    layout: int
    image: str
    """The name of the image's file."""
    size: int
    image_digest: str
    listing: str
    """The name of the listing's file."""
    listing_size: int
    listing_digest: str
    files: int
    bytes: int
    ranges: tuple[PackRange, ...]

    def text(self) -> str:
        """The manifest as JSON; the same manifest is always the same text."""
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "source": self.source,
            "layout": self.layout,
            "files": self.files,
            "bytes": self.bytes,
            "image": {"file": self.image, "size": self.size, "blake3": self.image_digest},
            "listing": {"file": self.listing, "size": self.listing_size, "blake3": self.listing_digest},
            "parts": [asdict(part) for part in self.ranges],
        }
        return json.dumps(document, indent=1) + "\n"

    @staticmethod
    def parse(data: str | builtins.bytes, pack: str = "") -> PackManifest:
        """The manifest that DATA is. PACK: how the pack is called in texts.

        Raises:
            ImageError: It is none, is of a newer version, or says what cannot be.
        """
        what = f"{pack}: {MANIFEST_NAME}" if pack else MANIFEST_NAME
        try:
            document = read_json(data)
            if document["format"] != _FORMAT:
                raise ImageError(
                    f"{what} is no manifest of a pack; make the pack with `gigaslice dataset pack`"
                )
            if document["version"] != _VERSION:
                raise ImageError(f"{what} is of another version; make the pack anew, or update Gigaslice")
            return _checked(document)
        except (ValueError, TypeError, KeyError) as error:
            raise ImageError(
                f"{what} is damaged ({type(error).__name__}); make the pack anew with `gigaslice dataset pack`"
            ) from None


def _checked(document: Mapping[str, Any]) -> PackManifest:
    image, listing = document["image"], document["listing"]
    parts = tuple(
        PackRange(
            _count(part["offset"]), _count(part["size"]), _count(part["files"]), _digest(part["blake3"])
        )
        for part in document["parts"]
    )
    size = _count(image["size"])
    end = 0
    for part in parts:
        if part.offset != end or not part.size:
            raise ValueError("parts with gaps")
        end += part.size
    if end != size:
        raise ValueError("parts that are not the image")
    return PackManifest(
        source=str(document["source"]),
        layout=_count(document["layout"]),
        image=_file(image["file"]),
        size=size,
        image_digest=_digest(image["blake3"]),
        listing=_file(listing["file"]),
        listing_size=_count(listing["size"]),
        listing_digest=_digest(listing["blake3"]),
        files=_count(document["files"]),
        bytes=_count(document["bytes"]),
        ranges=parts,
    )


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("no count")
    return value


def _digest(value: object) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError("no digest")
    return value


def _file(value: object) -> str:
    """A name beside the manifest, and nothing that leads elsewhere."""
    if not isinstance(value, str) or not _FILE_NAME.fullmatch(value) or value == MANIFEST_NAME:
        raise ValueError("no file name")
    return value
