# SPDX-License-Identifier: Apache-2.0
"""Options as a pod's annotations say them.

A name with ".<container>" after it is for that container and wins. The names that users of HAMi and vgpu-manager know
are taken too. An unknown name is only mentioned. What may be written, and by whom, is in `options`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gigaslice.core.model.annotation_rights import AnnotationRights
from gigaslice.core.model.options import (
    OPTIONS,
    PREFIX,
    GivenOption,
    Option,
    RequestOptions,
    SliceUnit,
    request_options,
)

__all__ = ["ANNOTATIONS", "Annotation", "annotations_by_container", "parse_options"]

_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_MAX_NOTES = 10


@dataclass(frozen=True, slots=True)
class Annotation:
    """One row of the table: an option's name after the prefix, other spellings in full, and how its text is read.

    value takes the text and returns what it says, or the text itself where that says nothing.
    """

    name: str
    aliases: tuple[str, ...]
    value: Callable[[str], object]
    form: str
    meaning: str

    @property
    def option(self) -> Option:
        """What may be written, and by whom."""
        return OPTIONS[self.name]


def parse_options(
    annotations: Mapping[str, str],
    container: str,
    unit: SliceUnit,
    rights: AnnotationRights,
    *,
    recorded: Mapping[str, object] | None = None,
) -> RequestOptions:
    """The options of CONTAINER in a pod with these annotations; RIGHTS and RECORDED as for `request_options`."""
    given = (
        GivenOption(row.option, key, row.value(annotations[key].strip()), annotations[key])
        for row in ANNOTATIONS
        if (key := _key(row, annotations, container))
    )
    return request_options(given, unit, rights, recorded=recorded, notes=tuple(_unknown(annotations)))


def _flag(text: str) -> object:
    return _FLAGS.get(text.lower(), text)


def _number(text: str) -> object:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text


def _words(text: str) -> object:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _sizes(text: str) -> object:
    return tuple(word.strip() for word in text.split(","))


def _flag_or_size(text: str) -> object:
    return text if text in ("0", "1") else _flag(text)


ANNOTATIONS: tuple[Annotation, ...] = (
    Annotation("gpus", (), _number, "`2`",
               "share the slices evenly over this many GPUs, all of one model"),
    Annotation("split", (), str.lower, "`even`, `whole-first`",
               "how slices of more than one GPU are divided: evenly, or into whole GPUs and the rest on one more "
               "(of 2.5 GPUs: two whole ones and half of a third); `even` where nothing is said"),
    Annotation("memory", (), _sizes, "`8GiB,16GiB`",
               "a size for each GPU, where they are to differ; they add up to the limit. Plain numbers are slices"),
    Annotation("gpu-type", ("nvidia.com/use-gputype", "nvidia.com/include-gpu-type"),
               _words, "`A100,H100`",
               "only GPUs whose model name has one of these words, in any case"),
    Annotation("exclude-gpu-type", ("nvidia.com/nouse-gputype", "nvidia.com/exclude-gpu-type"),
               _words, "`T4`", "no GPU whose model name has one of these words"),
    Annotation("gpu-uuid", ("nvidia.com/use-gpuuuid", "nvidia.com/include-gpu-uuid"),
               _words, "`GPU-6e1b…,GPU-9f02…`", "only these GPUs"),
    Annotation("exclude-gpu-uuid", ("nvidia.com/nouse-gpuuuid", "nvidia.com/exclude-gpu-uuid"),
               _words, "`GPU-6e1b…`", "none of these GPUs"),
    Annotation("exclusive", (), _flag, "`true`",
               "no other pod gets slices of its GPUs while it holds them"),
    Annotation("same-gpu", (), _flag, "`true`",
               "all containers of the pod are on the same GPU (with `gpus`: GPUs)"),
    Annotation("cores", (), _number, "`30`",
               "per cent of each GPU's compute; guaranteed shares of a GPU add up to 100 at most"),
    Annotation("cores-policy", (), str.lower, "`hard`, `elastic`",
               "`elastic`: compute that others leave idle may be used beyond `cores`"),
    Annotation("priority", (), str.lower,
               "`guaranteed`, `burstable`, `best-effort`",
               "who is lent more of the idle compute: 16 to 4 to 1; `burstable` where nothing is said"),
    Annotation("elastic", (), _flag_or_size, "`true`, `16GiB`",
               "may use more of a GPU while alone on it, up to that much of it"),
    Annotation("oversubscribe", (), _flag, "`true`",
               "may go on in host memory where the node lends some"),
    Annotation("time-slicing", (), _flag, "`false`",
               "whether it gets the GPU by time slices, in turn with others, where their pages push each other off it"),
)  # fmt: skip
"""The table of annotations."""

_NAMES = frozenset(row.name for row in ANNOTATIONS)
_ALIASES = frozenset(alias for row in ANNOTATIONS for alias in row.aliases)
_OURS_ALREADY = frozenset({"allocation"})


def annotations_by_container(annotations: Mapping[str, str]) -> Callable[[str], dict[str, str]]:
    """Returns which of a pod's annotations mean something to a container, by the container's name.

    A pod may have thousands of containers and of annotations. Each container then costs what is meant for it.
    """
    for_all: dict[str, str] = {}
    for_one: dict[str, dict[str, str]] = {}
    for key, text in annotations.items():
        name, dot, container = key.removeprefix(PREFIX).partition(".")
        if key in _ALIASES or (key.startswith(PREFIX) and name in _NAMES and not dot):
            for_all[key] = text
        elif key.startswith(PREFIX) and name in _NAMES:
            for_one.setdefault(container, {})[key] = text
    return lambda container: {**for_all, **for_one.get(container, {})}


def _key(row: Annotation, annotations: Mapping[str, str], container: str) -> str:
    """The annotation that says it for a container; empty where none does."""
    for key in (f"{PREFIX}{row.name}.{container}", PREFIX + row.name, *row.aliases):
        if key in annotations:
            return key
    return ""


def _unknown(annotations: Collection[str]) -> list[str]:
    """Sentences about names that look like ours and are none. Only near misses: other parts have names of their own."""
    sentences = []
    names = {key: key.removeprefix(PREFIX).partition(".")[0] for key in annotations if key.startswith(PREFIX)}
    odd = sorted(key for key, name in names.items() if name not in _NAMES and name not in _OURS_ALREADY)
    for key in odd[:_MAX_NOTES]:
        name = names[key]
        near = difflib.get_close_matches(name, _NAMES, n=1)
        if near:
            sentences.append(
                f'{key} is no annotation of gigaslice and has no effect; did you mean "{PREFIX}{near[0]}"?'
            )
    return sentences
