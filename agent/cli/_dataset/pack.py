"""`gigaslice dataset pack`: makes the image of a dataset beside its files, so that a node fetches one object."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli._dataset._bar import Bar
from agent.cli._shared import OK
from gigaslice.errors import ConfigError
from gigaslice.units import format_bytes

if TYPE_CHECKING:
    from gigaslice.dataset.pack_manifest import PackManifest

HELP = "write the image of a directory's files, with a manifest, for nodes to fetch in one piece"
DESCRIPTION = (
    "DST becomes a directory with the image, its listing and dataset.json, which names both and is written last; "
    "copy all of it to where nodes fetch from. SRC is only read."
)
SETTINGS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds source and destination."""
    parser.add_argument(
        "source", metavar="SRC", help="the directory with the files; with --check alone, the pack"
    )
    parser.add_argument(
        "pack", metavar="DST", nargs="?", help="the directory of the pack; made where there is none"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace a pack of another dataset or version in DST"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read DST again and compare every byte with what it should be; writes nothing",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(known: argparse.Namespace) -> int:
    """Packs, or checks a pack."""
    from gigaslice.dataset_node.packing import check_pack, make_pack

    source, pack = Path(known.source), Path(known.pack) if known.pack else None
    if known.check and known.force:
        raise ConfigError(["--check writes nothing, so --force means nothing with it; leave one of them out"])
    if known.check:
        source_of, where = (source, pack) if pack else (None, source)
        with _Bar(known.quiet, "checked") as bar:
            checked = check_pack(where, source_of, bar.show)
        print(f"{where}: {_said(checked)}: as it should be")
        return OK
    if pack is None:
        raise ConfigError(["there is no DST; gigaslice dataset pack SRC DST, with a directory for the pack"])
    with _Bar(known.quiet, "packed") as bar:
        made = make_pack(source, pack, force=known.force, progress=bar.show)
    print(f"{pack}: {_said(made)}")
    return OK


def _said(made: PackManifest) -> str:
    return f"{made.files} files, {format_bytes(made.size)}, BLAKE3 {made.image_digest}"


class _Bar(Bar):
    """The bar, with what is done of how many bytes."""

    def __init__(self, quiet: bool, what: str) -> None:
        super().__init__(quiet=quiet)
        self._what = what
        self._begin = time.monotonic()

    def __enter__(self) -> _Bar:
        return self

    def show(self, done: int, total: int) -> None:
        """Redraws the line."""
        speed = int(done / max(time.monotonic() - self._begin, 0.001))
        text = f"{self._what}, {format_bytes(done)} of {format_bytes(total)}, {format_bytes(speed)}/s"
        self.draw(done / total if total else 1.0, text, last=done >= total)
