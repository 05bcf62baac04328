# SPDX-License-Identifier: Apache-2.0
"""What the kubelet asks about claims and is answered, as values of no version of its API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ClaimName", "ClaimService", "PrepareAnswer", "PreparedDevice"]


@dataclass(frozen=True, slots=True)
class ClaimName:
    """A claim as the kubelet names it: a later claim of the same name has another UID."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a claim.

    Attributes:
        requests: The requests of the claim that it is for, as containers name them.
        pool: Its pool.
        device: Its name there.
        cdi: What the container runtime is told for it: qualified names.
        share_id: Which share of it; empty where it is not shared.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi: tuple[str, ...]
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class PrepareAnswer:
    """What became of one claim. error: why it is not prepared; empty where it is."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class ClaimService(Protocol):
    """Answers the kubelet's calls about claims."""

    async def prepare(
        self, claims: Sequence[ClaimName], remaining: float | None
    ) -> Mapping[str, PrepareAnswer]:
        """Prepares claims, which one pod has together. Returns an answer for each, by UID.

        Args:
            claims: The claims.
            remaining: Seconds until the kubelet gives up; None where it does not.
        """
        ...

    async def unprepare(self, claims: Sequence[ClaimName]) -> Mapping[str, str]:
        """Unprepares claims. Returns why not, by UID; an empty text where it is done."""
        ...
