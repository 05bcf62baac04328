# SPDX-License-Identifier: Apache-2.0
"""Reads units from an image that is laid out as the node's own, by ranges as long as there are units close together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gigaslice.core.dataset.errors import SourceError
from gigaslice.roles.dataset_node.fetching.units import FetchUnit
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag, ImageReader

__all__ = ["read_run", "runs_of"]

_GAP = 64 << 10  # what is between two units is rather read than asked around


def runs_of(batch: Sequence[tuple[FetchUnit, int]]) -> Iterator[list[tuple[FetchUnit, int]]]:
    """BATCH, in the order of the image, in parts each of which is worth one range."""
    run: list[tuple[FetchUnit, int]] = []
    for unread in batch:
        if run and unread[0].place - (run[-1][0].place + run[-1][0].size) > _GAP:
            yield run
            run = []
        run.append(unread)
    if run:
        yield run


def read_run(
    image: ImageReader,
    run: Sequence[FetchUnit],
    write: Callable[[int, memoryview], None],
    stop: CancelFlag,
    count: Callable[[int], None],
) -> None:
    """Reads units by one range, and writes their bytes, and no others, to the same places.

    Args:
        image: Where they are.
        run: The units, in the order of the image.
        write: Writes bytes at a place.
        stop: Ends it.
        count: Is told in the end how many bytes came.

    Raises:
        SourceError: None of the units may count.
        OSError: They cannot be written.
    """
    spans: list[tuple[int, int]] = []  # what touches is written at once
    for unit in run:
        if spans and spans[-1][1] == unit.place:
            spans[-1] = spans[-1][0], unit.place + unit.size
        else:
            spans.append((unit.place, unit.place + unit.size))
    start, end = spans[0][0], spans[-1][1]
    expected, current = start, 0

    def sink(offset: int, data: bytes | bytearray | memoryview) -> None:
        nonlocal expected, current
        if offset != expected or offset + len(data) > end:
            raise SourceError("the source gave other bytes than asked; this is a mistake of the service")
        if stop:
            raise SourceError("the fetch was given up", retry=True)
        view, expected = memoryview(data), offset + len(data)
        while current < len(spans):
            begin, until = max(spans[current][0], offset), min(spans[current][1], expected)
            if begin < until:
                write(begin, view[begin - offset : until - offset])
            if spans[current][1] > expected:
                break
            current += 1

    try:
        image.read_into(start, end - start, sink)
    finally:
        count(expected - start)
    if expected != end:
        raise SourceError("the source gave fewer bytes than asked; this is a mistake of the service")
