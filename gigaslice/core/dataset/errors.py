# SPDX-License-Identifier: Apache-2.0
"""The errors of datasets, a branch of the tree in gigaslice/core/errors.py. Every text is one line without any secret.

DatasetError                what concerns a dataset, its source or its copy on a node
├── SourceError             the source cannot be read, or gave something else than it listed
├── ListingError            a listing that no image is made of (an InputError too)
├── CacheFullError          the node has no room, and nothing may be evicted for it
├── QuotaError              a namespace uses as many bytes on the node as it may
├── LostWritesError         the node's disk has not kept what was written
├── ImageError              bytes that are no image, or not the image they should be
└── RequestError            a source, an option or an attribute that cannot be used (an InputError too)
"""

from __future__ import annotations

from gigaslice.core.errors import GigasliceError, InputError

__all__ = [
    "CacheFullError",
    "DatasetError",
    "ImageError",
    "ListingError",
    "LostWritesError",
    "QuotaError",
    "RequestError",
    "SourceError",
]


class DatasetError(GigasliceError):
    """What concerns a dataset: the text says what is wrong and what to do."""


class SourceError(DatasetError):
    """The source cannot be read.

    Attributes:
        retry: Whether the same read may succeed later: a time-out, a server that is busy.
        changed: Whether a file is no longer what the listing says; a new listing is a new dataset version.
        denied: Whether the credentials do not suffice.
    """

    def __init__(
        self, text: str, *, retry: bool = False, changed: bool = False, denied: bool = False
    ) -> None:
        super().__init__(text)
        self.retry = retry
        self.changed = changed
        self.denied = denied


class ListingError(DatasetError, InputError):
    """A listing that no image is made of, since a path, a size or a link of it would be unsafe or ambiguous."""


class CacheFullError(DatasetError):
    """The node has no room for the dataset, and what is in use is never evicted."""


class QuotaError(DatasetError):
    """A namespace uses as many bytes of datasets on the node as it may."""


class LostWritesError(DatasetError):
    """The node's disk has failed to keep what was written to it. The kernel says so once, and not what was lost."""


class ImageError(DatasetError):
    """Bytes that are no image of a dataset, or not those that were promised."""


class RequestError(DatasetError, InputError):
    """A source, an option or a volume attribute that cannot be used."""
