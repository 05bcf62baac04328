# SPDX-License-Identifier: Apache-2.0
"""What one volume asks for, read from its attributes. Pure.

The attributes are what a user writes under `volumeAttributes`. A name that there is none of is refused with the
nearest one: silently ignored, `modus: local` would fetch a terabyte. Credentials are no attributes; the kubelet brings
them from the Secret of `nodePublishSecretRef`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.source_spec import MOUNTED_KINDS, SourceSpec, option_pairs
from gigaslice.core.text import plain

__all__ = ["ATTRIBUTES", "Check", "DatasetRequest", "Mode", "VolumeRequest", "parse_attributes"]

ATTRIBUTES = {
    "dataset": "the name of a Dataset object, or NAMESPACE/NAME; several are separated by commas",
    "source": "where the data are, as in s3://bucket/prefix",
    "source.NAME": "the same for one of several datasets, which becomes the directory NAME of the volume",
    "options": "options of the source, as in endpoint=http://minio:9000,region=eu",
    "options.NAME": "the same for the dataset NAME",
    "mode": "cache (default): copied to the node first; local: the storage system itself is mounted",
    "check": "listing (default): the source is listed each time; pinned, never: for Dataset objects only",
}
"""Every attribute with its meaning; the table of docs/datasets.md."""

_PLAIN = ("dataset", "source", "options", "mode", "check")
_NAMED = ("source", "options")
_KUBELETS = "csi.storage.k8s.io/"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_OBJECT = re.compile(rf"([a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?/)?{_NAME.pattern}")
_MOST = 32  # datasets of one volume

E = TypeVar("E", bound=Enum)


class Mode(Enum):
    """How a pod gets at the data."""

    CACHE = "cache"
    LOCAL = "local"


class Check(Enum):
    """How it is found out which version a pod gets."""

    LISTING = "listing"
    PINNED = "pinned"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """One dataset of a volume: a source, or the name of a Dataset object.

    name: what the user calls it; the source where there is no name. directory: in the volume; empty for the only one.
    """

    name: str
    directory: str = ""
    spec: SourceSpec | None = None
    dataset: str = ""


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """What one volume asks for. check: None where the attributes say nothing."""

    datasets: tuple[DatasetRequest, ...]
    mode: Mode = Mode.CACHE
    check: Check | None = None

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of a volume of several datasets."""
        return tuple(dataset.directory for dataset in self.datasets if dataset.directory)

    @property
    def name(self) -> str:
        """For people."""
        return ", ".join(dataset.name for dataset in self.datasets)


def parse_attributes(attributes: Mapping[str, str]) -> VolumeRequest:
    """The request that the attributes of a volume are; the kubelet's own entries among them are left out.

    Raises:
        RequestError: An attribute that there is none of, or a value that cannot be used; the text says what to write.
    """
    given = {key: value.strip() for key, value in attributes.items() if not key.startswith(_KUBELETS)}
    for key in given:
        _check_key(key)
    names = [name.strip() for name in given.get("dataset", "").split(",") if name.strip()]
    sources = {key.partition(".")[2]: given[key] for key in sorted(given) if key.startswith("source.")}
    if "source" in given and (names or sources):
        raise RequestError(
            "source stands beside other datasets; write source.NAME: for each, and each becomes a directory"
        )
    if not names and not sources and not given.get("source"):
        raise RequestError(
            "the volume names no data; write dataset: NAME or source: s3://bucket/prefix under volumeAttributes"
        )
    mode = _choice(Mode, "mode", given.get("mode"), Mode.CACHE)
    check = _choice(Check, "check", given["check"], Check.LISTING) if "check" in given else None
    if given.get("source"):
        spec = SourceSpec.parse(given["source"], option_pairs("options", given.get("options", "")))
        datasets = [DatasetRequest(spec.canonical, spec=spec)]
    else:
        datasets = _several(names, sources, given)
    inline = [dataset.name for dataset in datasets if dataset.spec is not None]
    if check in (Check.PINNED, Check.NEVER) and inline:
        raise RequestError(
            f"check: {check.value} is for Dataset objects, and {inline[0]} is a source; leave check out, so that the "
            "source is listed, or make a Dataset object"
        )
    if mode is Mode.LOCAL:
        for dataset in datasets:
            if dataset.spec is not None:
                check_local(dataset.spec)
    return VolumeRequest(tuple(datasets), mode, check)


def check_local(spec: SourceSpec) -> None:
    """Refuses mode: local for a source that cannot be mounted. Raises RequestError."""
    if spec.kind != "file" and spec.kind not in MOUNTED_KINDS:
        raise RequestError(
            f"mode: local mounts the storage system itself, which a {spec.kind} source has none for; "
            "write mode: cache"
        )


def _several(names: list[str], sources: Mapping[str, str], given: Mapping[str, str]) -> list[DatasetRequest]:
    if "options" in given:
        raise RequestError("options stands beside no source; write options.NAME: for source.NAME:")
    for key in given:
        if key.startswith("options.") and key.partition(".")[2] not in sources:
            raise RequestError(
                f"{plain(key)} belongs to no source; write source.{key.partition('.')[2]}: too"
            )
    for name in (*names, *sources):
        if not (_OBJECT if name in names else _NAME).fullmatch(name):
            raise RequestError(
                f'"{plain(name)[:80]}" is no name of a dataset; use at most 63 of a-z, 0-9, "-" and "."'
            )
    every = [*(_directory(name) for name in names), *sources]
    twice = next((name for name in every if every.count(name) > 1), "")
    if twice:
        raise RequestError(f"dataset {twice} is there twice; name each once")
    if len(every) > _MOST:
        raise RequestError(f"{len(every)} datasets in one volume; at most {_MOST} are possible")
    alone = len(every) == 1 and not sources
    return [
        *(DatasetRequest(name, "" if alone else _directory(name), dataset=name) for name in names),
        *(
            DatasetRequest(
                name,
                name,
                SourceSpec.parse(text, option_pairs(f"options.{name}", given.get(f"options.{name}", ""))),
            )
            for name, text in sources.items()
        ),
    ]


def _directory(name: str) -> str:
    """The last part of "namespace/name"."""
    return name.rpartition("/")[2]


def _check_key(key: str) -> None:
    base, dot, name = key.partition(".")
    if key in _PLAIN or (dot and base in _NAMED and name):
        return
    near = difflib.get_close_matches(key.lower(), _PLAIN, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ATTRIBUTES)}"
    if re.search(r"secret|passw|token|key|credential", key.lower()):
        hint = "credentials go into a Secret that nodePublishSecretRef names"
    raise RequestError(f'volumeAttributes has no "{plain(key)[:80]}"; {hint}')


def _choice(kind: type[E], name: str, text: str | None, default: E) -> E:
    if text is None:
        return default
    for member in kind:
        if member.value == text:
            return member
    values = [str(member.value) for member in kind]
    near = difflib.get_close_matches(text, values, n=1)
    hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(values)}"
    raise RequestError(f'{name} is "{plain(text)[:80]}"; {hint}')
