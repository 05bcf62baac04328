# SPDX-License-Identifier: Apache-2.0
"""Which GPUs each container of a pod gets, as one annotation: written by the scheduler, executed by the agent.

`{"trainer": [["GPU-6e1b…", 8], ["GPU-9f02…", 8, 30]]}`: per container the UUID, the slices and, where compute is
guaranteed, its share in per cent. The annotation comes with the binding in one write, so no agent ever sees a bound
pod without it. An agent that cannot execute it refuses the container; it never chooses other GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from gigaslice.core.errors import GigasliceError
from gigaslice.core.kube.json_text import read_json
from gigaslice.core.model import CORES_PER_GPU, Share

__all__ = ["Assignment", "AssignmentError"]

_MOST_SHARES = 4096


class AssignmentError(GigasliceError):
    """The annotation is not what a scheduler writes."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The GPUs of a pod. containers: the shares of each container that asks for any, by its name."""

    containers: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)

    def encode(self) -> str:
        """Returns the annotation's text; equal assignments have equal texts."""
        rows = {name: [_row(share) for share in self.containers[name]] for name in sorted(self.containers)}
        return json.dumps(rows, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Assignment:
        """Reads the annotation's text.

        Raises:
            AssignmentError: It is not one.
        """
        try:
            document = read_json(text)
        except ValueError:
            raise AssignmentError("the assignment is not JSON") from None
        if not isinstance(document, dict):
            raise AssignmentError("the assignment has no containers")
        containers = {
            name: tuple(_share(name, row) for row in _rows(name, document[name])) for name in document
        }
        for name, shares in containers.items():
            if len({share.gpu for share in shares}) != len(shares):
                raise AssignmentError(f"the assignment of container {name} names a GPU twice")
        return cls(containers)


def _row(share: Share) -> list[str | int]:
    return [share.gpu, share.slices, share.cores] if share.cores else [share.gpu, share.slices]


def _rows(name: str, rows: object) -> list[object]:
    if not isinstance(rows, list) or not rows or len(rows) > _MOST_SHARES:
        raise AssignmentError(f"the assignment of container {name} is no list of GPUs")
    return rows


def _share(name: str, row: object) -> Share:
    match row:
        case [str(gpu), int(slices)]:
            share = Share(gpu, slices)
        case [str(gpu), int(slices), int(cores)]:
            share = Share(gpu, slices, cores)
        case _:
            raise AssignmentError(f"the assignment of container {name} has a GPU without UUID and slices")
    if (
        not share.gpu
        or any(isinstance(number, bool) for number in row)
        or share.slices < 1
        or not 0 <= share.cores <= CORES_PER_GPU
    ):
        raise AssignmentError(f"the assignment of container {name} has a GPU with impossible numbers")
    return share
