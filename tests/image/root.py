# SPDX-License-Identifier: Apache-2.0
"""Builds the image of the Dockerfile, with buildah, on a Debian root that mmdebstrap makes from this machine's mirrors.

    python -m tests.image.root

Two things are not as in the published image: what the Dockerfile's BASE_IMAGE names, and the lock files, which are for
that root's Python with the same versions. Everything goes to build/image; it takes some minutes and must be root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.image import lock

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "image"
LAYOUT = FOLDER / "layout"
ROOT_DIRECTORY = FOLDER / "root"
_STORE = ("--root", str(FOLDER / "store"), "--runroot", str(FOLDER / "run"))
_NAME, _BASE = "localhost/gigaslice", "localhost/debian-python"
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"  # as in the published base
_PACKAGES = (
    "python3",
    "python3-venv",
    "python3-pip",
    "libpython3-dev",
    "ca-certificates",
)  # headers are in the base
# Debian's Python is as the base's, for the Dockerfile's words: `python`, and a pip that installs beside apt.
_HOOKS = ('ln -s python3 "$1/usr/bin/python"', 'rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED')
_OF_THIS_MACHINE = ("/etc/ssl/certs", "/usr/local/share/ca-certificates", "/etc/pip.conf")
"""What a build needs of a machine that reaches mirrors and the package index through certificates of its own."""


class MissingToolError(Exception):
    """This machine cannot build it; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer. created_by: the instruction. packed, unpacked: bytes that are pulled, and that they become on a disk."""

    created_by: str
    packed: int
    unpacked: int


def check_machine() -> None:
    """Raises MissingToolError where the build cannot run."""
    missing = [tool for tool in ("buildah", "mmdebstrap", "git") if shutil.which(tool) is None]
    if missing:
        raise MissingToolError(f"{', '.join(missing)}: not installed; apt-get install {' '.join(missing)}")
    if os.geteuid():
        raise MissingToolError("the root of an image has files of several owners: run it as root")


def debian() -> tuple[str, list[Path]]:
    """This machine's release of Debian, and the files that name its mirrors.

    Raises:
        MissingToolError: It is no Debian, or names none.
    """
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    release = dict(line.split("=", 1) for line in lines if "=" in line)
    sources = [
        *Path("/etc/apt").glob("sources.list"),
        *sorted(Path("/etc/apt/sources.list.d").glob("*.sources")),
    ]
    if release.get("ID") != "debian" or not sources:
        raise MissingToolError(
            "the root is made of Debian's packages: run it on Debian, with its mirrors in /etc/apt"
        )
    return release["VERSION_CODENAME"], sources


def make_base(archive: Path) -> None:
    """Makes the root that stands for BASE_IMAGE, once: on the same base buildah keeps steps that would be the same."""
    codename, sources = debian()
    hooks = [f"--customize-hook={hook}" for hook in _HOOKS]
    # A mirror may be of an earlier day, for builds that can be repeated.
    options = ['--aptopt=Acquire::Check-Valid-Until "false"', "--variant=minbase"]
    include = f"--include={','.join(_PACKAGES)}"
    temporary = archive.with_suffix(".part.tar")
    run("mmdebstrap", *options, include, *hooks, codename, str(temporary), *map(str, sources))
    make_base_image(temporary)
    temporary.rename(archive)


def python_of(archive: Path) -> str:
    """The version of the Python in the root, as 3.11."""
    names = subprocess.run(["tar", "-tf", archive], capture_output=True, text=True, check=True).stdout
    (found,) = {line.rpartition("/python")[2] for line in names.splitlines() if "/usr/bin/python3." in line}
    return found


def make_context(folder: Path, python: str) -> None:
    """Makes what `podman build` would be given, with locks for PYTHON.

    Raises:
        MissingToolError: Git lists no files here.
    """
    shutil.rmtree(folder, ignore_errors=True)
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if not names:
        raise MissingToolError(
            f"git lists no file of {ROOT}: build it from a checkout that nothing above ignores"
        )
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    lock.write_for(python, folder / "deploy" / "image")


def run(*words: str) -> str:
    """What a program prints; it ends this one where it fails, with its own words on stderr."""
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def buildah(*words: str) -> str:
    """What buildah prints, with a store of its own below build."""
    return run("buildah", *_STORE, *words)


def make_base_image(archive: Path) -> None:
    """Makes an image of one layer of the root."""
    working = buildah("from", "scratch")
    buildah("add", working, str(archive), "/")
    buildah("config", f"--env=PATH={_PATH}", working)
    buildah("commit", "--rm", working, _BASE)


def build(context: Path) -> None:
    """Carries out the Dockerfile."""
    mounts = [f"--volume={path}:{path}:ro" for path in _OF_THIS_MACHINE if Path(path).exists()]
    # A chroot needs no cgroups and no seccomp, which not every machine that builds has.
    words = [
        "--isolation=chroot",
        "--network=host",
        "--layers",
        f"--build-arg=BASE_IMAGE={_BASE}",
        *mounts,
    ]
    subprocess.run(["buildah", *_STORE, "bud", *words, f"--tag={_NAME}", str(context)], check=True)


def unpack() -> None:
    """Leaves the image as an OCI layout, with its layers as they would be pulled, and its root as a directory."""
    shutil.rmtree(LAYOUT, ignore_errors=True)
    buildah("push", "--quiet", _NAME, f"oci:{LAYOUT}:gigaslice")
    shutil.rmtree(ROOT_DIRECTORY, ignore_errors=True)
    working = buildah("from", "--pull-never", _NAME)
    try:
        run("cp", "--archive", buildah("mount", working), str(ROOT_DIRECTORY))
    finally:
        buildah("rm", working)


def release() -> None:
    """Takes away the mount that buildah leaves on its store, which would keep `make clean` from removing it."""
    overlay = str(FOLDER / "store" / "overlay")
    # A mount of a directory on itself is none by its device number, which is what is_mount() goes by.
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    if overlay in {line.split()[4] for line in mounts}:
        run("umount", "--recursive", overlay)


def blob(digest: str) -> Path:
    """The file of a blob of the layout."""
    return LAYOUT / "blobs" / Path(digest.replace(":", "/"))


def manifest() -> dict[str, Any]:
    """The image's manifest."""
    (found,) = json.loads((LAYOUT / "index.json").read_text(encoding="utf-8"))["manifests"]
    read: dict[str, Any] = json.loads(blob(found["digest"]).read_text(encoding="utf-8"))
    return read


