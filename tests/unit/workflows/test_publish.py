# SPDX-License-Identifier: Apache-2.0
"""`.ci/publish` with tools in place of the real ones: what it pushes, what it tells, and what it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from vcuda.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
DIGEST = "sha256:" + "ab" * 32
IMAGE = "registry.example.com/team/gigaslice"
LOGGING = '#!/bin/sh\necho "{name} $*" >>"$CALLS"\n{body}\n'
BODIES = {
    "podman": f'[ "$1 $2" = "manifest push" ] && echo {DIGEST} >"$5"\nexit 0',
    "helm": f'[ "$1" = package ] && exec {HELM} "$@"\n'
    f"echo 'Pushed: {IMAGE}-chart/gigaslice:1.2.3'\necho 'Digest: {DIGEST}'",
    "gh": '[ "$1 $2" = "pr view" ] && echo "$PULL"\nexit 0',
    "uname": "echo aarch64",
}
DOCKER = f'[ "$3" = inspect ] && echo {DIGEST}\nexit 0'
SYSTEM = ("bash", "cat", "dirname", "env", "git", "mktemp", "rm", "sed", "sh", "sha256sum", "tr")
CHANGELOG = """# Changelog

## [Unreleased]

* Not yet.

## [1.2.3] - 2026-11-28

### Added

* A thing.

## [1.2.2] - 2026-10-01

