# SPDX-License-Identifier: Apache-2.0
"""What a request means in a pool whose GPUs have a given number of slices, and when it means nothing at all.

Every way of giving a size comes out as one `Need`: so many GPUs, so many slices on each.
"""

from dataclasses import dataclass

from gigaslice.core.model import CORES_PER_GPU, Request


@dataclass(frozen=True, slots=True)
class Need:
    """A request in slices of one pool.

    gpus: how many different GPUs. slices: on each. larger: how many of them give one slice more, where a
    total does not divide evenly. tail: slices on one more GPU, where whole GPUs come first; 0 for none.
    """

    gpus: int
    slices: int
    larger: int = 0
    tail: int = 0

    @property
    def most(self) -> int:
        """The largest part of a single GPU."""
        return self.slices + (1 if self.larger else 0)

    @property
    def all_gpus(self) -> int:
        """How many different GPUs altogether."""
        return self.gpus + (1 if self.tail else 0)

    def __str__(self) -> str:
        if self.tail:
            return f"{_gpus(self.gpus)} whole and {_slices(self.tail)} of another"
        text = _slices(self.most)
        return (
            text
            if self.gpus == 1
            else f"{'up to ' if self.larger else ''}{text} on each of {_gpus(self.gpus)}"
        )


def size(request: Request, gpu_slices: int) -> Need:
    """Return what a valid request means where a GPU has `gpu_slices` slices (at least 1).

    A total without a number of GPUs takes as few GPUs as hold it. The slices of 2.5 GPUs are 3 nearly equal parts, or
    2 whole GPUs and half of a third where whole GPUs come first (Gaia paper, future work).
    """
    if request.total is None:
        return Need(request.gpus or 1, gpu_slices if request.slices is None else request.slices)
    whole, rest = divmod(request.total, gpu_slices)
    if request.whole_first and request.gpus is None and whole and rest:
        return Need(whole, gpu_slices, tail=rest)
    gpus = whole + bool(rest) if request.gpus is None else request.gpus
    slices, larger = divmod(request.total, gpus)
    return Need(gpus, slices, larger)


def problem(request: Request) -> str | None:
    """Return what makes a request senseless on any node, as a sentence, or None."""
    checks = (
        (
            request.slices is not None and request.total is not None,
            "the size is given in more than one way; give slices per GPU, or in total",
        ),
        (
            request.whole_first and request.total is None,
            "whole GPUs first, but no total that could be divided so; give the size in total",
        ),
        (
            request.whole_first and request.gpus is not None,
            "whole GPUs first already says how many GPUs; leave the number of GPUs out",
        ),
        (request.gpus is not None and request.gpus < 1, f"{request.gpus} GPUs asked for; ask for 1 or more"),
        (_below_one(request.slices), f"{request.slices} slices per GPU asked for; ask for 1 or more"),
        (_below_one(request.total), f"{request.total} slices asked for; ask for 1 or more"),
        (
            request.total is not None and request.total < (request.gpus or 1),
            f"{request.total} slices cannot be spread over {request.gpus} GPUs; ask for one slice per GPU or more",
        ),
        (
            not 0 <= request.cores <= CORES_PER_GPU,
            f"compute share {request.cores}% asked for; a share is between 0 and {CORES_PER_GPU}",
        ),
    )
    return next((sentence for wrong, sentence in checks if wrong), None)


def _below_one(count: int | None) -> bool:
    return count is not None and count < 1


def _slices(count: int) -> str:
    return f"{count} slice" if count == 1 else f"{count} slices"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