def configuration() -> dict[str, Any]:
    """The image's configuration: entry point, environment, history."""
    read: dict[str, Any] = json.loads(blob(manifest()["config"]["digest"]).read_text(encoding="utf-8"))
    return read


def layers() -> list[Layer]:
    """The layers, the lowest first."""
    history = [step for step in configuration()["history"] if not step.get("empty_layer")]
    return [
        Layer(step.get("created_by", ""), entry["size"], unpacked_bytes(blob(entry["digest"])))
        for step, entry in zip(history, manifest()["layers"], strict=True)
    ]


def unpacked_bytes(archive: Path) -> int:
    """Bytes of a compressed layer."""
    unpacked = subprocess.run(f"gzip -dc {archive} | wc -c", shell=True, stdout=subprocess.PIPE, check=True)
    return int(unpacked.stdout)


def main() -> int:
    """Builds it; the exit code."""
    try:
        check_machine()
        codename, _ = debian()
        FOLDER.mkdir(parents=True, exist_ok=True)
        archive = FOLDER / f"{codename}.tar"
        if not archive.exists():
            make_base(archive)
        make_context(FOLDER / "context", python_of(archive))
        build(FOLDER / "context")
        unpack()
    except MissingToolError as error:
        print(f"image-root: {error}", file=sys.stderr)
        return 3
    except subprocess.CalledProcessError as error:
        print(
            f"image-root: {Path(error.cmd[0]).name} failed ({error.returncode}); it has said why",
            file=sys.stderr,
        )
        return 1
    finally:
        release()
    return 0


if __name__ == "__main__":
    sys.exit(main())
