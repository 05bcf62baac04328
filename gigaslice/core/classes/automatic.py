# SPDX-License-Identifier: Apache-2.0
"""The classes that the controller makes from the GPUs that there are: one per model, and per size where it matters.

Equal GPUs give equal classes in any order. A model with one memory size is one class; with several, each size is a
class too. Sizes are told apart in whole GiB, rounded up as labels are: drivers and ECC settings report a few MiB more
or less for the same GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from gigaslice.core.classes.amounts import amount_of
from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.classes.selector import Operator, Requirement, Selector, Term

__all__ = ["automatic_classes", "class_name"]

_GIB, _MIB_PER_GIB = 1 << 30, 1024
_LONGEST = 63 - len(".9999gib")


def automatic_classes(gpus: Iterable[Mapping[str, str]]) -> tuple[ResourceClass, ...]:
    """Returns the automatic classes of GPUs, given by their properties, ordered by name."""
    models: dict[str, set[tuple[str, str]]] = {}
    sizes: dict[str, set[int]] = {}
    for properties in gpus:
        vendor, model = properties.get("vendor", ""), properties.get("model", "")
        name = class_name(vendor, model)
        if not name:
            continue
        models.setdefault(name, set()).add((vendor, model))
        size = _gib(properties.get("memory", ""))
        if size:
            sizes.setdefault(name, set()).add(size)
    automatic = []
    for name, kinds in models.items():
        same = (
            _one_of("vendor", {vendor for vendor, _ in kinds}),
            _one_of("model", {model for _, model in kinds}),
        )
        automatic.append(ResourceClass(name, Selector((Term(same),)), managed=True))
        if len(sizes.get(name, ())) > 1:
            automatic += [
                ResourceClass(f"{name}.{size}gib", Selector((Term((*same, *_size(size))),)), managed=True)
                for size in sizes[name]
            ]
    return tuple(sorted(automatic, key=lambda automatic_class: automatic_class.name))


def class_name(vendor: str, model: str) -> str:
    """Returns the name of a model's class: "NVIDIA Tesla K80" and, of the same vendor, "Tesla K80" are
    nvidia.tesla.k80.

    Drivers of different ages say the vendor in the model's name or not.
    """
    words, maker = _words(model), _words(vendor)
    if words and words[: len(maker)] != maker:
        words = maker + words
    return ".".join(words)[:_LONGEST].rstrip(".")


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _one_of(key: str, values: set[str]) -> Requirement:
    return Requirement(key, Operator.IN, tuple(sorted(values)))


def _gib(memory: str) -> int:
    """Returns whole GiB, rounded up; 0 where no size is given."""
    size = amount_of(memory)
    return 0 if size is None or size <= 0 else -(-size // Fraction(_GIB))


def _size(gib: int) -> tuple[Requirement, Requirement]:
    """Returns the conditions of more than GIB - 1 and at most GIB, for sizes in whole MiB."""
    return (
        Requirement("memory", Operator.GT, (f"{gib - 1}GiB",)),
        Requirement("memory", Operator.LT, (f"{gib * _MIB_PER_GIB + 1}MiB",)),
    )
