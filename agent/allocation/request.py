# SPDX-License-Identifier: Apache-2.0
"""A request for a share of GPUs as a value, and how the API that it came by takes part in its allocation. Pure.

Adapters make requests of what their APIs say: annotations and device IDs, or a claim. The allocation service knows
neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from gigaslice.core.allocation.consumer import Origin
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.errors import GigasliceError
from gigaslice.core.model import Placement, RequestOptions, Share

__all__ = ["AllocationRequest", "ImpossibleError", "NotExecutableError", "RequestAdapter"]


class ImpossibleError(GigasliceError):
    """This node can never serve the request; the text reaches the pod's event."""


class NotExecutableError(ImpossibleError):
    """The assignment of a pod cannot be executed on this node, or is missing."""


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """What is asked for.

    Attributes:
        amount: How many slices, or GPUs where they are asked for whole.
        options: How it is to be had. Contradictions in it are the adapter's to find.
        whole: Whole GPUs, as they are: without library and limits.
        pod: UID of the pod whose containers belong together; empty where there is none or it is not known.
        pod_slices: The most slices that the containers of the pod have at a time.
        advised: GPUs that somebody else has chosen; never followed to more GPUs than there would be without it.
        assigned: The shares that a scheduler has assigned, in the order of the GPUs. They are executed as they stand.
    """

    amount: int
    options: RequestOptions = field(default_factory=RequestOptions)
    whole: bool = False
    pod: str = ""
    pod_slices: int = 0
    advised: frozenset[str] = frozenset()
    assigned: tuple[Share, ...] | None = None


class RequestAdapter(Protocol):
    """One request, and what its API makes of the allocation table around its allocation."""

    @property
    def request(self) -> AllocationRequest:
        """What is asked for."""
        ...

    @property
    def key(self) -> str:
        """The key of the origin: one allocation answers it. Empty where each call asks anew."""
        ...

    def before(self, table: AllocationTable) -> AllocationTable:
        """Returns the table in which room is looked for: what ends or makes room as this request comes."""
        ...

    def origin(self, placement: Placement) -> Origin:
        """Returns the origin of an allocation that is placed so."""
        ...

    def after(self, table: AllocationTable) -> AllocationTable:
        """Returns the table to be recorded, from the one that has the allocation. No hold of the allocation changes."""
        ...

    def refusal(self, detail: str) -> str:
        """Returns the sentence for a request that can never be served: DETAIL, with what was asked for."""
        ...
