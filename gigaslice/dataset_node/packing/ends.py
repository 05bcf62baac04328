"""The two ends of packing: a directory of this machine, or a place that nodes read, with what opens it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gigaslice.dataset.errors import RequestError
from gigaslice.dataset.source_spec import MOUNTED_KINDS, OBJECT_KINDS, SourceSpec
from gigaslice.dataset_node.packing.own_credentials import credentials_in, credentials_of_environment
from gigaslice.dataset_node.sources.credentials import Credentials
from gigaslice.dataset_node.sources.opening import OpenedSource, effective_spec, open_source
from gigaslice.dataset_node.sources.posix import PosixSource

__all__ = ["End", "Remote", "end_of", "opened", "refuse_overlap"]

_SHARED_OPTIONS = frozenset(("endpoint", "account", "region", "path_style"))


@dataclass(frozen=True, slots=True)
class Remote:
    """A source that is no directory of this machine, or a place in an object store."""

    spec: SourceSpec
    credentials: Credentials

    def __str__(self) -> str:
        return self.spec.canonical


End = Path | Remote
"""SRC or DST."""


def end_of(
    text: str,
    options: Mapping[str, str],
    credentials: Path | None,
    environment: Mapping[str, str],
    like: End | None = None,
) -> End:
    """The end that TEXT names.

    Args:
        text: A path, or a source such as s3://bucket/prefix.
        options: Of the source.
        credentials: The directory with its credentials; none for those of the environment.
        environment: Of this process.
        like: The other end: where this one is of its kind, and has neither options nor credentials of its own, it is
            in the same store.

    Raises:
        RequestError: A source that there is none of, or options and credentials that do not go with it.
    """
    if "://" not in text and not text.startswith("rclone:"):
        return _directory(text, options, credentials)
    spec = SourceSpec.parse(text)  # without options, which are those of the other end perhaps
    if spec.kind == "file":
        return _directory(spec.location, options, credentials)
    if isinstance(like, Remote) and like.spec.kind == spec.kind and not options and credentials is None:
        kept = {name: value for name, value in like.spec.options if name in _SHARED_OPTIONS}
        return Remote(SourceSpec.parse(text, kept), like.credentials)
    spec = SourceSpec.parse(text, options)
    if spec.kind in MOUNTED_KINDS:
        raise RequestError(
            f"{spec.canonical} is not mounted by this command; mount it (mount -t {spec.kind}), and name the directory"
        )
    if credentials is not None:
        return Remote(spec, credentials_in(credentials))
    return Remote(spec, credentials_of_environment(spec, environment))


def _directory(text: str, options: Mapping[str, str], credentials: Path | None) -> Path:
    if options or credentials is not None:
        raise RequestError(f"{text} is a directory, which has no options and no credentials; leave them out")
    return Path(text)


async def opened(end: End) -> OpenedSource:
    """The source that END is. Addresses of this machine are allowed: who packs could reach them anyway.

    Raises:
        SourceError: It cannot be opened.
        RequestError: Options or credentials that it cannot be opened with.
    """
    if isinstance(end, Path):
        return OpenedSource(SourceSpec("file", str(end)), PosixSource(end))
    return await open_source(end.spec, end.credentials, mounts=None, local_addresses=True)


def refuse_overlap(source: End, pack: End) -> None:
    """Refuses a pack that would be a part of what is packed, and in an object store also the other way round.

    Raises:
        RequestError: They overlap.
    """
    if isinstance(source, Path) and isinstance(pack, Path):
        within = source.resolve() in (pack.resolve(), *pack.resolve().parents)
    elif isinstance(source, Remote) and isinstance(pack, Remote) and _one_store(source, pack):
        above, below = (_parts(end.spec.path) for end in (source, pack))
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


def _one_store(source: Remote, pack: Remote) -> bool:
    kind = source.spec.kind
    if kind not in OBJECT_KINDS or pack.spec.kind != kind or source.spec.server != pack.spec.server:
        return False
    one, other = (effective_spec(end.spec, end.credentials) for end in (source, pack))
    return all(one.option(name) == other.option(name) for name in ("endpoint", "account"))


def _parts(path: str) -> list[str]:
    return [one for one in path.split("/") if one]
