# SPDX-License-Identifier: Apache-2.0
"""`gigaslice rewrite`: shows how manifests for HAMi and others are written here.

It changes no file and asks no cluster.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gigaslice.core.cluster.names import GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.core.errors import ConfigError, InputError
from gigaslice.core.text import plain, plural
from gigaslice.core.units import parse_bytes
from gigaslice.runtime.command_line.command import FAILED, MISTAKE, OK, report
from gigaslice.runtime.command_line.output import add_format

if TYPE_CHECKING:
    from gigaslice.core.rewrite.gpu_request import RewriteSettings
    from gigaslice.core.rewrite.manifest_text import ManifestRewrite

HELP = "show how manifests for HAMi, vgpu-manager, gpu-manager and time-slicing are written here"
DESCRIPTION = (
    "Prints a diff for patch -p1 or git apply, and on standard error what has no counterpart or means something else. "
    "No file is changed and no cluster is asked. Exit code 0: nothing is left to do by hand; 1: something is; "
    "2: a file is no manifest, or an option makes no sense."
)
_STDIN = "-"
_SUFFIXES = (".yaml", ".yml", ".json")
_LARGEST = 8 << 20  # bytes of one file: several times what etcd takes of one object


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the manifests, the form of the answer, and what a manifest does not say about the cluster."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a file, a directory (its .yaml, .yml and .json files), or - for standard input",
    )
    add_format(
        parser, ("diff", "manifest"), "diff (default), or manifest: all of them rewritten, one after another"
    )
    parser.add_argument(
        "--gpu-size",
        metavar="SIZE",
        default="",
        help="memory of a GPU, such as 80GiB, for nvidia.com/gpumem-percentage",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        default="",
        help="memory of each GPU for containers that name none: HAMi's defaultMem, or what a replica of "
        "time-slicing or MPS needs; default: a whole GPU, where that is what they get today",
    )
    parser.add_argument(
        "--memory-factor",
        metavar="N",
        default="1",
        help="what sizes are multiplied by there, HAMi's memoryFactor; default: 1",
    )
    parser.add_argument(
        "--slice",
        metavar="SIZE",
        default="1GiB",
        help="GPU memory of one unit of the resource, as set on the agents; default: 1GiB",
    )
    parser.add_argument(
        "--resource",
        metavar="NAME",
        default=MEMORY_RESOURCE,
        help=f"the resource of slices, as set on the agents; default: {MEMORY_RESOURCE}",
    )
    parser.add_argument("--whole-gpus", metavar="NAME", default=GPU_RESOURCE,
                        help=f"the resource of whole GPUs, as set on the agents; default: {GPU_RESOURCE}")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Prints the diff or the manifests, then the notes."""
    from gigaslice.core.rewrite.manifest_text import rewrite_text

    settings = _settings(arguments)
    mistakes: list[str] = []
    rewrites: list[tuple[str, str, ManifestRewrite]] = []
    for path in _files(arguments.paths, mistakes):
        text = ""
        try:
            text = _read(path)
            rewrites.append((str(path), text, rewrite_text(text, settings)))
        except InputError as error:
            hint = "; render a chart first: helm template . | gigaslice rewrite -" if "{{" in text else ""
            mistakes.append(f"{path}: {error}{hint}")
        except UnicodeDecodeError:
            mistakes.append(f"{path}: is no text in UTF-8")
        except OSError as error:
            mistakes.append(f"{path}: {error.strerror or error}")
    if arguments.format == "diff":
        sys.stdout.writelines(_diff(path, text, rewrite.text) for path, text, rewrite in rewrites)
    else:
        sys.stdout.writelines(_joined([rewrite.text for _, _, rewrite in rewrites]))
    sys.stdout.flush()
    _tell(rewrites)
    if mistakes:
        return report(MISTAKE, *mistakes)
    return FAILED if any(note.left for _, _, rewrite in rewrites for note in rewrite.notes) else OK


def _settings(arguments: argparse.Namespace) -> RewriteSettings:
    from gigaslice.core.cluster.demand import ClusterUnits
    from gigaslice.core.model import AnnotationRights
    from gigaslice.core.rewrite.gpu_request import RewriteSettings
    from gigaslice.runtime.setting_values import resource_name

    mistakes: list[str] = []

    def size(flag: str, text: str) -> int:
        try:
            return parse_bytes(text) if text else 0
        except ValueError as error:
            mistakes.append(f"{flag}: {error}")
            return 0

    def name(flag: str, text: str) -> str:
        try:
            return resource_name(text)
        except ValueError as error:
            mistakes.append(f'{flag} "{text}": {error}')
            return ""

    slice_bytes = size("--slice", arguments.slice)
    units = ClusterUnits(
        slice_bytes or 1,
        name("--resource", arguments.resource),
        name("--whole-gpus", arguments.whole_gpus),
        AnnotationRights.CHECKED,
    )
    gpu_bytes, alone_bytes = size("--gpu-size", arguments.gpu_size), size("--memory", arguments.memory)
    if 0 < gpu_bytes < slice_bytes:
        mistakes.append(f"--gpu-size {arguments.gpu_size} is less than a slice, {arguments.slice}")
    if not re.fullmatch(r"[1-9][0-9]{0,5}", arguments.memory_factor):
        mistakes.append(
            f'--memory-factor "{arguments.memory_factor}": must be a whole number from 1 to 999999'
        )
    if mistakes:
        raise ConfigError(mistakes)
    return RewriteSettings(units, gpu_bytes, alone_bytes, int(arguments.memory_factor))


def _files(words: list[str], mistakes: list[str]) -> Iterator[Path]:
    """The files that the command line names, each once and those of a directory in order."""
    seen: set[Path] = set()
    for word in words:
        path = Path(word)
        paths = [path]
        if word != _STDIN and path.is_dir():
            paths = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
            if not paths:
                mistakes.append(f"{path}: has no {', '.join(_SUFFIXES)} file in it")
        for file in paths:
            if file not in seen:
                seen.add(file)
                yield file


def _read(path: Path) -> str:
    """The text of a manifest, with its line ends as they are."""
    with sys.stdin.buffer if str(path) == _STDIN else path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise InputError(f"is larger than {_LARGEST >> 20} MiB, and no manifest")
    return content.decode()


def _diff(path: str, before: str, after: str) -> str:
    """A unified diff; a last line without an end is said as patch wants it."""
    import difflib

    name = "stdin" if path == _STDIN else path.lstrip("/")
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _joined(texts: list[str]) -> Iterator[str]:
    """Several manifests as one stream of YAML documents."""
    for position, text in enumerate(texts):
        if position and not text.lstrip().startswith("---"):
            yield "---\n"
        yield text if text.endswith("\n") or len(texts) == 1 else text + "\n"


def _tell(rewrites: list[tuple[str, str, ManifestRewrite]]) -> None:
    for path, _, rewrite in rewrites:
        for note in rewrite.notes:
            print(
                f"{plain(path)}:{note.line}: {'left' if note.left else 'note'}: {plain(note.text)}",
                file=sys.stderr,
            )
    if not rewrites:
        return
    pods, left = (sum(getattr(rewrite, field) for _, _, rewrite in rewrites) for field in ("pods", "left"))
    report(OK, f"{plural(pods, 'pod')} rewritten, {left} left as written, in {plural(len(rewrites), 'file')}")
