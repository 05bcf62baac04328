# SPDX-License-Identifier: Apache-2.0
"""By which resource the slices of a GPU are requested: one for all GPUs, or one for each type. Pure.

A GPU's type follows from its model alone, so every node gives GPUs of one model the same name, and each GPU counts
under exactly one.
"""

import re
from dataclasses import dataclass

from gigaslice.core.model.gpu import matches_model

_MAKERS = frozenset({"nvidia", "tesla", "geforce", "quadro"})
_FORM = re.compile(r"\d+gb|sxm\d*|pcie|nvl|hbm\d*[a-z]*|generation|laptop")


def short_name(model: str) -> str:
    """Return the name of a model's type: "h100" for "NVIDIA H100 80GB HBM3", "rtx-3090" for "GeForce RTX 3090"."""
    words = re.findall(r"[a-z0-9]+", model.lower())
    while len(words) > 1 and words[0] in _MAKERS:
        words.pop(0)
    form = next((number for number, word in enumerate(words) if number and _FORM.fullmatch(word)), len(words))
    return "-".join(words[:form])[:32].rstrip("-") or "gpu"


@dataclass(frozen=True, slots=True)
class ResourceTypes:
    """The resources of a node's slices.

    base: of GPUs without a type; the others have ".<type>" after it. automatic: every model has the type of its short
    name. patterns: words of model names, and the type of models that have them.
    """

    base: str
    automatic: bool = False
    patterns: tuple[tuple[str, str], ...] = ()

    def of(self, model: str) -> str:
        """Return the resource by which slices of that model are requested."""
        name = short_name(model) if self.automatic else next(iter(self.matching(model)), "")
        return f"{self.base}.{name}" if name else self.base

    def matching(self, model: str) -> tuple[str, ...]:
        """Return the types whose patterns match a model; more than one is a mistake of the settings."""
        return tuple(dict.fromkeys(name for pattern, name in self.patterns if matches_model(model, pattern)))

    def overlapping(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of patterns that cannot but match the same models and have different types."""
        return tuple(
            (pattern, other)
            for number, (pattern, name) in enumerate(self.patterns)
            for other, of_other in self.patterns[number + 1 :]
            if name != of_other and (matches_model(pattern, other) or matches_model(other, pattern))
        )
