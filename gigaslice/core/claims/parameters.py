# SPDX-License-Identifier: Apache-2.0
"""Parameters of a claim to devices: what a claim, or the class of its devices, says beyond count and capacity. Pure.

    config:
    - opaque:
        driver: gigaslice.io
        parameters: {apiVersion: config.gigaslice.io/v1alpha1, kind: VGPU, elastic: 16GiB, priority: best-effort}

They are options (`gigaslice.core.model.options`), each with one spelling. What a claim says by itself, such as how many
GPUs and how much memory, is no parameter: ELSEWHERE tells where it is written. A container has one quota, so requests
that it has together have one set of parameters. What a DeviceClass says was written by an administrator and counts as
checked; what a claim says needs the rights that an annotation would need.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gigaslice.core.claims.names import DRIVER
from gigaslice.core.claims.resource_claim import ClaimConfig, ClaimResult, ResourceClaim
from gigaslice.core.model import CORES_PER_GPU, AnnotationRights, RequestOptions, SliceUnit
from gigaslice.core.model.options import OPTIONS, PRIORITIES, GivenOption, Option, request_options
from gigaslice.core.text import plain

__all__ = ["API_VERSION", "ELSEWHERE", "KIND", "PARAMETERS", "Parameter", "claim_options"]

API_VERSION, KIND = "config.gigaslice.io/v1alpha1", "VGPU"
_MOST_UNKNOWN = 10  # of which each gets a sentence
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?[KMGT]iB?")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of the table.

    Attributes:
        name: The field.
        option: The option that it is.
        types: The JSON types that it may have: "boolean", "string".
        words: The texts that it may be; empty where it is a size, or no text.
        form: Values as a user writes them.
        meaning: What it does, for the documentation.
        mistake: What to write, where a value is none.
        makes_sense: Whether a value may be meant, beyond its type.
    """

    name: str
    option: str
    types: tuple[str, ...]
    words: tuple[str, ...]
    form: str
    meaning: str
    mistake: str
    makes_sense: Callable[[object], bool] = lambda value: True

    def takes(self, value: object) -> bool:
        """Whether VALUE can be what it says; how much a size may be is for the option to say."""
        kind = {bool: "boolean", str: "string"}.get(type(value), "")
        return kind in self.types and (not self.words or value in self.words) and self.makes_sense(value)

    @property
    def row(self) -> Option:
        """What may be written, and by whom."""
        return OPTIONS[self.option]


def _is_flag_or_size(value: object) -> bool:
    """Only units that are one number to everybody: a quantity of Kubernetes counts "16G" otherwise than we do."""
    return not isinstance(value, str) or _SIZE.fullmatch(value) is not None


def _flag(name: str, option: str, form: str, meaning: str) -> Parameter:
    return Parameter(name, option, ("boolean",), (), form, meaning, "write true or false, without quotes")


def _word(name: str, option: str, words: Iterable[str], meaning: str) -> Parameter:
    words = tuple(words)
    form = ", ".join(f"`{word}`" for word in words)
    return Parameter(name, option, ("string",), words, form, meaning, f"write one of {', '.join(words)}")


PARAMETERS: tuple[Parameter, ...] = (
    _word("coresPolicy", "cores-policy", ("hard", "elastic"),
          "`elastic`: compute that others leave idle may be used beyond `cores`"),
    _word("priority", "priority", PRIORITIES,
          "who is lent more of the idle compute: 16 to 4 to 1; `burstable` where nothing is said"),
    Parameter("elastic", "elastic", ("boolean", "string"), (), "`true`, `16GiB`",
              "may use more of a GPU while alone on it, up to that much of it",
              'write true, false, or the most it may use of a GPU with its unit, such as "16GiB"', _is_flag_or_size),
    _flag("oversubscribe", "oversubscribe", "`true`", "may go on in host memory where the node lends some"),
    _flag("timeSlicing", "time-slicing", "`false`",
          "whether it gets the GPU by time slices, in turn with others, where their pages push each other off it"),
)  # fmt: skip
"""The table of parameters."""

_BY_NAME = {row.name: row for row in PARAMETERS}

ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "gpus": ("gpus", "write count in the request, and capacity.requests.memory is of each GPU"),
    "split": ("split", "write a request for each size: one without capacity.requests.memory has a whole GPU"),
    "memory": (
        "memory",
        "write capacity.requests.memory in the request; for GPUs that differ in it, a request for each size",
    ),
    "gpuType": (
        "gpu-type",
        "write a selector in the request: cel.expression: "
        'device.attributes["gigaslice.io"].productName.contains("A100")',
    ),
    "excludeGpuType": (
        "exclude-gpu-type",
        "write a selector in the request: cel.expression: "
        '!device.attributes["gigaslice.io"].productName.contains("T4")',
    ),
    "gpuUuid": (
        "gpu-uuid",
        'write a selector in the request: cel.expression: device.attributes["gigaslice.io"].uuid == "GPU-6e1b5c1e-…"',
    ),
    "excludeGpuUuid": (
        "exclude-gpu-uuid",
        'write a selector in the request: cel.expression: device.attributes["gigaslice.io"].uuid != "GPU-6e1b5c1e-…"',
    ),
    "exclusive": (
        "exclusive",
        "leave capacity.requests.memory out of the request: it then has the whole GPU, which nobody else gets",
    ),
    "sameGpu": (
        "same-gpu",
        "write a constraint over the requests of the containers: constraints: "
        f"[{{requests: [a, b], matchAttribute: {DRIVER}/uuid}}]",
    ),
    "cores": ("cores", "write capacity.requests.cores in the request, in per cent of each GPU"),
}
"""What is no parameter because a claim says it by itself: the option, and how it is written."""


