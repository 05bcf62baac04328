# SPDX-License-Identifier: Apache-2.0
"""An inline CSI volume of a pod: which driver provides it, with which attributes, to which containers.

Inline volumes are made for one pod and vanish with it. Volumes behind claims are not shown: what they hold is decided
elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["DATASET_DRIVER", "CsiVolume"]

DATASET_DRIVER = "dataset.gigaslice.io"
"""The driver of `gigaslice dataset`."""


@dataclass(frozen=True, slots=True)
class CsiVolume:
    """One volume. mounted_by: the names of the containers that mount it, init containers first."""

    name: str
    driver: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    mounted_by: tuple[str, ...] = ()
