"""What a request means in a pool whose GPUs have a given number of slices, and when it means nothing at all.

Three ways of saying a size come out as one `Need`: so many GPUs, so many slices on each.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from gigaslice.model import CORES_PER_GPU, Request, Shape


@dataclass(frozen=True, slots=True)
class Need:
    """A request in slices of one pool.

    GPUs: how many different GPUs. slices: on each. larger: how many of them give one slice more, where a
    total does not divide evenly. tail: slices on one more GPU, for the "remainder" shape; 0 for none.
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

    A total without a number of GPUs takes as few GPUs as hold it. 2.5 GPUs in the even shape are 3 equal
    parts, rounded up; in the remainder shape 2 whole GPUs and half of one (Gaia paper, future work).
    """
    if request.total is not None:
        gpus = ceil(Fraction(request.total, gpu_slices)) if request.gpus is None else request.gpus
        slices, larger = divmod(request.total, gpus)
        return Need(gpus, slices, larger)
    if request.gpu_units is None:
        return Need(request.gpus or 1, gpu_slices if request.slices is None else request.slices)
    units = request.gpu_units
    if request.shape is Shape.REMAINDER and units > 1 and units.denominator != 1:
        return Need(floor(units), gpu_slices, tail=ceil((units - floor(units)) * gpu_slices))
    gpus = ceil(units)
    return Need(gpus, ceil(units * gpu_slices / gpus))


def problem(request: Request) -> str | None:
    """Return what makes a request senseless on any node, as a sentence, or None."""
    ways = [request.slices is not None, request.total is not None, request.gpu_units is not None]
    per_gpu = request.slices or 0
    checks = (
        (
            sum(ways) > 1,
            "the size is given in more than one way; give slices per GPU, or in total, or GPU units",
        ),
        (
            request.gpu_units is not None and request.gpus is not None,
            "GPU units already say how many GPUs; leave the number of GPUs out",
        ),
        (request.gpus is not None and request.gpus < 1, f"{request.gpus} GPUs asked for; ask for 1 or more"),
        (_below_one(request.slices), f"{request.slices} slices per GPU asked for; ask for 1 or more"),
        (_below_one(request.total), f"{request.total} slices asked for; ask for 1 or more"),
        (
            request.gpu_units is not None and request.gpu_units <= 0,
            f"{request.gpu_units} GPU units asked for; ask for more than 0",
        ),
        (
            request.total is not None and request.total < (request.gpus or 1),
            f"{request.total} slices cannot be spread over {request.gpus} GPUs; ask for one slice per GPU or more",
        ),
        (
            not 0 <= request.cores <= CORES_PER_GPU,
            f"compute share {request.cores}% asked for; a share is between 0 and {CORES_PER_GPU}",
        ),
        (
            request.max_slices is not None and request.max_slices < max(1, per_gpu),
            f"elastic maximum of {request.max_slices} slices is below the request of {max(1, per_gpu)}",
        ),
    )
    return next((sentence for wrong, sentence in checks if wrong), None)


def _below_one(count: int | None) -> bool:
    return count is not None and count < 1


def _slices(count: int) -> str:
    return f"{count} slice" if count == 1 else f"{count} slices"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