class _Given(NamedTuple):
    """What was written for one parameter. where: in which parameters; request: for which request."""

    row: Parameter
    value: object
    where: str
    request: str = ""

    @property
    def option(self) -> GivenOption:
        return GivenOption.of(self.row.option, f"{self.where}.{self.row.name}", self.value)

    def says_as(self, other: _Given) -> bool:
        return type(self.value) is type(other.value) and self.value == other.value


def claim_options(
    claim: ResourceClaim, requests: Sequence[str], unit: SliceUnit, rights: AnnotationRights
) -> RequestOptions:
    """Returns the options of requests that are one quota, with a sentence for each mistake.

    Args:
        claim: The claim.
        requests: The requests, as containers name them.
        unit: What a slice is on this node.
        rights: Whether anything has checked what the claim itself says. What its class says counts as checked.
    """
    results = [result for result in claim.results if result.main in requests]
    mistakes: list[str] = []
    fields = [
        (config, _fields(config, mistakes))
        for config in sorted(claim.configs, key=lambda config: not config.from_class)
        if any(map(config.is_for, results))
    ]
    effective: dict[str, _Given] = {}
    for result in results:
        for name, given in _of_result(fields, result).items():
            first = effective.setdefault(name, given._replace(request=result.main))
            if not first.says_as(given):
                mistakes.append(
                    f"{given.where}.{name}: requests {first.request} and {result.main} are one quota of a container "
                    "and say it differently; write the same for both, or give them to different containers"
                )
    of_class = [_of_result([entry for entry in fields if entry[0].from_class], result) for result in results]
    granted = {  # by the class of every one of them: one quota takes what is granted to a part of it to all of it
        name
        for name, given in effective.items()
        if all(name in grants and grants[name].says_as(given) for grants in of_class)
    }
    own, checked = (
        request_options(
            (given.option for name, given in effective.items() if (name in granted) is grant), unit, right
        )
        for grant, right in ((False, rights), (True, AnnotationRights.CHECKED))
    )
    cores = _cores(results)
    if cores > CORES_PER_GPU:
        mistakes.append(
            f"requests {', '.join(requests)}: {cores} per cent of the compute of one GPU; ask for {CORES_PER_GPU} at "
            "most in all"
        )
    return dataclasses.replace(
        own,
        **_differing(checked),
        cores=min(cores, CORES_PER_GPU),
        mistakes=tuple(dict.fromkeys((*mistakes, *checked.mistakes, *own.mistakes))),
    )


def _of_result(
    configs: Iterable[tuple[ClaimConfig, Mapping[str, _Given]]], result: ClaimResult
) -> dict[str, _Given]:
    """What holds for one result: later parameters win."""
    effective: dict[str, _Given] = {}
    for config, fields in configs:
        if config.is_for(result):
            effective.update(fields)
    return effective


def _fields(config: ClaimConfig, mistakes: list[str]) -> dict[str, _Given]:
    """The fields of parameters that can be meant; a sentence is added to MISTAKES for each other one."""
    where = f"{KIND} of the DeviceClass" if config.from_class else KIND
    parameters = config.parameters
    for key, value in (("apiVersion", API_VERSION), ("kind", KIND)):
        if parameters.get(key) != value:
            wrong = parameters.get(key)
            have = f" in place of {_quoted(wrong)}" if isinstance(wrong, str) else ""
            mistakes.append(
                f"opaque parameters{' of the DeviceClass' if config.from_class else ''}: write {key}: {value}{have}"
            )
            return {}
    fields: dict[str, _Given] = {}
    unknown = 0
    for name, value in parameters.items():
        row = _BY_NAME.get(name)
        if row is not None and row.takes(value):
            fields[name] = _Given(row, value, where)
        elif row is not None:
            mistakes.append(f"{where}.{name}: {row.mistake}, or leave it out")
        elif name not in ("apiVersion", "kind") and (unknown := unknown + 1) <= _MOST_UNKNOWN:
            mistakes.append(_unknown(where, name))
    return fields


def _unknown(where: str, name: str) -> str:
    if name in ELSEWHERE:
        return f"{where}.{name}: is no parameter; {ELSEWHERE[name][1]}"
    names = {_folded(known): known for known in (*_BY_NAME, *ELSEWHERE)}
    names |= {_folded(row.option): row.name for row in PARAMETERS}
    near = difflib.get_close_matches(_folded(name[:_SHOWN]), names, n=1)
    if near and names[near[0]] in ELSEWHERE:
        return f"{where}: {_quoted(name)} is no parameter; {ELSEWHERE[names[near[0]]][1]}"
    if near:
        return f'{where}: {_quoted(name)} is no parameter; did you mean "{names[near[0]]}"?'
    return f"{where}: {_quoted(name)} is no parameter; write some of {', '.join(_BY_NAME)}"


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _quoted(text: str) -> str:
    return f'"{plain(text[:_SHOWN])}"'


def _differing(options: RequestOptions) -> dict[str, Any]:
    """Fields of options that are not as where nothing is said."""
    return {
        field.name: value
        for field in dataclasses.fields(options)
        if (value := getattr(options, field.name)) != field.default and field.name != "mistakes"
    }


def _cores(results: Iterable[ClaimResult]) -> int:
    """Per cent of compute: the most that was allocated of one GPU. Where GPUs differ in it, each hold has its own."""
    of_device: dict[tuple[str, str], int] = {}
    for result in results:
        device = (result.pool, result.device)
        of_device[device] = of_device.get(device, 0) + (result.cores or 0)
    return max(of_device.values(), default=0)
