"""What a pod's annotations ask of its GPU slices, as one value, with every mistake as a sentence.

The count of slices is the resource's; annotations say how they are to be had: on how many GPUs, of which kind, alone,
together, with what share of compute. A name with ".<container>" after it is for that container and wins. The
names that users of HAMi and vgpu-manager know are taken too. A value that makes no sense is a mistake, and a container
with a mistake is held back, with an event that says what to write. An unknown name is only mentioned.
"""

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigaslice.model.annotation_rights import AnnotationRights
from gigaslice.model.gpu import CORES_PER_GPU, Gpu, matches_model
from gigaslice.model.request import Infeasible, Reason, Request

PREFIX = "gigaslice.io/"
_MIB = 1 << 20
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_MAX_GPUS = 16
_MAX_WORDS, _MAX_WORD = (
    100,
    128,
)  # that one annotation lists, and characters: each is compared with each of another
_MAX_NOTES = 10
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


def parse_options(
    annotations: Mapping[str, str],
    container: str,
    unit: SliceUnit,
    rights: AnnotationRights,
    *,
    recorded: Mapping[str, object] | None = None,
) -> RequestOptions:
    """The options of CONTAINER in a pod with these annotations.

    A text that needs a label of the pod's Namespace is a mistake, and left out, unless RIGHTS say that it was checked.
    RECORDED: fields that the container has been given already, which no RIGHTS take away.
    """
    mistakes: list[str] = []
    values: dict[str, Any] = {}
    for row in ANNOTATIONS:
        given = _look_up(row, annotations, container)
        if given is None:
            continue
        key, text = given
        try:
            fields = row.parse(text.strip(), unit)
        except ValueError as error:
            mistakes.append(f"{key}: {_quoted(text)} {error}")
            continue
        if rights is AnnotationRights.REFUSE and row.needs_label(text) and not _is_recorded(fields, recorded):
            mistakes.append(f"{key}: {_quoted(text)} {row.refusal}")
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
    return RequestOptions(**values, mistakes=tuple(mistakes), notes=tuple(_unknown(annotations)))


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


@dataclass(frozen=True, slots=True)
class Annotation:
    """One row of the table: the name after the prefix, other spellings in full, and what its text means.

    parse takes the text and what a slice is, returns fields of RequestOptions, and raises ValueError with the end of a
    sentence that begins with the text. free_values: None where every value only says how counted slices are had, and
    everybody may write it; else the exact texts that ask for nothing beyond them, while every other text needs the
    label of the pod's Namespace. free_up_to: the same for a number, as a cluster sets it by default.
    """

    name: str
    aliases: tuple[str, ...]
    parse: Callable[[str, SliceUnit], dict[str, object]]
    form: str
    meaning: str
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


def _flag(field: str) -> Callable[[str, SliceUnit], dict[str, object]]:
    def parse(text: str, unit: SliceUnit) -> dict[str, object]:
        del unit
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ValueError('must be "true" or "false"')
        return {field: text.lower() in _TRUE}

    return parse


def _number(field: str, low: int, high: int, example: str) -> Callable[[str, SliceUnit], dict[str, object]]:
    def parse(text: str, unit: SliceUnit) -> dict[str, object]:
        del unit
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise ValueError(f'must be a whole number from {low} to {high}, such as "{example}"')
        return {field: int(text)}

    return parse


def _word(field: str, values: Mapping[str, object]) -> Callable[[str, SliceUnit], dict[str, object]]:
    def parse(text: str, unit: SliceUnit) -> dict[str, object]:
        del unit
        if text.lower() not in values:
            raise ValueError("must be one of " + ", ".join(values))
        return {field: values[text.lower()]}

    return parse


def _words(field: str, check: Callable[[str], str | None]) -> Callable[[str, SliceUnit], dict[str, object]]:
    def parse(text: str, unit: SliceUnit) -> dict[str, object]:
        del unit
        words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        if len(words) > _MAX_WORDS:
            raise ValueError(f"must be at most {_MAX_WORDS} words")
        if any(len(word) > _MAX_WORD for word in words):
            raise ValueError(f"must be words of at most {_MAX_WORD} characters")
        problems = [problem for word in words if (problem := check(word))]
        if problems:
            raise ValueError(problems[0])
        return {field: words}  # an empty list says nothing, as with HAMi

    return parse


def _check_type(word: str) -> str | None:
    if re.search(r"[A-Za-z0-9]", word):
        return None
    return 'must name models, such as "A100" or "L4,A10"'


def _check_uuid(word: str) -> str | None:
    if re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z][-0-9A-Za-z]*", word):
        return None
    return 'must be UUIDs as nvidia-smi -L shows them, such as "GPU-6e1b5c1e-…"; indices change with reboots'