* Old.
"""


class Tree:
    """A tree with what the script reads, and tools that write down how they were called."""

    def __init__(self, root: Path) -> None:
        self.root = root / "tree"
        self.calls = root / "calls"
        self.output = root / "output"
        (self.root / ".ci").mkdir(parents=True)
        (self.root / "dist").mkdir()
        (self.root / "vcuda").mkdir()
        (self.root / "vcuda" / "version.py").write_text('VERSION = "1.2.3"\n')
        (self.root / "CHANGELOG.md").write_text(CHANGELOG)
        shutil.copytree(ROOT / "release", self.root / "release", ignore=shutil.ignore_patterns("__pycache__"))
        chart = self.root / "deploy" / "helm" / "gigaslice"
        shutil.copytree(ROOT / "deploy" / "helm" / "gigaslice", chart)
        for name in ("Chart.yaml", "images.txt"):
            (chart / name).write_text((chart / name).read_text().replace(VERSION, "1.2.3"))
        for name in ("gigaslice-1.2.3.tgz", "gigaslice-1.2.3.cdx.json"):
            (self.root / "dist" / name).write_text("x")
        shutil.copy(ROOT / ".ci" / "publish", self.root / ".ci" / "publish")
        self.tools = root / "tools"
        self.tools.mkdir()
        for name in SYSTEM:  # and no other: a podman that this machine has must not be started
            found = shutil.which(name)
            assert found, name
            (self.tools / name).symlink_to(found)
        (self.tools / "python3").symlink_to(
            Path(sys.executable).resolve()
        )  # without our packages, as on a runner
        for name in BODIES:
            self.tool(name)

    def tool(self, name: str, body: str | None = None) -> None:
        path = self.tools / name
        path.write_text(LOGGING.format(name=name, body=BODIES[name] if body is None else body))
        path.chmod(0o755)

    def publish(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        fixed = {
            "PATH": str(self.tools),
            "HOME": str(self.root),
            "CALLS": str(self.calls),
            "GITHUB_OUTPUT": str(self.output),
            "TAG": "v1.2.3",
            "IMAGE": IMAGE,
            "DIGEST": DIGEST,
            "PULL": "",
        }
        return subprocess.run(
            [str(self.root / ".ci" / "publish"), *arguments],
            env={**fixed, **environment}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def called(self, *but: str) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line.split()[0] not in but]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("step", ["check", "base", "image", "index", "chart", "files", "release"])
@pytest.mark.parametrize("tag", ["v1.2.4", "1.2.3", ""])
def test_a_tag_of_another_version_publishes_nothing(tree: Tree, step: str, tag: str) -> None:
    run = tree.publish(step, TAG=tag)
    assert run.returncode == 3
    assert f"the tag '{tag}' is not that of this tree, v1.2.3" in run.stderr
    assert tree.called() == []


@pytest.mark.parametrize(
    "image", ["", "gigaslice", "registry.example.com/Team/gigaslice", "$(id)/x", "a/b@c"]
)
def test_an_image_without_a_registry_is_refused(tree: Tree, image: str) -> None:
    run = tree.publish("index", IMAGE=image)
    assert (run.returncode, tree.called()) == (3, [])
    assert "names no image" in run.stderr


def test_the_base_is_that_of_the_dockerfile_by_its_digest(tree: Tree) -> None:
    name = "docker.io/library/python:3.12-slim-bookworm"
    (tree.root / "Dockerfile").write_text(f"# a\nARG BASE_IMAGE={name}\nFROM ${{BASE_IMAGE}}\n")
    tree.tool("docker", "cat $HOME/said")
    (tree.root / "said").write_text(f"{DIGEST}\n")
    run = tree.publish("base")
    assert (run.returncode, run.stdout) == (0, f"{name}@{DIGEST}\n"), run.stderr
    assert tree.called() == [f"docker buildx imagetools inspect --format {{{{.Manifest.Digest}}}} {name}"]
    assert tree.output.read_text() == f"image={name}@{DIGEST}\n"
    (tree.root / "said").write_text("no such manifest\n")
    run = tree.publish("base")
    assert run.returncode == 3 and "gave no digest for" in run.stderr


def test_an_image_is_pushed_under_its_processor(tree: Tree) -> None:
    assert tree.publish("image").returncode == 0
    assert tree.called("uname") == [
        f"podman tag {IMAGE}:1.2.3 {IMAGE}:1.2.3-arm64",
        f"podman push {IMAGE}:1.2.3-arm64",
    ]


def test_the_index_names_both_and_tells_its_digest(tree: Tree) -> None:
    run = tree.publish("index")
    assert run.returncode == 0, run.stderr
    both = f"docker://{IMAGE}:1.2.3-amd64 docker://{IMAGE}:1.2.3-arm64"
    created = [line for line in tree.called() if "create" in line]
    assert created == [f"podman manifest create {IMAGE}:{tag} {both}" for tag in ("1.2.3", "latest")]
    assert len(tree.called()) == 4
    assert tree.output.read_text().splitlines() == [
        f"name={IMAGE}",
        f"digest={DIGEST}",
        "sbom=dist/gigaslice-1.2.3.cdx.json",
    ]


def test_a_candidate_is_not_the_latest(tree: Tree) -> None:
    (tree.root / "vcuda" / "version.py").write_text('VERSION = "1.2.3-rc.1"\n')
    assert tree.publish("index", TAG="v1.2.3-rc.1").returncode == 0
    assert not [line for line in tree.called() if "latest" in line]


def test_where_there_is_docker_alone_it_does_the_same(tree: Tree) -> None:
    """Runners of aarch64 have no podman."""
    (tree.tools / "podman").unlink()
    tree.tool("docker", DOCKER)
    assert tree.publish("image").returncode == 0
    assert tree.publish("index").returncode == 0
    both = f"{IMAGE}:1.2.3-amd64 {IMAGE}:1.2.3-arm64"
    inspect = "docker buildx imagetools inspect --format {{.Manifest.Digest}}"
    assert tree.called("uname") == [
        f"docker tag {IMAGE}:1.2.3 {IMAGE}:1.2.3-arm64",
        f"docker push {IMAGE}:1.2.3-arm64",
        f"docker buildx imagetools create --tag {IMAGE}:1.2.3 {both}",
        f"{inspect} {IMAGE}:1.2.3",
        f"docker buildx imagetools create --tag {IMAGE}:latest {both}",
        f"{inspect} {IMAGE}:latest",
    ]
    assert f"digest={DIGEST}" in tree.output.read_text().splitlines()
    (tree.tools / "docker").unlink()
    run = tree.publish("image")
    assert run.returncode == 3
    assert "neither podman nor docker" in run.stderr


def test_a_push_without_a_digest_is_an_error(tree: Tree) -> None:
    tree.tool("podman", "exit 0")
    run = tree.publish("index")
    assert run.returncode == 3
    assert "gave no digest" in run.stderr
    assert not tree.output.exists()


def test_the_chart_goes_beside_the_image_and_starts_it(tree: Tree) -> None:
    """What a user gets by `helm install oci://…` without a value of their own."""
    run = tree.publish("chart")
    assert run.returncode == 0, run.stderr
    packed, pushed = tree.called()
    assert packed.startswith("helm package ") and packed.endswith("/gigaslice --destination dist")
    assert pushed == f"helm push dist/gigaslice-1.2.3.tgz oci://{IMAGE}-chart"
    assert tree.output.read_text().splitlines() == [f"name={IMAGE}-chart/gigaslice", f"digest={DIGEST}"]
    package = str(tree.root / "dist" / "gigaslice-1.2.3.tgz")
    command = [str(HELM), "template", "gigaslice", package, "--kube-version", "1.36.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    images = {line.strip() for line in done.stdout.splitlines() if line.strip().startswith("image:")}
    assert images == {f'image: "{IMAGE}@{DIGEST}"'}
    with tarfile.open(package) as archive:
        listed = archive.extractfile("gigaslice/images.txt")
        assert listed is not None and f"{IMAGE}@{DIGEST}" in listed.read().decode().splitlines()


@pytest.mark.parametrize("digest", ["", "sha256:abc", "latest"])
def test_a_chart_comes_after_its_image(tree: Tree, digest: str) -> None:
    run = tree.publish("chart", DIGEST=digest)
    assert (run.returncode, tree.called()) == (3, [])
    assert "publish the index first" in run.stderr


def test_a_chart_that_names_another_image_is_refused(tree: Tree) -> None:
    values = tree.root / "deploy" / "helm" / "gigaslice" / "values.yaml"
    values.write_text(values.read_text().replace("  repository: gigaslice\n", "  repository: mine\n", 1))
    run = tree.publish("chart")
    assert (run.returncode, tree.called()) == (3, [])
    assert "no line repository: gigaslice below image:" in run.stderr


def test_a_release_has_its_section_its_sums_and_all_files(tree: Tree) -> None:
    for step in ("files", "release"):
        run = tree.publish(step)
        assert run.returncode == 0, run.stderr
    assert tree.called() == [
        "gh release create v1.2.3 --verify-tag --title Gigaslice 1.2.3 --notes-file dist/gigaslice-1.2.3-notes.md "
        "dist/SHA256SUMS dist/gigaslice-1.2.3-notes.md dist/gigaslice-1.2.3.cdx.json dist/gigaslice-1.2.3.tgz"
    ]
    dist = tree.root / "dist"
    notes = (dist / "gigaslice-1.2.3-notes.md").read_text()
    assert notes.strip() == "# Gigaslice 1.2.3\n\n### Added\n\n* A thing."
    assert [line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()] == [
        "gigaslice-1.2.3-notes.md", "gigaslice-1.2.3.cdx.json", "gigaslice-1.2.3.tgz",
    ]  # fmt: skip


def test_a_file_that_was_changed_after_its_sum_is_not_published(tree: Tree) -> None:
    assert tree.publish("files").returncode == 0
    (tree.root / "dist" / "gigaslice-1.2.3.tgz").write_text("y")
    run = tree.publish("release")
    assert (run.returncode, tree.called()) == (3, [])
    assert "other files than its SHA256SUMS says" in run.stderr


def test_a_release_without_its_notes_is_not_published(tree: Tree) -> None:
    run = tree.publish("release")
    assert (run.returncode, tree.called()) == (3, [])
    assert ".ci/publish files" in run.stderr


def test_a_release_that_was_not_cut_is_not_published(tree: Tree) -> None:
    (tree.root / "CHANGELOG.md").write_text(CHANGELOG.replace("[1.2.3]", "[1.2.1]"))
    run = tree.publish("files")
    assert (run.returncode, tree.called()) == (3, [])
    assert "no section ## [1.2.3]" in run.stderr


def git(where: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *words]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def cloned(tree: Tree) -> Tree:
    locks = tree.root / "deploy" / "image"
    locks.mkdir(parents=True)
    for name in ("runtime.txt", "build.txt", "lock.py"):
        (locks / name).write_text("a==1\n")
    (tree.root / "docs").mkdir()
    (tree.root / "docs" / "licences.md").write_text("a\n")
    (tree.root / ".gitignore").write_text("dist\n")
    git(tree.root, "init", "--quiet", "--initial-branch", "main")
    git(tree.root, "add", ".")
    git(tree.root, "commit", "--quiet", "--message", "first")
    remote = tree.root.parent / "remote"
    git(tree.root, "clone", "--quiet", "--bare", ".", str(remote))
    git(tree.root, "remote", "add", "origin", str(remote))
    return tree


def test_unchanged_locks_propose_nothing(cloned: Tree) -> None:
    run = cloned.publish("proposal")
    assert (run.returncode, cloned.called()) == (0, [])
    assert "nothing to propose" in run.stdout


@pytest.mark.parametrize("pull", ["", "OPEN", "CLOSED"])
def test_new_locks_become_a_pull_request_once(cloned: Tree, pull: str) -> None:
    (cloned.root / "deploy" / "image" / "runtime.txt").write_text("a==2\n")
    (cloned.root / "docs" / "licences.md").write_text("a, b\n")
    for name in ("CHANGELOG.md", "deploy/image/lock.py"):
        (cloned.root / name).write_text("changed by who built\n")
    run = cloned.publish("proposal", PULL=pull)
    assert run.returncode == 0, run.stderr
    remote = cloned.root.parent / "remote"
    assert git(remote, "show", "refresh/locks:deploy/image/runtime.txt") == "a==2"
    assert git(remote, "diff", "--name-only", "main", "refresh/locks").split() == [
        "deploy/image/runtime.txt",
        "docs/licences.md",
    ]
    assert git(remote, "log", "-1", "--format=%an", "refresh/locks") == "github-actions[bot]"
    made = [line for line in cloned.called() if line.startswith("gh pr create --head refresh/locks")]
    assert len(made) == (0 if pull == "OPEN" else 1)


def test_an_unknown_step_is_refused(tree: Tree) -> None:
    run = tree.publish("everything")
    assert (run.returncode, tree.called()) == (3, [])
    assert "usage" in run.stderr
