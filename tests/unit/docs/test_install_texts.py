# SPDX-License-Identifier: Apache-2.0
"""What our texts tell people to install is ours from the checkout, or a package that pyproject.toml names.

A name that we do not publish belongs to whoever takes it: told to install it, our users run what that person wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.docs.test_docs import ROOT, names

TOPS = (
    "agent",
    "deploy",
    "docs",
    "gigaslice",
    "gigaslice_cli",
    "native",
    "proto",
    "release",
    "tests",
    "vcuda",
    ".ci",
    ".github",
)
SUFFIXES = {
    "",
    ".c",
    ".cfg",
    ".def",
    ".h",
    ".json",
    ".md",
    ".mk",
    ".proto",
    ".py",
    ".pyi",
    ".sh",
    ".svg",
    ".toml",
    ".tpl",
    ".txt",
    ".yaml",
    ".yml",
}
OURS = r"gigaslice|vcuda"
COMMAND = (
    r"\b(?:(?:pipx?3?|uv|easy_install)[\s*]+(?:tool\s+|pip\s+)?(?:install|wheel|run|download)"
    r"|uvx|pipx\s+run|(?:uv|poetry|pdm|rye|pixi|cargo)\s+add"
    r"|(?:conda|mamba|micromamba|npm|cargo|brew|apt|apt-get|dnf|snap)\s+install"
    r"|(?:docker|podman|nerdctl)\s+pull|helm\s+repo\s+add)(?=\s)"
)
INSTALL = re.compile(COMMAND + r"((?:[^\n`)]*\\\n|[ '\"]*\n)*[^\n`)]*)")
"""A command that installs, and its words; those of the next line too where this one ends early or in a backslash."""
INDEX = re.compile(
    r"(?i)\b(?:test\.?)?pypi\b|\bpython ?package index\b|pythonhosted|\bnpmjs\b|\bcrates\.io\b|\bconda-forge\b"
    r"|\bdocker ?hub\b|\bhub\.docker\b|\bdocker\.io/(?!library/python\b)|\bartifacthub\b"
)
"""Words that name an index; the base of our image is named as it is. What a workflow names (actions, its registry)
is none of these."""
SELF = '    "gigaslice[cluster,dataset,native,test]",\n'
"""The one line of pyproject.toml that may: pip takes it for the checkout that is being installed."""


def texts() -> Iterator[Path]:
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith(".git"):
            yield path
    for top in TOPS:
        for path in (ROOT / top).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file() and "__pycache__" not in path.parts:
                yield path


def registered(text: str) -> bool:
    """Whether the first step of RELEASING.md, whose text is TEXT, is ticked: our name is ours in the index."""
    step = re.search(r"(?m)^- \[([ x])\] (.*)$", text)
    assert step is not None and "Register the name `gigaslice`" in step[2]
    return step[1] == "x"


REGISTERED = registered((ROOT / "RELEASING.md").read_text())


def mistakes(text: str) -> list[str]:
    """What TEXT names as a package of ours in an index: an index, an extra, or words behind a command that installs."""
    indices = [match[0] for match in INDEX.finditer(text)]
    extras = re.findall(rf"(?i)\b(?:{OURS})\s*\[[a-z][a-z0-9, _-]*\]", text)
    commands = [match[0] for match in INSTALL.finditer(text) if installs_ours(match[1])]
    return indices + extras + commands


def installs_ours(words: str) -> bool:
    """Whether ours is among the WORDS of an install command, and not as a path."""
    return bool(re.search(rf"(?i)(?:^|[\s'\"])(?:{OURS})(?:[\s'\"=<>~!@\[;,.]*$|[\s'\"=<>~!@\[])", words))


def test_no_text_names_a_package_of_ours_in_an_index() -> None:
    looked_at = 0
    for path in texts():
        text = path.read_text(errors="replace")
        if path == ROOT / "pyproject.toml":
            assert SELF in text
            text = text.replace(SELF, "")
        if path != Path(__file__):
            assert REGISTERED or mistakes(text) == [], names(path)
            looked_at += 1
    assert looked_at > 1000


@pytest.mark.parametrize(
    "text",
    [
        "pip install gigaslice",
        "`pip install --upgrade 'gigaslice'`",
        "pip install gigaslice==0.1.0",
        "the extra is `gigaslice[dataset]`",
        "(`pip install\n   'gigaslice[cluster]'`)",
        "pipx install vcuda.",
        "uv tool install gigaslice",
        "pip3 install -U gigaslice",
        "(`pip install\n   gigaslice`)",
        "pip install --no-cache-dir \\\n  gigaslice",
        "it is on PyPI",
        "from https://py"
        + "pi.org/simple",  # in two pieces: no text of ours has such a host, this one neither
        "files.python" + "hosted.org",
        "the Python Package Index",
        "TestPyPI",
        "uv add gigaslice",
        "uvx gigaslice explain",
        "poetry add gigaslice",
        "pdm add 'vcuda'",
        "conda install -c conda-forge gigaslice",
        "mamba install gigaslice",
        "docker pull gigaslice",
        "helm repo add gigaslice https://example.com/charts",
        "registry.npm" + "js.org",
        "cra" + "tes.io",
        "it is on Docker Hub",
        "docker." + "io/gigaslice/gigaslice",
    ],
)
def test_it_would_be_noticed(text: str) -> None:
    assert mistakes(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install .",
        "in a checkout of gigaslice run pip install '.[cluster]'",
        "pip install /src/gigaslice/.",
        "pip install nvidia-cuda-runtime nvidia-nvml-dev",
        'RUN pip install --requirement build.txt\nENTRYPOINT ["gigaslice"]',
        "helm install gigaslice deploy/helm/gigaslice",
        "docker." + "io/library/python:3.12-slim-bookworm",
        "uvx ruff check gigaslice/core",
    ],
)
def test_what_is_right_is_left_alone(text: str) -> None:
    assert mistakes(text) == []


def test_a_step_is_done_when_it_is_ticked() -> None:
    text = "# Making a release\n\n- [ ] Register the name `gigaslice` in the package index.\n- [x] Another.\n"
    assert not registered(text)
    assert registered(text.replace("[ ]", "[x]"))


def test_the_first_page_says_where_ours_comes_from() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert "`pip install '.[cluster,dataset]'`" in readme
    assert "Gigaslice is in no package index" in readme
