# SPDX-License-Identifier: Apache-2.0
"""What the role needs of the driver, as an interface.

`nvml` has the real one, tests have one with the rules of each backend (tests/fakes/memory_limits.py).

All calls are made in one thread, and each may block. A path is that of a cgroup v2 directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gigaslice.core.errors import GigasliceError
from gigaslice.core.limits.driver_limit_messages import GpuSupport

__all__ = ["Limit", "LimitCallError", "MemoryLimits"]


class LimitCallError(GigasliceError):
    """The driver has refused a call, or cannot be reached; the text says what it says."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What the driver says of a cgroup. hard: None for none. used: bytes that count against it."""

    hard: int | None
    used: int


class MemoryLimits(Protocol):
    """The driver's limits of device memory."""

    @property
    def silent(self) -> bool:
        """Whether calls were made since `open` or `renew`, and none has got an answer: then it is to be opened anew."""
        ...

    def open(self) -> None:
        """Begins a pass, and opens the driver unless it is open.

        Raises LimitCallError, and MissingError where only another process can.
        """
        ...

    def renew(self) -> None:
        """Opens the driver anew. Raises as `open` does."""
        ...

    def refusal(self) -> str:
        """Why there is no call to limit with, in a sentence; empty where there is one."""
        ...

    def version(self) -> str:
        """The driver's version; empty where it does not tell."""
        ...

    def gpus(self) -> Mapping[str, GpuSupport]:
        """The GPUs that may be limited, by UUID."""
        ...

    def get(self, gpu: str, path: str) -> Limit | None:
        """The limit that holds for a cgroup, None where there is none at all. Raises LimitCallError."""
        ...

    def set(self, gpu: str, path: str, hard: int) -> None:
        """Sets a cgroup's hard limit, and no soft one. Raises LimitCallError."""
        ...
