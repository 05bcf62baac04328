"""A whole image in the order of its bytes: for hashing and for writing one from beginning to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge

from gigaslice.dataset.errors import ImageError
from gigaslice.dataset.image.plan import ImagePlan

__all__ = ["pieces"]

_ZEROS = bytes(1 << 16)


def pieces(plan: ImagePlan, content: Callable[[int], Iterable[bytes]]) -> Iterator[bytes]:
    """All bytes of the image in order.

    Args:
        plan: Its layout.
        content: Gives the bytes of the file of that number (in the listing's order of files). Called in the order of
            `Extents.by_offset`, and for no file of 0 bytes.

    Raises:
        ImageError: A file has more or fewer bytes than planned.
    """
    at = 0
    for offset, size, source in merge(_metadata(plan), _files(plan)):
        yield from _zeros(offset - at)
        at = offset
        for part in (source,) if isinstance(source, bytes) else content(source):
            at += len(part)
            yield part
        if at != offset + size:
            raise ImageError(f"file {source!r} has {at - offset} bytes, and {size} are planned")
    yield from _zeros(plan.size - at)


def _metadata(plan: ImagePlan) -> Iterator[tuple[int, int, bytes | int]]:
    return ((offset, len(data), data) for offset, data in plan.metadata())


def _files(plan: ImagePlan) -> Iterator[tuple[int, int, bytes | int]]:
    extents = plan.extents()
    return ((*extents[number], number) for number in extents.by_offset() if extents[number][1])


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield _ZEROS[:count]
        count -= len(_ZEROS)