def _slices(text: str, unit: SliceUnit) -> int:
    """Slices of one size: a plain number counts slices, anything else is a size in bytes."""
    if re.fullmatch(r"[0-9]{1,6}", text):
        count = int(text)
        if count < 1:
            raise ValueError("must be 1 slice or more")
        return count
    size = unit.parse(text)
    if size % unit.size:
        raise ValueError(f"must be in whole slices of {unit.size // _MIB} MiB")
    return size // unit.size


def _parts(text: str, unit: SliceUnit) -> dict[str, object]:
    sizes = [word.strip() for word in text.split(",")]
    if len(sizes) > _MAX_GPUS:
        raise ValueError(f"must be at most {_MAX_GPUS} sizes")
    try:
        return {"parts": tuple(_slices(word, unit) for word in sizes)}
    except ValueError as error:
        raise ValueError(
            f'must be one size per GPU, such as "8GiB,16GiB" or "8,16" slices ({error})'
        ) from error


def _elastic(text: str, unit: SliceUnit) -> dict[str, object]:
    if text.lower() in (*_TRUE, *_FALSE) and text not in ("0", "1"):
        return {"elastic": text.lower() in _TRUE, "max_slices": None}
    try:
        return {"elastic": True, "max_slices": _slices(text, unit)}
    except ValueError as error:
        raise ValueError(
            f'must be "true", "false" or the most it may use of a GPU, such as "16GiB" ({error})'
        ) from error


ANNOTATIONS: tuple[Annotation, ...] = (
    Annotation("gpus", (), _number("gpus", 1, _MAX_GPUS, "2"), "`2`",
               "share the slices evenly over this many GPUs, all of one model"),
    Annotation("split", (), _word("whole_first", {"even": False, "whole-first": True}), "`even`, `whole-first`",
               "how slices of more than one GPU are divided: evenly, or into whole GPUs and the rest on one more "
               "(of 2.5 GPUs: two whole ones and half of a third); `even` where nothing is said"),
    Annotation("memory", (), _parts, "`8GiB,16GiB`",
               "a size for each GPU, where they are to differ; they add up to the limit. Plain numbers are slices"),
    Annotation("gpu-type", ("nvidia.com/use-gputype", "nvidia.com/include-gpu-type"),
               _words("types", _check_type), "`A100,H100`",
               "only GPUs whose model name has one of these words, in any case"),
    Annotation("exclude-gpu-type", ("nvidia.com/nouse-gputype", "nvidia.com/exclude-gpu-type"),
               _words("not_types", _check_type), "`T4`", "no GPU whose model name has one of these words"),
    Annotation("gpu-uuid", ("nvidia.com/use-gpuuuid", "nvidia.com/include-gpu-uuid"),
               _words("uuids", _check_uuid), "`GPU-6e1b…,GPU-9f02…`", "only these GPUs"),
    Annotation("exclude-gpu-uuid", ("nvidia.com/nouse-gpuuuid", "nvidia.com/exclude-gpu-uuid"),
               _words("not_uuids", _check_uuid), "`GPU-6e1b…`", "none of these GPUs"),
    Annotation("exclusive", (), _flag("exclusive"), "`true`",
               "no other pod gets slices of its GPUs while it holds them", free_values=("false",)),
    Annotation("same-gpu", (), _flag("same_gpu"), "`true`",
               "all containers of the pod are on the same GPU (with `gpus`: GPUs)"),
    Annotation("cores", (), _number("cores", 0, CORES_PER_GPU, "30"), "`30`",
               "per cent of each GPU's compute; guaranteed shares of a GPU add up to 100 at most",
               free_up_to=CORES_PER_GPU),
    Annotation("cores-policy", (), _word("cores_elastic", {"hard": False, "elastic": True}), "`hard`, `elastic`",
               "`elastic`: compute that others leave idle may be used beyond `cores`"),
    Annotation("priority", (), _word("priority", {name: name for name in PRIORITIES}),
               "`guaranteed`, `burstable`, `best-effort`",
               "who is lent more of the idle compute: 16 to 4 to 1; `burstable` where nothing is said",
               free_values=("burstable", "best-effort")),
    Annotation("elastic", (), _elastic, "`true`, `16GiB`",
               "may use more of a GPU while alone on it, up to that much of it", free_values=("false",)),
    Annotation("oversubscribe", (), _flag("oversubscribe"), "`true`",
               "may go on in host memory where the node lends some"),
    Annotation("time-slicing", (), _flag("time_slicing"), "`false`",
               "whether it gets the GPU by time slices, in turn with others, where their pages push each other off it",
               free_values=("true",)),
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


def _look_up(row: Annotation, annotations: Mapping[str, str], container: str) -> tuple[str, str] | None:
    for key in (f"{PREFIX}{row.name}.{container}", PREFIX + row.name, *row.aliases):
        if key in annotations:
            return key, annotations[key]
    return None


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


def _is_one_of(gpu: Gpu, words: Sequence[str]) -> bool:
    return any(matches_model(gpu.model, word) for word in words)


def _quoted(text: str) -> str:
    return '"' + text.encode("unicode_escape").decode("ascii")[:100] + '"'
