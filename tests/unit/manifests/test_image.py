# SPDX-License-Identifier: Apache-2.0
"""`make image` with builders that only write down how they were called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from vcuda.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("make", "sh", "sed")


def make_image(directory, *tools, **variables):
    """Runs it where only TOOLS build images; its end, and the arguments of each builder's calls."""
    path, calls = directory / "bin", directory / "calls"
    path.mkdir()
    for name in NEEDED:
        (path / name).symlink_to(shutil.which(name))
    for tool in tools:
        (path / tool).write_text(
            f'#!/bin/sh\nfor word in "$0" "$@"; do printf "%s\\n" "$word"; done >> {calls}\n'
        )
        (path / tool).chmod(0o755)
    words = [f"{name}={value}" for name, value in variables.items()]
    clean = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    ended = subprocess.run(
        ["make", "--no-print-directory", "image", *words],
        cwd=ROOT,
        env={**clean, "PATH": str(path), "SHELL": str(path / "sh")},
        capture_output=True,
        text=True,
        check=False,
    )
    written = calls.read_text().splitlines() if calls.exists() else []
    return ended, [Path(written[0]).name, *written[1:]] if written else []


@pytest.mark.parametrize(
    ("tools", "used"), [(["docker"], "docker"), (["podman"], "podman"), (["docker", "podman"], "podman")]
)
def test_whichever_builder_is_there_builds_both_tags(tmp_path, tools, used):
    ended, call = make_image(tmp_path, *tools)
    assert ended.returncode == 0, ended.stderr
    assert call == [used, "build", "--tag", f"gigaslice:{VERSION}", "--tag", "gigaslice:latest", "."]


def test_several_platforms_are_one_image(tmp_path):
    several = "linux/amd64,linux/arm64"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ended, call = make_image(tmp_path / "a", "podman", PLATFORMS=several, IMAGE="registry.example/gs")
    assert ended.returncode == 0, ended.stderr
    assert call == [
        "podman",
        "build",
        "--platform",
        several,
        "--manifest",
        f"registry.example/gs:{VERSION}",
        ".",
    ]
    ended, call = make_image(tmp_path / "b", "docker", PLATFORMS=several)
    assert ended.returncode == 0, ended.stderr
    assert call[:5] == ["docker", "buildx", "build", "--platform", several]
    assert call[5:] == ["--tag", f"gigaslice:{VERSION}", "--tag", "gigaslice:latest", "."]


def test_without_a_builder_it_says_what_is_missing(tmp_path):
    ended, call = make_image(tmp_path)
    assert ended.returncode != 0 and call == []
    assert "neither podman nor docker is installed" in ended.stderr
