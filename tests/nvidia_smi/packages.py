# SPDX-License-Identifier: Apache-2.0
"""Fetches nvidia-smi and libnvidia-ml.so of every branch that Debian's non-free component has.

They are NVIDIA's property, so nothing of them is kept in the repository: packages are downloaded through apt with lists
of its own below build/ (the system's configuration is read, never changed) and unpacked there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.steps import each, step

SUITES = ("bullseye", "bookworm", "trixie", "sid", "experimental")
PROGRAMS = ("nvidia-smi", "nvidia-tesla-smi", "nvidia-tesla-535-smi")
LIBRARIES = ("libnvidia-ml1", "libnvidia-tesla-ml1", "libnvidia-tesla-535-ml1")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Branch:
    """One driver branch; `library` is None where only the program could be had."""

    version: str
    program: Path
    library: Path | None

    @property
    def number(self) -> int:
        """535 of 535.261.03."""
        return int(self.version.partition(".")[0])


def mirror() -> str:
    """The Debian archive that this system uses."""
    etc = Path("/etc/apt")
    for path in [
        *sorted(etc.glob("sources.list.d/*.sources")),
        etc / "sources.list",
        *etc.glob("*.d/*.list"),
    ]:
        text = path.read_text() if path.exists() else ""
        found = re.search(r"(?m)^(?:URIs:\s*|deb\s+(?:\[.*?\]\s+)?)(\S+/debian)/?(?:\s|$)", text)
        if found:
            return found[1]
    sys.exit("test-nvidia-smi: no Debian archive in /etc/apt: this target needs a Debian system")


class Archive:
    """apt with lists and caches below DIRECTORY."""

    def __init__(
        self,
        directory: Path,
        suites: tuple[str, ...] = SUITES,
        component: str = "non-free",
        architecture: str | None = None,
    ) -> None:
        self.directory = directory
        for part in ("lists/partial", "cache/archives/partial", "debs"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        sources = directory / "sources.list"
        options = f"[signed-by={KEYRING}]" if KEYRING.exists() else ""
        sources.write_text("".join(f"deb {options} {mirror()} {suite} {component}\n" for suite in suites))
        self.options = [
            f"-oDir::Etc::SourceList={sources}",
            "-oDir::Etc::SourceParts=/dev/null",
            f"-oDir::State::Lists={directory / 'lists'}",
            f"-oDir::Cache={directory / 'cache'}",
            "-oAcquire::Languages=none",
            "-oAPT::Sandbox::User=root",
        ]
        if architecture is not None:
            self.options += [f"-oAPT::Architecture={architecture}", f"-oAPT::Architectures::={architecture}"]
        # A suite that has left the archive is no reason to do without the others.
        subprocess.run(["apt-get", "-qq", *self.options, "update"], check=False, stderr=subprocess.DEVNULL)

    def versions(self, names: tuple[str, ...]) -> dict[str, tuple[str, str]]:
        """Newest upstream version of each branch -> (package, its version), oldest branch first."""
        newest: dict[int, tuple[str, str, str]] = {}
        for name in names:
            done = subprocess.run(
                ["apt-cache", *self.options, "madison", name], capture_output=True, text=True, check=False
            )
            for line in done.stdout.splitlines():
                version = line.split("|")[1].strip()
                upstream = re.split(r"[-~]", version)[0]
                branch = int(upstream.split(".")[0])
                key = [int(part) for part in upstream.split(".")]
                if branch not in newest or key > [int(part) for part in newest[branch][0].split(".")]:
                    newest[branch] = (upstream, name, version)
        return {newest[branch][0]: newest[branch][1:] for branch in sorted(newest)}

    def unpack(self, name: str, version: str) -> Path:
        """Where the package lies, unpacked."""
        place = self.directory / f"{name}_{version}"
        if not place.exists():
            debs = self.directory / "debs"
            subprocess.run(
                ["apt-get", "-qq", *self.options, "download", f"{name}={version}"], cwd=debs, check=True
            )
            deb = next(debs.glob(f"{name}_{version.replace(':', '%3a')}_*.deb"))
            subprocess.run(["dpkg", "-x", str(deb), str(place)], check=True)
        return place


def fetch(directory: Path) -> list[Branch]:
    """Every branch there is, oldest first."""
    with step("reading the lists of Debian's archive"):
        archive = Archive(directory)
    libraries = {upstream.partition(".")[0]: found for upstream, found in archive.versions(LIBRARIES).items()}
    branches = []
    programs = archive.versions(PROGRAMS)
    for upstream in each(programs, lambda upstream: f"fetching nvidia-smi {upstream}"):
        name, version = programs[upstream]
        program = next(archive.unpack(name, version).rglob("lib/nvidia/*/nvidia-smi"))
        beside = libraries.get(upstream.partition(".")[0])
        library = None
        if beside is not None:
            unpacked = archive.unpack(*beside)
            library = next(path for path in unpacked.rglob("libnvidia-ml.so.*") if not path.is_symlink())
        branches.append(Branch(upstream, program, library))
    return branches
