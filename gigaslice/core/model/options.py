# SPDX-License-Identifier: Apache-2.0
"""What a container asks of its GPU slices beside their number, as one value, with every mistake as a sentence.

The count of slices is a request's; options say how they are to be had: on how many GPUs, of which kind, alone,
together, with what share of compute. Whoever offers requests to users reads them in a form of its own, such as
annotations (`annotations`), and hands each over by its name with what was written. Here is what may be written and by
whom: a value that makes no sense is a mistake, and so is one that needs a right nobody has checked. A container with a
mistake is held back, with an event that says what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gigaslice.core.model.annotation_rights import AnnotationRights
from gigaslice.core.model.gpu import CORES_PER_GPU, Gpu, matches_model
from gigaslice.core.model.request import Infeasible, Reason, Request

PREFIX = "gigaslice.io/"
_MIB = 1 << 20
_MAX_GPUS = 16
_MAX_WORDS = 100  # of one option: each is compared with each of another
_MAX_WORD = 128  # characters
PRIORITIES = {"guaranteed": 16, "burstable": 4, "best-effort": 1}
"""Priority classes, and the weight with which each is lent idle compute."""
DEFAULT_PRIORITY = "burstable"
_DIVIDING = {
    "gpus": "gpus",
    "parts": "memory",
    "same_gpu": "same-gpu",
}  # what excludes "whole-first": field, name


@dataclass(frozen=True, slots=True)
class SliceUnit:
    """What a slice is on this node: its bytes, and how a size is read (ValueError for what is none)."""

    size: int
    parse: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What one container's slices should be like. The defaults ask for nothing.

    gpus: how many GPUs share the slices evenly. whole_first: the slices fill whole GPUs, and the rest is on one more,
    where they would be spread evenly otherwise. parts: slices of each GPU, where they differ. types, not_types: words
    of model names, one of which must or none of which may occur. uuids, not_uuids: likewise for UUIDs. exclusive: no
    other pod gets slices of its GPUs. same_gpu: all containers of the pod are on the same GPUs. cores: per cent of
    each GPU's compute, 0 for no share. cores_elastic: idle compute of others may be used too. priority: who is lent
    more of it. elastic: may use more while alone, up to max_slices of a GPU if given. oversubscribe: may use host
    memory that its node lends. time_slicing: shares a GPU that thrashes by time slices. mistakes: sentences about
    what cannot be meant; notes: about what has no effect.
    """

    gpus: int | None = None
    whole_first: bool = False
    parts: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    not_types: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    exclusive: bool = False
    same_gpu: bool = False
    cores: int = 0
    cores_elastic: bool = False
    priority: str = DEFAULT_PRIORITY
    elastic: bool = False
    max_slices: int | None = None
    oversubscribe: bool = False
    time_slicing: bool = True
    mistakes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def limits_gpus(self) -> bool:
        """Whether they name the GPUs that are allowed, by kind or one by one."""
        return bool(self.types or self.not_types or self.names_gpus)

    @property
    def names_gpus(self) -> bool:
        """Whether they name GPUs one by one."""
        return bool(self.uuids or self.not_uuids)

    def allowed_gpus(self, gpus: Sequence[Gpu]) -> frozenset[str] | Infeasible:
        """The UUIDs of those of GPUS that are allowed; all of them where nothing is said. Infeasible when none is."""
        allowed = [gpu for gpu in gpus if not self.types or _is_one_of(gpu, self.types)]
        allowed = [gpu for gpu in allowed if not _is_one_of(gpu, self.not_types)]
        have = ", ".join(sorted({gpu.model for gpu in gpus})) or "no GPU at all"
        if not allowed:
            return Infeasible(Reason.NO_MATCHING_MODEL, f"{self._kinds()} on this node; it has {have}")
        named = {uuid.lower() for uuid in self.uuids}
        avoided = {uuid.lower() for uuid in self.not_uuids}
        uuids = frozenset(
            gpu.uuid
            for gpu in allowed
            if (not named or gpu.uuid.lower() in named) and gpu.uuid.lower() not in avoided
        )
        if not uuids:
            here = [gpu for gpu in gpus if gpu.uuid.lower() in named - avoided]
            why = f"none of the GPUs that {PREFIX}gpu-uuid and {PREFIX}exclude-gpu-uuid leave is on this node; it has "
            if here:
                models = ", ".join(f"{gpu.uuid}, {gpu.model}" for gpu in here)
                why = f"{self._kinds()} among those of {PREFIX}gpu-uuid, of which this node has "
                return Infeasible(Reason.NO_MATCHING_GPU, why + models)
            return Infeasible(Reason.NO_MATCHING_GPU, why + ", ".join(gpu.uuid for gpu in gpus))
        return uuids

    def request(self, slices: int, only: frozenset[str] = frozenset()) -> Request:
        """The same as a request for placement: SLICES in all, on GPUs of ONLY (empty: any)."""
        return Request(
            gpus=self.gpus,
            total=slices,
            whole_first=self.whole_first,
            parts=self.parts,
            only=only,
            cores=self.cores,
            exclusive=self.exclusive,
        )

    def contradictions(self, slices: int) -> tuple[str, ...]:
        """What makes no sense together with SLICES in all."""
        sentences = []
        if self.parts and sum(self.parts) != slices:
            sentences.append(
                f"{PREFIX}memory: {' + '.join(map(str, self.parts))} slices are {sum(self.parts)}, and the container "
                f"asks for {slices}; make the limit {sum(self.parts)}, or the sizes add up to {slices}"
            )
        if self.gpus is not None and not self.parts and self.gpus > slices:
            sentences.append(
                f"{PREFIX}gpus: {self.gpus} GPUs cannot share {slices} slices; ask for {self.gpus} slices or more, or "
                f"for at most {slices} GPUs"
            )
        most = max(self.parts) if self.parts else -(-slices // (self.gpus or max(1, slices)))
        if self.max_slices is not None and self.max_slices < most:
            sentences.append(
                f"{PREFIX}elastic: {self.max_slices} slices are less than the {most} that the container is given of a "
                f"GPU; write more than {most}, or leave it out"
            )
        return tuple(sentences)

    def idle(self, given: Collection[int], lends_host: bool) -> tuple[str, ...]:
        """What has no effect on a container that was GIVEN so many slices of each of its GPUs."""
        sentences = []
        if self.elastic and self.max_slices is not None and given and self.max_slices <= min(given):
            sentences.append(
                f"{PREFIX}elastic: {self.max_slices} slices are no more than the {min(given)} that the container has "
                f"of a GPU anyway, so it has no effect; write more than {min(given)}, or leave it out"
            )
        if self.whole_first and given and len(given) == 1:
            sentences.append(
                f"{PREFIX}split has no effect: the slices fit on one GPU; ask for more than a GPU has, or leave it out"
            )
        if self.cores_elastic and not self.cores:
            sentences.append(
                f"{PREFIX}cores-policy has no effect without {PREFIX}cores; write both, or neither"
            )
        if not self.time_slicing and not self.oversubscribe:
            sentences.append(
                f"{PREFIX}time-slicing has no effect without {PREFIX}oversubscribe: time slices are for such pods"
            )
        if self.oversubscribe and not lends_host:
            sentences.append(
                f"{PREFIX}oversubscribe has no effect here: this node lends no host memory (--host-memory)"
            )
        return tuple(sentences)

    def _kinds(self) -> str:
        named = f"no GPU of type {' or '.join(self.types)}" if self.types else "no GPU"
        return named + (f" other than {' and '.join(self.not_types)}" if self.not_types else "")


_Read = Callable[[object, SliceUnit], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: what may be written for an option, and by whom.

    fields takes what was written and what a slice is, returns fields of RequestOptions, and raises ValueError with the
    end of a sentence that begins with what was written. free_values: None where every value only says how counted
    slices are had, and everybody may write it; else the exact texts that ask for nothing beyond them, while every other
    one needs the label of the pod's Namespace. free_up_to: the same for a number, as a cluster sets it by default.
    """

    name: str
    fields: _Read
    free_values: tuple[str, ...] | None = None
    free_up_to: int | None = None

    @property
    def namespace_label(self) -> str:
        """The label that, with the value "true", lets the pods of a Namespace write every value of it."""
        return f"{PREFIX}allow-{self.name}"

    def needs_label(self, text: str) -> bool:
        """Whether TEXT, which makes sense, is more than everybody may write. By the text, not by what it means: a
        policy that knows no other spellings decides the same.
        """
        if self.free_up_to is not None:
            return int(text) > self.free_up_to
        return self.free_values is not None and text not in self.free_values

    @property
    def refusal(self) -> str:
        """Why a text that needs the label is refused where nothing compares it with the label; after the text."""
        free = [f'"{text}"' for text in self.free_values or ()]
        free += [f"{self.free_up_to} at most"] if self.free_up_to is not None else []
        return (
            "takes more than is counted for the pod, and nothing here checks who may write it; leave it out, or write "
            f"{' or '.join(free)}. To allow it, an operator installs the policy on annotations (chart: "
            f'admission.rights=deny) and labels the Namespace {self.namespace_label}: "true"'
        )


class GivenOption(NamedTuple):
    """What a user has written for an option.

    Attributes:
        option: Which.
        key: What the user calls it.
        value: A boolean, a number, a word, or several; where it was read from text, the text if that is none of them.
        text: As the user wrote it.
    """

    option: Option
    key: str
    value: object
    text: str

    @classmethod
    def of(cls, name: str, key: str, value: object) -> GivenOption:
        """One that was not written as text. Raises KeyError where there is no option of that name."""
        return cls(OPTIONS[name], key, value, _spelled(value))

    def mistake(self, end: str) -> str:
        """The sentence that begins with what the user has written."""
        return f"{self.key}: {_quoted(self.text)} {end}"


def request_options(
    given: Iterable[GivenOption],
    unit: SliceUnit,
    rights: AnnotationRights,
    *,
    recorded: Mapping[str, object] | None = None,
    notes: tuple[str, ...] = (),
) -> RequestOptions:
    """The options that were GIVEN, as far as they make sense, with a sentence for each that does not.

    What needs a label of the pod's Namespace is a mistake, and left out, unless RIGHTS say that it was checked.
    RECORDED: fields that the container has been given already, which no RIGHTS take away.
    """
    mistakes: list[str] = []
    values: dict[str, Any] = {}
    for given_option in given:
        option = given_option.option
        try:
            fields = option.fields(given_option.value, unit)
        except ValueError as error:
            mistakes.append(given_option.mistake(str(error)))
            continue
        needs_label = rights is AnnotationRights.REFUSE and option.needs_label(given_option.text)
        if needs_label and not _is_recorded(fields, recorded):
            mistakes.append(given_option.mistake(option.refusal))
        else:
            values.update(fields)
    gpus, parts = values.get("gpus"), values.get("parts", ())
    if gpus is not None and parts and gpus != len(parts):
        mistakes.append(
            f"{PREFIX}memory: {len(parts)} sizes for {gpus} GPUs; say one size per GPU, or leave {PREFIX}gpus out"
        )
        values.update(gpus=None, parts=())
    if values.get("whole_first"):
        mistakes += _split_twice(values)
    mistakes += _opposites(values)
    return RequestOptions(**values, mistakes=tuple(mistakes), notes=notes)


def _is_recorded(fields: Mapping[str, object], recorded: Mapping[str, object] | None) -> bool:
    return recorded is not None and all(recorded.get(name) == value for name, value in fields.items())


def _split_twice(values: dict[str, Any]) -> list[str]:
    """Sentences about what says otherwise how the slices are divided than "whole-first" does."""
    others = [name for field, name in _DIVIDING.items() if values.get(field)]
    if not others:
        return []
    values["whole_first"] = False
    annotations = " and ".join(PREFIX + name for name in others)
    return [
        f'{PREFIX}split: "whole-first" goes by the size of the GPUs, and {annotations} says otherwise on how many GPUs '
        "the slices are; leave one of the two out"
    ]


def _opposites(values: dict[str, Any]) -> list[str]:
    """Sentences about GPUs that are asked for and refused; what is left of VALUES can be had where it is corrected."""
    sentences = []
    uuids, avoided = values.get("uuids", ()), {uuid.lower() for uuid in values.get("not_uuids", ())}
    if overlap := [uuid for uuid in uuids if uuid.lower() in avoided]:
        sentences.append(
            f"{PREFIX}exclude-gpu-uuid: {overlap[0]} is also asked for; leave one of the two out"
        )
        values["uuids"] = uuids = tuple(uuid for uuid in uuids if uuid not in overlap)
    types, refused = values.get("types", ()), values.get("not_types", ())
    both = [(word, other) for word in types for other in refused if matches_model(word, other)]
    if both:
        sentences.append(
            f'{PREFIX}exclude-gpu-type: "{both[0][1]}" refuses what {PREFIX}gpu-type asks for with "{both[0][0]}"; '
            "leave one of the two out"
        )
        values["types"] = tuple(word for word in types if word not in {mine for mine, _ in both})
        values["not_types"] = () if not values["types"] else refused
    gpus = values.get("gpus") or len(values.get("parts", ()))
    named = {uuid.lower() for uuid in uuids}
    if named and gpus > len(named):
        name = "gpus" if values.get("gpus") else "memory"
        sentences.append(
            f"{PREFIX}gpu-uuid: {len(named)} named, and {PREFIX}{name} asks for {gpus} GPUs; name {gpus} or more"
        )
        values["uuids"] = ()
    return sentences


def _flag(field: str) -> _Read:
    def read(value: object, unit: SliceUnit) -> dict[str, object]:
        del unit
        if not isinstance(value, bool):
            raise ValueError('must be "true" or "false"')
        return {field: value}

    return read


def _number(field: str, low: int, high: int, example: str) -> _Read:
    def read(value: object, unit: SliceUnit) -> dict[str, object]:
        del unit
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f'must be a whole number from {low} to {high}, such as "{example}"')
        return {field: value}

    return read


def _word(field: str, values: Mapping[str, object]) -> _Read:
    def read(value: object, unit: SliceUnit) -> dict[str, object]:
        del unit
        if not isinstance(value, str) or value not in values:
            raise ValueError("must be one of " + ", ".join(values))
        return {field: values[value]}

    return read


def _words(field: str, form: str, sentence: str) -> _Read:
    def read(value: object, unit: SliceUnit) -> dict[str, object]:
        del unit
        words = _texts(value)
        if len(words) > _MAX_WORDS:
            raise ValueError(f"must be at most {_MAX_WORDS} words")
        if any(len(word) > _MAX_WORD for word in words):
            raise ValueError(f"must be words of at most {_MAX_WORD} characters")
        if not all(re.search(form, word) for word in words):
            raise ValueError(sentence)
        return {field: words}  # an empty list says nothing, as with HAMi

    return read


def _texts(value: object) -> tuple[str, ...]:
    """Several words, each once; what is none is as good as an empty one, which no option takes."""
    words = value if isinstance(value, (list, tuple)) else ("",)
    return tuple(dict.fromkeys(word if isinstance(word, str) else "" for word in words))


def _slices(size: object, unit: SliceUnit) -> int:
    """Slices of one size: a plain number counts slices, anything else is a size in bytes."""
    if not isinstance(size, (int, str)) or isinstance(size, bool):
        raise ValueError("must be a size")
    text = str(size)
    if re.fullmatch(r"[0-9]{1,6}", text):
        if int(text) < 1:
            raise ValueError("must be 1 slice or more")
        return int(text)
    count, rest = divmod(unit.parse(text), unit.size)
    if rest:
        raise ValueError(f"must be in whole slices of {unit.size // _MIB} MiB")
    return count


def _parts(value: object, unit: SliceUnit) -> dict[str, object]:
    sizes = value if isinstance(value, (list, tuple)) else (None,)
    if len(sizes) > _MAX_GPUS:
        raise ValueError(f"must be at most {_MAX_GPUS} sizes")
    try:
        return {"parts": tuple(_slices(size, unit) for size in sizes)}
    except ValueError as error:
        raise ValueError(
            f'must be one size per GPU, such as "8GiB,16GiB" or "8,16" slices ({error})'
        ) from error


def _elastic(value: object, unit: SliceUnit) -> dict[str, object]:
    if isinstance(value, bool):
        return {"elastic": value, "max_slices": None}
    try:
        return {"elastic": True, "max_slices": _slices(value, unit)}
    except ValueError as error:
        raise ValueError(
            f'must be "true", "false" or the most it may use of a GPU, such as "16GiB" ({error})'
        ) from error


_MODELS = (r"[A-Za-z0-9]", 'must name models, such as "A100" or "L4,A10"')
_UUIDS = (
    r"\A(GPU|MIG)-[0-9A-Za-z][-0-9A-Za-z]*\Z",
    'must be UUIDs as nvidia-smi -L shows them, such as "GPU-6e1b5c1e-…"; indices change with reboots',
)

OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("gpus", _number("gpus", 1, _MAX_GPUS, "2")),
        Option("split", _word("whole_first", {"even": False, "whole-first": True})),
        Option("memory", _parts),
        Option("gpu-type", _words("types", *_MODELS)),
        Option("exclude-gpu-type", _words("not_types", *_MODELS)),
        Option("gpu-uuid", _words("uuids", *_UUIDS)),
        Option("exclude-gpu-uuid", _words("not_uuids", *_UUIDS)),
        Option("exclusive", _flag("exclusive"), ("false",)),
        Option("same-gpu", _flag("same_gpu")),
        Option("cores", _number("cores", 0, CORES_PER_GPU, "30"), free_up_to=CORES_PER_GPU),
        Option("cores-policy", _word("cores_elastic", {"hard": False, "elastic": True})),
        Option(
            "priority", _word("priority", {name: name for name in PRIORITIES}), ("burstable", "best-effort")
        ),
        Option("elastic", _elastic, ("false",)),
        Option("oversubscribe", _flag("oversubscribe")),
        Option("time-slicing", _flag("time_slicing"), ("true",)),
    )
}
"""The table of options, by name."""


def _is_one_of(gpu: Gpu, words: Sequence[str]) -> bool:
    return any(matches_model(gpu.model, word) for word in words)


def _spelled(value: object) -> str:
    """As an annotation would say it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _quoted(text: str) -> str:
    return '"' + text.encode("unicode_escape").decode("ascii")[:100] + '"'
