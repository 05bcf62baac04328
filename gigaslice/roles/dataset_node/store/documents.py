# SPDX-License-Identifier: Apache-2.0
"""The small files of the store: JSON with a version and a checksum, replaced in one step.

A file that was cut or changed is told from a good one and reported, and so is one of another version: it is never half
used. What a later service has added without another version is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gigaslice.core.dataset.errors import DatasetError
from gigaslice.core.kube.json_text import read_json
from gigaslice.runtime.files import read_file, replace_file

__all__ = [
    "DatasetMetadata",
    "DocumentError",
    "Volume",
    "VolumeRecord",
    "VolumeSource",
    "read_metadata",
    "read_record",
    "write_document",
]

_VERSION = 1
_MOST_BYTES = 1 << 20
_SOURCES_KEY = "pieces"  # in files of nodes since the first version


class DocumentError(DatasetError):
    """A file of the store that cannot be used."""


@dataclass(frozen=True, slots=True)
class DatasetMetadata:
    """What is known of one dataset version.

    key: see `gigaslice.core.dataset.source_spec.dataset_key`. size: bytes of the image. source: as a person reads it,
    without credentials, with what the Secret says about where it is. files, bytes: of the dataset. listing: its
    listing's digest, hexadecimal. created: Unix time of the last attempt to fetch it. digest: BLAKE3 of the whole
    image; empty until all of it has arrived. stamp: size and mtime in ns of the image when the digest was right.
    requested: the source as the pod wrote it that had it fetched; empty where there is no difference.
    """

    key: str
    size: int
    source: str
    files: int = 0
    bytes: int = 0
    listing: str = ""
    created: float = 0.0
    digest: str = ""
    stamp: tuple[int, int] = (0, 0)
    requested: str = ""


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume of one pod. id: the kubelet's handle. target: where the kubelet wants it."""

    id: str
    target: str
    pod_uid: str
    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class VolumeSource:
    """What a volume, or one directory of it, shows: a dataset of the cache, or a mounted storage system (local mode).

    Exactly one of `key` and `path` is set. directory: the name in the volume; empty where the volume has one source.
    name: what the user calls it.
    """

    key: str = ""
    path: str = ""
    directory: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """A volume and what is in it. No sources yet: a placeholder was published, and the data are on their way."""

    volume: Volume
    volume_sources: tuple[VolumeSource, ...] = ()
    created: float = 0.0


def read_metadata(path: Path) -> DatasetMetadata:
    """Reads what is known of a dataset. Raises DocumentError."""
    body = _read(path)
    try:
        size, mtime = body["stamp"]
        known = _known(DatasetMetadata, body)
        return DatasetMetadata(**{**known, "stamp": (int(size), int(mtime))})
    except (TypeError, ValueError, KeyError) as error:
        raise DocumentError(f"{path} does not describe a dataset") from error


def read_record(path: Path) -> VolumeRecord:
    """Reads the record of a volume. Raises DocumentError."""
    body = _read(path)
    try:
        volume_sources = tuple(
            VolumeSource(**_known(VolumeSource, volume_source)) for volume_source in body[_SOURCES_KEY]
        )
        volume = Volume(**_known(Volume, body["volume"]))
        return VolumeRecord(volume, volume_sources, float(body["created"]))
    except (TypeError, ValueError, KeyError) as error:
        raise DocumentError(f"{path} does not describe a volume") from error


def write_document(path: Path, value: DatasetMetadata | VolumeRecord) -> None:
    """Writes one, on the disk before it has its name. Raises OSError."""
    body = asdict(value)
    if isinstance(value, VolumeRecord):
        body[_SOURCES_KEY] = body.pop("volume_sources")
    text = {"version": _VERSION, "check": _checksum(body), "body": body}
    replace_file(path, json.dumps(text, indent=1, sort_keys=True).encode(), mode=0o600, sync=True)


def _known(of: type[DatasetMetadata | Volume | VolumeSource], body: Any) -> dict[str, Any]:
    """The fields of BODY that OF has. Raises TypeError where BODY is no object."""
    if not isinstance(body, dict):
        raise TypeError(f"{body!r} is no object")
    names = {field.name for field in fields(of)}
    return {name: value for name, value in body.items() if name in names}


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_json(read_file(path, _MOST_BYTES))
        version, check, body = text["version"], text["check"], text["body"]
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DocumentError(f"{path} is damaged") from error
    if version != _VERSION:
        raise DocumentError(f"{path} is of another version of the dataset service ({version})")
    if not isinstance(body, dict) or check != _checksum(body):
        raise DocumentError(f"{path} is damaged")
    return body


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
