"""`gigaslice dataset pack`: makes the image of a dataset, so that a node fetches one object."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli._dataset._bar import Bar
from agent.cli._shared import OK, report
from gigaslice.errors import ConfigError
from gigaslice.runtime import settings
from gigaslice.text import plain
from gigaslice.units import format_bytes

if TYPE_CHECKING:
    from gigaslice.dataset.pack_manifest import PackManifest
    from gigaslice.dataset_node.packing.ends import End

HELP = "write the image of a dataset's files, with a manifest, for nodes to fetch in one piece"
DESCRIPTION = (
    "SRC and DST are directories of this machine, or s3://bucket/prefix, gs://, az://. SRC may be any other source too "
    "that needs no mount. DST gets the image, its listing and dataset.json, which names both and is written last. SRC "
    "is only read. Credentials are those of the usual variables (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, "
    "AZURE_STORAGE_KEY), or files of a directory."
)
SETTINGS = False

_TOLD_SECONDS = 60.0


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


def run(known: argparse.Namespace) -> int:
    """Packs, or checks a pack."""
    from gigaslice.dataset_node.packing import check_pack, make_pack

    source, pack = _ends(known)
    if known.check:
        source_of, where = (source, pack) if pack is not None else (None, source)
        with _ended_by_signal(), _Bar(known.quiet) as bar:
            checked = check_pack(where, source_of, bar.show)
        print(f"{where}: {_said(checked)}: as it should be")
        return OK
    assert pack is not None
    notes: list[str] = []
    with _ended_by_signal(), _Bar(known.quiet) as bar:
        made = make_pack(
            source, pack, force=known.force, scratch=_scratch(known), progress=bar.show, note=notes.append
        )
    print(f"{pack}: {_said(made)}")
    return report(OK, *notes)


def _ends(known: argparse.Namespace) -> tuple[End, End | None]:
    """SRC and DST. Raises ConfigError with every mistake of the arguments."""
    from gigaslice.dataset.errors import RequestError
    from gigaslice.dataset_node.packing import end_of

    mistakes: list[str] = []
    if known.check and known.force:
        mistakes.append("--check writes nothing, so --force means nothing with it; leave one of them out")
    if known.pack is None and not known.check:
        mistakes.append("there is no DST; gigaslice dataset pack SRC DST, with a place for the pack")
    options = _options("--option", known.option, mistakes)
    to_options = _options("--to-option", known.to_option, mistakes)
    if known.pack is None and (to_options or known.to_credentials):
        mistakes.append("--to-option and --to-credentials are of DST, and there is none; leave them out")
    if known.check and known.scratch:
        mistakes.append("--check makes no image, so --scratch means nothing with it; leave one of them out")
    if mistakes:
        raise ConfigError(mistakes)
    environment = settings.environment()
    try:
        source = end_of(known.source, options, _path(known.credentials), environment)
        if known.pack is None:
            return source, None
        pack = end_of(known.pack, to_options, _path(known.to_credentials), environment, like=source)
    except RequestError as error:
        raise ConfigError(
            [str(error).replace("the Secret of the volume", "a directory for --credentials")]
        ) from None
    if known.scratch and isinstance(pack, Path):
        raise ConfigError([f"the image of {pack} is made in {pack} itself; leave --scratch out"])
    return source, pack


def _options(flag: str, given: Sequence[str], mistakes: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, divider, value = one.partition("=")
        if not divider or not name:
            mistakes.append(f'{flag} "{plain(name)}": write NAME=VALUE')
        found[name] = value
    return found


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _scratch(known: argparse.Namespace) -> Path:
    from gigaslice.dataset_node.packing import SCRATCH

    return Path(known.scratch or settings.environment().get("TMPDIR") or SCRATCH)


def _said(made: PackManifest) -> str:
    return f"{made.files} files, {format_bytes(made.size)}, BLAKE3 {made.image_digest}"


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """SIGTERM is as Ctrl-C: a Job that is deleted has its upload aborted, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Bar(Bar):
    """The bar, with what is done of how many bytes; where there is no terminal, a line a minute."""

    def __init__(self, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._quiet = quiet
        self._what = ""
        self._begin = self._told = time.monotonic()
        self._from = 0

    def __enter__(self) -> _Bar:
        return self

    def show(self, what: str, done: int, total: int) -> None:
        """Redraws the line. WHAT: read, hashed, uploaded or checked."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._begin, self._from = what, now, done
        speed = int((done - self._from) / max(now - self._begin, 0.001))
        text = f"{what} {format_bytes(done)} of {format_bytes(total)}, {format_bytes(speed)}/s"
        if self.shown:
            self.draw(done / total if total else 1.0, text, last=done >= total)
        elif not self._quiet and now - self._told >= _TOLD_SECONDS:
            self._told = now
            print(f"gigaslice: {text}", file=sys.stderr, flush=True)
