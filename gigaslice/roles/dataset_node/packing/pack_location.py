# SPDX-License-Identifier: Apache-2.0
"""Where packing reads from and writes to: a directory of this machine, or a place that nodes read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.source_spec import MOUNTED_KINDS, OBJECT_KINDS, SourceSpec
from gigaslice.roles.dataset_node.packing.own_credentials import credentials_in, credentials_of_environment
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.opening import OpenedSource, effective_spec, open_source
from gigaslice.roles.dataset_node.sources.posix import PosixSource

__all__ = ["PackLocation", "RemoteLocation", "locate", "open_location", "refuse_overlap"]

_SHARED_OPTIONS = frozenset(("endpoint", "account", "region", "path_style"))


@dataclass(frozen=True, slots=True)
class RemoteLocation:
    """A source that is no directory of this machine, or a place in an object store."""

    spec: SourceSpec
    credentials: Credentials

    def __str__(self) -> str:
        return self.spec.canonical


PackLocation = Path | RemoteLocation
"""SRC or DST."""


def locate(
    text: str,
    options: Mapping[str, str],
    credentials: Path | None,
    environment: Mapping[str, str],
    like: PackLocation | None = None,
) -> PackLocation:
    """The place that TEXT names.

    Args:
        text: A path, or a source such as s3://bucket/prefix.
        options: Of the source.
        credentials: The directory with its credentials; none for those of the environment.
        environment: Of this process.
        like: The pack's source, for its target: a target of the same kind that has neither options nor credentials of
            its own is in the same store.

    Raises:
        RequestError: A source that there is none of, or options and credentials that do not go with it.
    """
    if "://" not in text and not text.startswith("rclone:"):
        return _directory(text, options, credentials)
    spec = SourceSpec.parse(text)  # without options, which are those of LIKE perhaps
    if spec.kind == "file":
        return _directory(spec.location, options, credentials)
    if (
        isinstance(like, RemoteLocation)
        and like.spec.kind == spec.kind
        and not options
        and credentials is None
    ):
        kept = {name: value for name, value in like.spec.options if name in _SHARED_OPTIONS}
        return RemoteLocation(SourceSpec.parse(text, kept), like.credentials)
    spec = SourceSpec.parse(text, options)
    if spec.kind in MOUNTED_KINDS:
        raise RequestError(
            f"{spec.canonical} is not mounted by this command; mount it (mount -t {spec.kind}), and name the directory"
        )
    if credentials is not None:
        return RemoteLocation(spec, credentials_in(credentials))
    return RemoteLocation(spec, credentials_of_environment(spec, environment))


def _directory(text: str, options: Mapping[str, str], credentials: Path | None) -> Path:
    if options or credentials is not None:
        raise RequestError(f"{text} is a directory, which has no options and no credentials; leave them out")
    return Path(text)


async def open_location(location: PackLocation) -> OpenedSource:
    """The source that LOCATION is. Addresses of this machine are allowed: who packs could reach them anyway.

    Raises:
        SourceError: It cannot be opened.
        RequestError: Options or credentials that it cannot be opened with.
    """
    if isinstance(location, Path):
        return OpenedSource(SourceSpec("file", str(location)), PosixSource(location))
    return await open_source(location.spec, location.credentials, mounts=None, local_addresses=True)


def refuse_overlap(source: PackLocation, pack: PackLocation) -> None:
    """Refuses a pack that would be a part of what is packed, and in an object store also the other way round.

    Raises:
        RequestError: They overlap.
    """
    if isinstance(source, Path) and isinstance(pack, Path):
        within = source.resolve() in (pack.resolve(), *pack.resolve().parents)
    elif isinstance(source, RemoteLocation) and isinstance(pack, RemoteLocation) and _one_store(source, pack):
        above, below = (_parts(location.spec.path) for location in (source, pack))
        within = below[: len(above)] == above
        if not within and above[: len(below)] == below:
            raise RequestError(
                f"{source} is in {pack}, which would have other files than a pack's; choose a place outside of it"
            )
    else:
        return
    if within:
        raise RequestError(
            f"{pack} is in {source}, and the pack would be packed with it; choose a place outside of it"
        )


def _one_store(source: RemoteLocation, pack: RemoteLocation) -> bool:
    kind = source.spec.kind
    if kind not in OBJECT_KINDS or pack.spec.kind != kind or source.spec.server != pack.spec.server:
        return False
    source_spec, pack_spec = (
        effective_spec(location.spec, location.credentials) for location in (source, pack)
    )
    return all(source_spec.option(name) == pack_spec.option(name) for name in ("endpoint", "account"))


def _parts(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]
