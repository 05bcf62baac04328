# SPDX-License-Identifier: Apache-2.0
"""`make release IMAGE=yes` carries the Dockerfile out from the released tree, and starts every role from the result.

A small tree with the real Makefile, `release` and `tests/image/root.py` is released. In the place of other programs
stand some that write down how they were called: buildah, mmdebstrap, and the environment's Python, except where that
makes the root. pip has one package and no index.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REAL = ("Makefile", "release", "deploy/__init__.py", "deploy/generated.py", "deploy/image/__init__.py",
        "deploy/image/lock.py", "tests/image/root.py", ".gitignore")  # fmt: skip
LOCK = f"tiny==1.0 \\\n    --hash=sha256:{'0' * 64}\n"
WRITTEN = {
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n* New.\n",
    "vcuda/version.py": 'VERSION = "0.3.0-dev"\n',
    "vcuda/_build.py": "",
    "setup.py": "",
    "gigaslice/roles/dataset_node/sources/_tree.c": "",
    "README.md": "This is version 0.3.0-dev.\n",
    "Dockerfile": "# gigaslice:0.3.0-dev\nFROM scratch\n",
    "daemonset.yaml": "",
    "docs/page.md": "",
    "tests/__init__.py": "",
    "tests/image/__init__.py": "",
    "deploy/image/runtime.txt": LOCK,
    "deploy/image/build.txt": LOCK,
    "pyproject.toml": '[build-system]\nrequires = ["tiny"]\n[project]\ndependencies = ["tiny"]\n'
    "[project.optional-dependencies]\ncluster = []\ndataset = []\n",
    "native/native.mk": "$(BUILD)/libvcuda.so:\n\ttouch $@\n",
    "tests/fakedriver/fakedriver.mk": "fakedriver:\n",
    "release/release.mk": "sdist:\n\tmkdir -p $(DIST) && touch $(DIST)/sdist\nwheels chart sbom:\n",
}
PROGRAMS = {
    "python": """
case "$1 $2" in
"-m tests.image.root") exec $AS_ROOT "$PYTHON" "$@" ;;
"-m pytest") exit ${PYTEST_STATUS:-0} ;;
esac
""",
    "buildah": """
shift 4 # the store
for last; do :; done
case $1 in
from) echo working ;;
mount) mkdir -p "$CALLS.mounted"; echo "$CALLS.mounted" ;;
bud) cp -R "$last" "$CALLS.context" ;;
esac
""",
    "mmdebstrap": """
for target; do case $target in *.tar) break ;; esac; done
mkdir -p "$CALLS.base/usr/bin" && touch "$CALLS.base/usr/bin/$PYTHON_OF_THE_ROOT"
tar -cf "$target" -C "$CALLS.base" .
""",
}


class SmallTree:
    """A checkout that can be released, and what was called meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.root, self._calls = folder / "tree", folder / "calls"
        self.context = folder / "calls.context"
        for name in REAL:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, self.root / name)
        for name, text in WRITTEN.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        self._git("init", "--quiet")
        self._git("add", "--all")
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        self._git(*who, "commit", "--quiet", "--message", "all")
        tools, environment = folder / "tools", self.root / "build" / "venv"
        (environment / "bin").mkdir(parents=True)
        tools.mkdir()
        for name, body in PROGRAMS.items():
            program = (environment / "bin" if name == "python" else tools) / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >>"$CALLS"\n{body}')
            program.chmod(0o755)
        (environment / "installed.stamp").touch()
        self._environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": str(folder),
            "CALLS": str(self._calls),
            "PYTHON": sys.executable,
            "PYTHON_OF_THE_ROOT": f"python3.{sys.version_info.minor}",
            "AS_ROOT": "unshare --user --map-root-user" if os.geteuid() else "",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "yes",
            "PIP_FIND_LINKS": str(package(folder)),
        }

    def _git(self, *words: str) -> None:
        subprocess.run(["git", "-C", str(self.root), *words], check=True)

    def release(self, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "release", "0.3.0", *flags]
        return subprocess.run(
            command,
            cwd=self.root,
            env=self._environment | environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def called(self) -> list[str]:
        return self._calls.read_text().splitlines()


def package(folder: Path) -> Path:
    """A folder with the one package that pip finds."""
    (folder / "packages").mkdir()
    with zipfile.ZipFile(folder / "packages" / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        info = "tiny-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder / "packages"


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    return SmallTree(tmp_path)


@pytest.fixture
def debian() -> None:
    """Skips where the root of an image cannot be made, whatever it is made with."""
    if "\nID=debian\n" not in f"\n{Path('/etc/os-release').read_text()}\n":
        pytest.skip("the image's root is made of Debian's packages, on Debian")
    as_root = ["unshare", "--user", "--map-root-user", "true"] if os.geteuid() else ["true"]
    if subprocess.run(as_root, check=False, capture_output=True).returncode:
        pytest.skip("only root makes the root of an image, and user namespaces are not permitted here")


@pytest.mark.namespaces
@pytest.mark.usefixtures("debian")
def test_the_image_is_of_the_released_tree_and_every_role_is_started_from_it(tree: SmallTree) -> None:
    done = tree.release("--image")
    assert done.returncode == 0, done.stdout + done.stderr
    copied = {str(path.relative_to(tree.context)) for path in tree.context.rglob("*") if path.is_file()}
    assert copied == {*WRITTEN, *(name for name in REAL if (ROOT / name).is_file())} | {
        f"release/{path.name}" for path in (ROOT / "release").iterdir() if path.is_file()
    }
    assert (tree.context / "Dockerfile").read_text().startswith("# gigaslice:0.3.0\n"), "cut before"
    digest = hashlib.sha256(
        (tree.root.parent / "packages/tiny-1.0-py3-none-any.whl").read_bytes()
    ).hexdigest()
    locked = (tree.context / "deploy/image/runtime.txt").read_text()
    assert digest in locked and platform.machine() in locked, "for the Python of the root"
    calls = tree.called()
    (built,) = (number for number, call in enumerate(calls) if call.startswith("buildah") and " bud " in call)
    (started,) = (number for number, call in enumerate(calls) if call.startswith("python -m pytest"))
    assert built < started and calls[started].endswith(" tests/image")
    assert "every role has started from it" in done.stdout


@pytest.mark.namespaces
@pytest.mark.usefixtures("debian")
def test_a_role_that_does_not_start_ends_the_release(tree: SmallTree) -> None:
    done = tree.release("--image", PYTEST_STATUS="1")
    assert done.returncode != 0
    assert "test-image" in done.stderr and "every role has started" not in done.stdout


def test_without_the_flag_no_image_is_made(tree: SmallTree) -> None:
    done = tree.release()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [
        call for call in tree.called() if call.startswith(("buildah", "mmdebstrap", "python -m pytest"))
    ]
