"""Device ids as the kubelet sees them: "<GPU uuid>/<n>", one per slice.

The uuid lets an id outlive restarts and says which NUMA node it is near; it does not bind a slice to that
card, since the kubelet picks ids at random when it has no preference. Parsing is strict: an id comes back
from a peer's disk.
"""

from dataclasses import dataclass
from functools import lru_cache

from agent.errors import TokenError
from agent.model.gpu import Gpu


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """A device id in parts; tokens of one card sort by number, not as text."""

    uuid: str
    number: int


def format_token(uuid: str, number: int) -> str:
    """Return the device id of slice `number` of a card."""
    return f"{uuid}/{number}"


@lru_cache(maxsize=1 << 15)
def parse_token(text: str) -> Token:
    """Return the parts of a device id; TokenError unless it is exactly what `format_token` writes.

    Cached: the kubelet sends the same thousand ids with every call.
    """
    uuid, _, number = text.rpartition("/")
    if not uuid or not (number.isascii() and number.isdigit()) or str(int(number)) != number:
        raise TokenError(f'device id {text!r} is not "<GPU uuid>/<number>", such as "GPU-6e1b/17"')
    return Token(uuid, int(number))


def gpu_tokens(gpu: Gpu) -> tuple[str, ...]:
    """Return the device ids of all slices of a card, in order."""
    return tuple(format_token(gpu.uuid, number) for number in range(gpu.slices))
