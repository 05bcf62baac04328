# SPDX-License-Identifier: Apache-2.0
"""What a container asks of the GPUs, and the two answers it can get: a placement, or a reason.

Requests come from people, so nothing is checked on construction: `gigaslice.core.placement.place` answers a
senseless request with `Reason.INVALID` and a sentence. The sentence of `Infeasible` is for the reader of the
pod's events.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Request:
    """What a container asks for.

    The size is given in one of three ways:

    * `gpus` different GPUs (1 if None) with `slices` each (None: whole GPUs);
    * `total` slices altogether, on `gpus` GPUs or as few as hold them and have room: the way a container counts;
    * `parts`, the slices of each of several different GPUs, where the parts are not equal.

    Attributes:
        whole_first: how a `total` of more than one GPU is divided where it is no whole number of GPUs (2.5 GPUs, say).
            False: evenly, here over three GPUs. True: into as many whole GPUs as it fills, here two, and the rest
            on one more.
        only: UUIDs of the GPUs that may be chosen; empty for any GPU.
        cores: guaranteed compute share of each GPU in per cent, 0 for none.
        exclusive: only GPUs without other holders may be chosen. Their compute is promised by `cores` alone.
    """

    gpus: int | None = None
    slices: int | None = None
    total: int | None = None
    whole_first: bool = False
    only: frozenset[str] = frozenset()
    cores: int = 0
    parts: tuple[int, ...] = ()
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one GPU: its slices, and its compute share in per cent (0 = no guarantee)."""

    gpu: str
    slices: int
    cores: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes: one share per GPU, in GPU order."""

    shares: tuple[Share, ...]

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs, in order."""
        return tuple(share.gpu for share in self.shares)

    @property
    def slices(self) -> int:
        """Slices altogether."""
        return sum(share.slices for share in self.shares)


class Reason(Enum):
    """Why a request cannot be placed, in the order in which the reasons are looked for."""

    INVALID = "invalid"
    NO_MATCHING_MODEL = "no-matching-model"
    NO_MATCHING_GPU = "no-matching-gpu"
    EXCEEDS_GPU = "exceeds-gpu"
    EXCEEDS_NODE = "exceeds-node"
    INSUFFICIENT_NOW = "insufficient-now"

    @property
    def permanent(self) -> bool:
        """Whether waiting on this node can never help."""
        return self is not Reason.INSUFFICIENT_NOW


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A request that cannot be placed: a code for programs and a sentence for people."""

    reason: Reason
    detail: str

    @property
    def permanent(self) -> bool:
        """Whether waiting on this node can never help."""
        return self.reason.permanent
