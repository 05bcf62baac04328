# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset pack`: makes the image of a dataset, so that a node fetches one object."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gigaslice.core.errors import ConfigError
from gigaslice.core.text import plain
from gigaslice.core.units import format_bytes
from gigaslice.runtime import settings
from gigaslice.runtime.command_line.command import OK, report
from gigaslice.runtime.progress import StepProgress

if TYPE_CHECKING:
    from gigaslice.core.dataset.pack_manifest import PackManifest
    from gigaslice.roles.dataset_node.packing.pack_location import PackLocation

HELP = "write the image of a dataset's files, with a manifest, for nodes to fetch in one piece"
DESCRIPTION = (
    "SRC and DST are directories of this machine, or s3://bucket/prefix, gs://, az://. SRC may be any other source too "
    "that needs no mount. DST gets the image, its listing and dataset.json, which names both and is written last. SRC "
    "is only read. Credentials are those of the usual variables (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, "
    "AZURE_STORAGE_KEY), or files of a directory."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds source and destination, and what opens them."""
    parser.add_argument(
        "source", metavar="SRC", help="a directory, or a source; with --check alone, the pack"
    )
    parser.add_argument(
        "pack",
        metavar="DST",
        nargs="?",
        help="a directory, made where there is none, or s3://bucket/prefix, gs://, az://",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace a pack of another dataset or version in DST"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read DST again and compare every byte with what it should be; writes nothing",
    )
    parser.add_argument(
        "--option",
        metavar="A=B",
        action="append",
        default=[],
        help="an option of SRC, as endpoint=http://minio:9000",
    )
    parser.add_argument(
        "--credentials",
        metavar="DIR",
        help="the credentials of SRC: a file for each key, as a Secret that is mounted",
    )
    parser.add_argument(
        "--to-option",
        metavar="A=B",
        action="append",
        default=[],
        help="the same of DST; without --to-option and --to-credentials, a DST of the kind of SRC is in the same store",
    )
    parser.add_argument("--to-credentials", metavar="DIR", help="the credentials of DST")
    parser.add_argument(
        "--scratch",
        metavar="DIR",
        help="where the image is made that goes into a bucket; it needs its size (default: TMPDIR, or /var/tmp)",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(arguments: argparse.Namespace) -> int:
    """Packs, or checks a pack."""
    from gigaslice.roles.dataset_node.packing import check_pack, make_pack

    source, pack = _locations(arguments)
    if arguments.check:
        source_of, where = (source, pack) if pack is not None else (None, source)
        with _ended_by_signal(), StepProgress("reading the list of files", quiet=arguments.quiet) as progress:
            checked = check_pack(where, source_of, _shown_by(progress))
        print(f"{where}: {_summary(checked)}: as it should be")
        return OK
    assert pack is not None
    notes: list[str] = []
    with _ended_by_signal(), StepProgress("reading the list of files", quiet=arguments.quiet) as progress:
        manifest = make_pack(
            source,
            pack,
            force=arguments.force,
            scratch=_scratch(arguments),
            progress=_shown_by(progress),
            note=notes.append,
            making=None if _scratch_is_named(arguments) or isinstance(pack, Path) else _tell_scratch,
        )
    print(f"{pack}: {_summary(manifest)}")
    return report(OK, *notes)


def _locations(arguments: argparse.Namespace) -> tuple[PackLocation, PackLocation | None]:
    """SRC and DST. Raises ConfigError with every mistake of the arguments."""
    from gigaslice.core.dataset.errors import RequestError
    from gigaslice.roles.dataset_node.packing import locate

    mistakes: list[str] = []
    if arguments.check and arguments.force:
        mistakes.append("--check writes nothing, so --force means nothing with it; leave one of them out")
    if arguments.pack is None and not arguments.check:
        mistakes.append("there is no DST; gigaslice dataset pack SRC DST, with a place for the pack")
    options = _options("--option", arguments.option, mistakes)
    to_options = _options("--to-option", arguments.to_option, mistakes)
    if arguments.pack is None and (to_options or arguments.to_credentials):
        mistakes.append("--to-option and --to-credentials are of DST, and there is none; leave them out")
    if arguments.check and arguments.scratch:
        mistakes.append("--check makes no image, so --scratch means nothing with it; leave one of them out")
    if mistakes:
        raise ConfigError(mistakes)
    environment = settings.environment()
    try:
        source = locate(arguments.source, options, _path(arguments.credentials), environment)
        if arguments.pack is None:
            return source, None
        pack = locate(arguments.pack, to_options, _path(arguments.to_credentials), environment, like=source)
    except RequestError as error:
        raise ConfigError(
            [str(error).replace("the Secret of the volume", "a directory for --credentials")]
        ) from None
    if arguments.scratch and isinstance(pack, Path):
        raise ConfigError([f"the image of {pack} is made in {pack} itself; leave --scratch out"])
    return source, pack


def _options(flag: str, given: Sequence[str], mistakes: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for option in given:
        name, divider, value = option.partition("=")
        if not divider or not name:
            mistakes.append(f'{flag} "{plain(name)}": write NAME=VALUE')
        options[name] = value
    return options


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _scratch(arguments: argparse.Namespace) -> Path:
    from gigaslice.roles.dataset_node.packing import SCRATCH

    return Path(arguments.scratch or settings.environment().get("TMPDIR") or SCRATCH)


def _scratch_is_named(arguments: argparse.Namespace) -> bool:
    return bool(arguments.scratch or settings.environment().get("TMPDIR"))


def _tell_scratch(directory: Path) -> None:
    report(OK, f"the image is made in {directory}; --scratch DIR names another place")


def _summary(manifest: PackManifest) -> str:
    return f"{manifest.files} files, {format_bytes(manifest.size)}, BLAKE3 {manifest.image_digest}"


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """SIGTERM is as Ctrl-C: a Job that is deleted has its upload aborted, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _shown_by(progress: StepProgress) -> Callable[[str, int, int], None]:
    """What is told what is done (read, hashed, uploaded or checked), how many bytes of it, and of how many."""

    def show(what: str, done: int, total: int) -> None:
        progress.show(what, done, total, form=format_bytes, rate=True, even=True)

    return show
