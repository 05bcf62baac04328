# SPDX-License-Identifier: Apache-2.0
"""What counts as taken of a node's GPUs: one value per share, whatever it was given out for. Pure.

A pod that asks for GPUs by itself is one holding (see `pod_holdings`). One that several pods share counts once, and is
there until the last of them is gone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["HeldShare", "Holding", "PodConsumer"]


class HeldShare(NamedTuple):
    """What a holding has of one GPU. exclusive: no other one gets any of it. host: it may use lent host memory."""

    gpu: str
    slices: int
    cores: int = 0
    exclusive: bool = False
    host: bool = False


class PodConsumer(NamedTuple):
    """A pod that uses a holding. Its names are empty where only its UID is known. priority: for preemption."""

    uid: str
    namespace: str = ""
    name: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """What counts on a node.

    Attributes:
        id: What it is counted by, once: the UID of the object that it was given out for, or the agent's name for it.
        shares: One per GPU.
        consumers: The pods that use it, as far as they are known.
        reserved: It was chosen, and is not bound yet.
    """

    id: str
    shares: tuple[HeldShare, ...]
    consumers: tuple[PodConsumer, ...] = ()
    reserved: bool = False

    @property
    def title(self) -> str:
        """The pods that use it, in words; its id where none of them is known by name."""
        names = [f"{pod.namespace}/{pod.name}" for pod in self.consumers if pod.name]
        return " and ".join(names) or self.id

    @property
    def uids(self) -> tuple[str, ...]:
        """The UIDs of the pods that use it."""
        return tuple(pod.uid for pod in self.consumers)

    def ends_with(self, uids: Collection[str]) -> bool:
        """Whether it would be free if the pods of UIDS were gone."""
        for pod in self.consumers:  # a loop, since this is asked for each holding of a node again and again
            if pod.uid not in uids:
                return False
        return bool(self.consumers)
