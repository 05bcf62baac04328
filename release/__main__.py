# SPDX-License-Identifier: Apache-2.0
"""`python -m release VERSION`: a release as far as it can be made without reaching a server. Run by `make release`.

Without --cut the tree stays as it is: a copy of the last commit is cut in build/release/VERSION/tree, and everything is
built from that. With --cut the tree itself is cut, with two commits: the release, and the beginning of what follows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import date, datetime, timezone
from pathlib import Path

from release import versions
from release.artifacts import finish
from release.changelog import releases, section
from release.cut import CHANGELOG, Tree, cut_tree, problems
from release.outside import outside_commands

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ("tables", "chart-readme", "manifests")
BUILT = ("sdist", "wheels", "chart", "sbom")
IMAGE = ("image-root", "test-image")
LINKED = ("venv", "include", "zig")
"""Of build/: what a copy of the tree has no need to make once more."""
EPOCH = 946684800  # 2000: older than anything below build/, so that make makes none of LINKED anew


def main(arguments: Sequence[str]) -> int:
    """Returns 0, 2 where the release is refused, or the status of the first command that failed."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--cut", action="store_true", help="cut this tree, in two commits")
    parser.add_argument(
        "--image", action="store_true", help="carry the Dockerfile out, too, and start every role"
    )
    parser.add_argument("--date", type=date.fromisoformat, default=datetime.now(timezone.utc).date())
    chosen = parser.parse_args(arguments)
    version: str = chosen.version
    found = problems(_tree(), version, chosen.date)
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if found:
        return 2
    try:
        if chosen.cut:
            _cut_here(version, chosen.date)
        _build(version, chosen.date, image=chosen.image)
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd))} failed: see above", file=sys.stderr)
        if chosen.cut and _tree().changed:
            print("error: the tree is half cut: `git restore .` undoes it", file=sys.stderr)
        return error.returncode or 1
    return 0


def _tree() -> Tree:
    changed = [line[3:] for line in _said("git", "status", "--porcelain").splitlines()]
    text = (ROOT / CHANGELOG).read_text(encoding="utf-8")
    return Tree(versions.present(ROOT), text, _said("git", "tag", "--list").split(), changed)


def _cut_here(version: str, on: date) -> None:
    """The two commits, of which the first is the release. The fixtures are made before it is one: then they stay."""
    versions.rewrite(ROOT, version)
    _run("make", "--no-print-directory", *GENERATED, "fixtures")
    cut_tree(ROOT, version, on)
    _commit(f"release: {version}", "By make release, as RELEASING.md says.")
    versions.rewrite(ROOT, versions.following(version))
    _run("make", "--no-print-directory", *GENERATED)
    _commit(
        f"release: {versions.following(version)} begins",
        f"What is built from here on is not {version}, and does not say so.",
    )


def _build(version: str, on: date, *, image: bool) -> None:
    """Makes the distributions, from a copy: of the release's commit where there is one.

    With IMAGE the copy's Dockerfile is carried out as well; what that leaves stays in the copy, since its base is not
    the published one.
    """
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    copy = ROOT / "build" / "release" / version / "tree"
    commit = _released_commit(version) or "HEAD"
    _copy_tree(commit, copy)
    if version not in releases((copy / CHANGELOG).read_text(encoding="utf-8")):
        cut_tree(copy, version, on)
    stamp = _said("git", "show", "--no-patch", "--format=%ct", commit).strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": stamp}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        environment.pop(name, None)
    if image:  # which is made of what git lists
        for words in (("init", "--quiet"), ("add", "--all")):
            _run("git", "-C", str(copy), *words)
    for targets in (GENERATED, BUILT, *([IMAGE] if image else [])):
        _run("make", "--no-print-directory", "-C", str(copy), f"DIST={dist}", *targets, env=environment)
    notes = section((copy / CHANGELOG).read_text(encoding="utf-8"), version)
    finish(dist, version, notes)
    print(f"\nIn {dist.relative_to(ROOT)}/:")
    for path in sorted(dist.iterdir()):
        print(f"  {path.stat().st_size:>9}  {path.name}")
    if image:
        print(
            f"\nThe image's root: {copy.relative_to(ROOT)}/build/image/root; every role has started from it"
        )
    print("\nNot done, since it reaches others (RELEASING.md):")
    for line in outside_commands(version):
        print(f"  {line}")


def _released_commit(version: str) -> str | None:
    """The commit that --cut has made of VERSION; None before."""
    subject = f"release: {version}"
    for line in _said("git", "log", "--format=%H %s", "--max-count=2").splitlines():
        commit, _, said = line.partition(" ")
        if said == subject:
            return commit
    return None


def _copy_tree(commit: str, copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    (copy / "build").mkdir(parents=True)
    with subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE) as archive:
        _run("tar", "-x", "-C", str(copy), stdin=archive.stdout)
    if archive.returncode:
        raise subprocess.CalledProcessError(archive.returncode, ["git", "archive", commit])
    for path in copy.rglob("*"):
        os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
    for name in LINKED:
        (copy / "build" / name).symlink_to(ROOT / "build" / name)


def _commit(subject: str, body: str) -> None:
    _run("git", "add", "--all")
    _run("git", "commit", "--quiet", "--message", subject, "--message", body)


def _said(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _run(*command: str, **options: object) -> None:
    subprocess.run(command, cwd=ROOT, check=True, **options)  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
