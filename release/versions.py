# SPDX-License-Identifier: Apache-2.0
"""Where the version of this tree is written: `vcuda/version.py` has it, and the other places say the same.

A version is `1.2.3`, or `1.3.0-dev` between releases. That one text is a version of Python's packages (which write it
1.3.0.dev0 in file names), of Helm's charts, and a tag of images.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["HOME", "following", "is_release", "key", "occurrences", "package_version", "present", "rewrite"]

HOME = Path("vcuda/version.py")
TEXT = r"\d+\.\d+\.\d+(?:-dev)?"
_RELEASE = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")

# Each has the version as its only group. In files of these names, and in all that people read or apply.
_IN_FILES = {
    "vcuda/version.py": (re.compile(rf'(?m)^VERSION = "({TEXT})"$'),),
    "deploy/helm/gigaslice/Chart.yaml": (re.compile(rf'(?m)^(?:version|appVersion): "?({TEXT})"?$'),),
    "README.md": (re.compile(rf"This is version ({TEXT})"),),
}
_ANYWHERE = (
    re.compile(rf"\bgigaslice:({TEXT})\b(?![.\w])"),  # a tag of the image
    re.compile(rf'\bimage\.version="?({TEXT})"?'),
    re.compile(rf'\bapp\.kubernetes\.io/version: "?({TEXT})"?'),
    re.compile(rf'\bhelm\.sh/chart: "?gigaslice-({TEXT})"?'),
    re.compile(rf"\bgigaslice-({TEXT})\.tgz"),
)
_ROOTS = ("README.md", "Dockerfile", "daemonset.yaml", "vcuda/version.py", "deploy", "docs")
_HISTORY = ("docs/adr", "docs/proofs")
"""Where a version is the one that something was true of."""


def is_release(version: str) -> bool:
    """Whether VERSION is one that can be released: three numbers and nothing else."""
    return _RELEASE.fullmatch(version) is not None


def key(version: str) -> tuple[int, ...]:
    """By what released versions are in order. Raises ValueError for another text."""
    if not is_release(version):
        raise ValueError(f"{version!r} is no version: three numbers, such as 1.2.3")
    return tuple(map(int, version.split(".")))


def following(version: str) -> str:
    """What the tree calls itself after the release VERSION."""
    major, minor, _ = key(version)
    return f"{major}.{minor + 1}.0-dev"


def package_version(version: str) -> str:
    """VERSION as Python's packages write it in the names of their files."""
    return version.replace("-dev", ".dev0")


def present(root: Path) -> str:
    """The version in its only home, below ROOT. Raises ValueError where there is none."""
    (pattern,) = _IN_FILES[str(HOME)]
    match = pattern.search((root / HOME).read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f"{HOME} has no line VERSION = ...")
    return match[1]


def occurrences(root: Path) -> Iterator[tuple[Path, str]]:
    """Each place below ROOT that says the version of this tree: its file, relative to ROOT, and what it says."""
    for path in _files(root):
        text = (root / path).read_text(encoding="utf-8")
        for pattern in _patterns(path):
            for match in pattern.finditer(text):
                yield path, match[1]


def rewrite(root: Path, version: str) -> list[Path]:
    """Makes all of those places below ROOT say VERSION; the files that were changed, relative to ROOT."""
    changed = []
    for path in _files(root):
        before = text = (root / path).read_text(encoding="utf-8")
        for pattern in _patterns(path):
            text = pattern.sub(lambda match: _with(match, version), text)
        if text != before:
            (root / path).write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def _with(match: re.Match[str], version: str) -> str:
    begin, end = (place - match.start() for place in match.span(1))
    return match[0][:begin] + version + match[0][end:]


def _patterns(path: Path) -> tuple[re.Pattern[str], ...]:
    return (*_IN_FILES.get(path.as_posix(), ()), *_ANYWHERE)


def _files(root: Path) -> Iterator[Path]:
    for name in _ROOTS:
        top = root / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            relative = path.relative_to(root)
            if relative.as_posix().startswith(_HISTORY) or "__pycache__" in path.parts:
                continue
            if path.is_file() and not path.is_symlink() and _is_text(path):
                yield relative


def _is_text(path: Path) -> bool:
    return path.suffix in {"", ".md", ".py", ".yaml", ".yml", ".json", ".tpl", ".txt", ".gotmpl"}
