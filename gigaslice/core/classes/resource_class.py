# SPDX-License-Identifier: Apache-2.0
"""A resource class: a name that pods ask for, and the GPUs that serve it. Pure.

With a share, one unit of the class is that much memory and compute of one GPU; without, it is a whole GPU unless the
container says how much. n units are always n different GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gigaslice.core.classes.selector import ClassError, Selector, parse_selector
from gigaslice.core.errors import SizeError
from gigaslice.core.model import CORES_PER_GPU
from gigaslice.core.units import parse_bytes

__all__ = ["MANAGED_BY", "MANAGER", "ClassError", "ClassShare", "ResourceClass", "parse_resource_class"]

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "gigaslice-controller"
"""The value of that label on classes that the controller made and may delete."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME = 63  # of what follows the "/" in a resource's name
_EVERYTHING = Selector()


@dataclass(frozen=True, slots=True)
class ClassShare:
    """What one unit is: bytes of a GPU's memory, and per cent of its compute (0 = no guarantee)."""

    memory_bytes: int
    cores: int = 0


@dataclass(frozen=True, slots=True)
class ResourceClass:
    """One class. managed: the controller made it from the GPUs that there are."""

    name: str
    selector: Selector = _EVERYTHING
    share: ClassShare | None = None
    managed: bool = False

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a GPU with these properties serves it."""
        return self.selector.matches(properties)


def parse_resource_class(document: Mapping[str, object]) -> ResourceClass:
    """Reads a ResourceClass object.

    Raises:
        ClassError: It cannot be meant; the text says what to write.
    """
    metadata, spec = document.get("metadata"), document.get("spec")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ClassError(
            f"metadata.name: write at most {_LONGEST_NAME} lower-case letters, digits, '-' and '.', such as nvidia.h100"
        )
    if spec is None:
        spec = {}
    if not isinstance(spec, Mapping):
        raise ClassError("spec: write an object with selector, and share where a unit is less than a GPU")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    managed = isinstance(labels, Mapping) and labels.get(MANAGED_BY) == MANAGER
    return ResourceClass(name, parse_selector(spec.get("selector")), _share(spec.get("share")), managed)


def _share(document: object) -> ClassShare | None:
    if document is None:
        return None
    if not isinstance(document, Mapping):
        raise ClassError("spec.share: write an object with memory, and cores where compute is shared too")
    memory = document.get("memory")
    try:
        size = parse_bytes(str(memory) if isinstance(memory, str | int) else "")
    except SizeError:
        raise ClassError(
            "spec.share.memory: write a size above 0, such as 8GiB; 8G and 8 are 8GiB, and 8GB is refused"
        ) from None
    cores = document.get("cores", 0)
    if cores is None:
        cores = 0
    if not isinstance(cores, int) or isinstance(cores, bool) or not 0 <= cores <= CORES_PER_GPU:
        raise ClassError(f"spec.share.cores: write per cent of a GPU's compute, from 0 to {CORES_PER_GPU}")
    return ClassShare(size, cores)
