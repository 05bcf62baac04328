# SPDX-License-Identifier: Apache-2.0
"""Old C libraries, and a client of the library that runs on them. Nothing of them is kept in the repository: they come
through apt from the archive this system uses, with lists of their own below build/."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.native.running import MIB, OUT_OF_MEMORY, ROOT, SUCCESS, Client, Place
from tests.nvidia_smi.packages import Archive

SUITES = (
    "jessie",
    "stretch",
    "buster",
    "bullseye",
    "bookworm",
)  # those that have left the archive are passed over
PROOFS = ROOT / "docs" / "proofs"
CONTEXT, LIMIT = 100, 1100  # MiB


@dataclass(frozen=True)
class Libc:
    """An unpacked libc6 package."""

    version: str
    loader: Path
    libraries: Path


def oldest_package(archive: Archive, name: str) -> tuple[str, Path]:
    """The oldest version of a package that the archive has, unpacked."""
    listing = subprocess.run(
        ["apt-cache", *archive.options, "madison", name], capture_output=True, text=True, check=False
    ).stdout
    versions = [line.split("|")[1].strip() for line in listing.splitlines()]
    if not versions:
        sys.exit(f"no {name} in the Debian archive of /etc/apt: see apt-get's messages")
    version = min(versions, key=lambda text: tuple(map(int, re.findall(r"\d+", text)[:2])))
    return version, archive.unpack(name, version)


def oldest(directory: Path, architecture: str) -> Libc:
    """The oldest libc6 that the archive has for the processor, and what it ends threads with."""
    archive = Archive(directory, SUITES, "main", architecture)
    version, place = oldest_package(archive, "libc6")
    loader = next(path for path in place.glob("lib/*/ld-linux-*.so.*"))
    _, unwinder = oldest_package(archive, "libgcc-s1")
    for file in unwinder.rglob("libgcc_s.so.1"):
        shutil.copy(file, loader.parent)
    return Libc(version, loader, loader.parent)


def charge_to_the_limit(place: Place, env: dict[str, str], command: tuple[str, ...], mode: str) -> list[str]:
    """What went wrong when a program charged up to its limit and one step beyond."""
    wrong = []
    with Client(env, mode, command) as client:
        client.ready()
        steps = [
            ("free at the start", client.do("info").first, (LIMIT - CONTEXT) * MIB),
            ("alloc of 999 MiB", client.do("alloc a", 999 * MIB).code, SUCCESS),
            ("2 MiB beyond the limit", client.do("alloc b", 2 * MIB).code, OUT_OF_MEMORY),
            ("the last MiB", client.do("alloc b", MIB).code, SUCCESS),
            ("one byte more", client.do("alloc c", 1).code, OUT_OF_MEMORY),
            ("free at the limit", client.do("info").first, 0),
            ("release", client.do("free a").code, SUCCESS),
            ("free after it", client.do("info").first, 999 * MIB),
        ]
        wrong = [f"{what}: {got}, expected {wanted}" for what, got, wanted in steps if got != wanted]
        errors = client.close()
        if errors:
            wrong.append(f"stderr: {errors.strip()}")
    return wrong


def write_page(name: str, lines: list[str]) -> Path:
    """docs/proofs/NAME, dated."""
    PROOFS.mkdir(parents=True, exist_ok=True)
    page = PROOFS / name
    today = datetime.datetime.now(datetime.timezone.utc).date()
    page.write_text("\n".join(lines).replace("{date}", str(today)) + "\n")
    return page
