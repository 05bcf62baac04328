"""What a container asks of the GPUs, and the two answers it can get: a placement, or a reason.

Requests arrive from people, so nothing is checked on construction: `gigaslice.placement.place` answers a
senseless request with `Reason.INVALID` and a sentence. The sentence of `Infeasible` is written for whoever
reads the pod's events.
"""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction


class Shape(Enum):
    """How 2.5 GPUs are made up. Unequal GPUs cannot compute in parallel, so EVEN is the default."""

    EVEN = "even"
    """Three GPUs with five sixths each (rounded up to slices)."""
    REMAINDER = "remainder"
    """Two whole GPUs and half of a third."""


class Prefer(Enum):
    """What several parts of GPUs should spare first."""

    FRAGMENTS = "fragments"
    """Keep whole GPUs whole: fill GPUs that are already shared (the stated aim of the Gaia paper)."""
    LINK = "link"
    """Stay on the best links, and open whole GPUs for it: for jobs bound by communication."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. The size is given in one of four ways:

    * `gpus` different GPUs (1 if None) with `slices` each (None: whole GPUs);
    * `total` slices altogether, on `gpus` GPUs or as few as will hold them: the way a container counts;
    * `parts`, the slices of each of several different GPUs, where they are not to be equal;
    * `gpu_units`, the scalar of the Gaia paper in GPUs: 0.5, 1, 2, or 2.5 in the given `shape`.

    model: words that must occur in the GPU's model name. only, exclude: UUIDs (empty `only`: any GPU).
    cores: guaranteed compute share per GPU in per cent, 0 = none. elastic, max_slices: may use more of a
    GPU while alone on it, up to `max_slices` per GPU if given. exclusive: only GPUs without other holders, in whose
    allocation tables the rest of the GPU then counts as taken.
    """

    gpus: int | None = None
    slices: int | None = None
    total: int | None = None
    gpu_units: Fraction | None = None
    shape: Shape = Shape.EVEN
    model: str | None = None
    only: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    cores: int = 0
    elastic: bool = False
    max_slices: int | None = None
    prefer: Prefer = Prefer.FRAGMENTS
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
