# SPDX-License-Identifier: Apache-2.0
"""A container as far as the library can tell: its own /etc with the four mounts of a pod, in a mount namespace.

Needs root and unshare(1); `needs_root` skips where they are not to be had. Nothing outside the namespace changes.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.native.running import CLIENTS, LIBRARY, Place

KEPT_OF_ETC = ("ld.so.cache", "passwd", "group", "nsswitch.conf")
SECONDS = 30


@functools.cache
def _can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def needs_root() -> None:
    """Skips the test where no mount namespace can be made."""
    if not _can_mount():
        pytest.skip("needs root and mount namespaces")


@dataclass
class Container:
    """PLACE's machine, with a limit of 1 GiB mounted like a pod's. `mounts` are shell lines run before the program."""

    place: Place
    mounts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        needs_root()
        self.etc = self.place.directory / "etc"
        (self.etc / "vcuda").mkdir(parents=True)
        for name in KEPT_OF_ETC:
            if (Path("/etc") / name).exists():
                shutil.copy(Path("/etc") / name, self.etc / name)
        (self.etc / "ld.so.preload").write_text(f"{LIBRARY}\n")
        made = subprocess.run(
            [CLIENTS / "ways", "simple"],
            env=self.place.env("1GiB"),
            capture_output=True,
            text=True,
            check=True,
        )
        assert made.stdout.split() == ["limited"]
        for name in ("limits", "ledger"):
            shutil.move(self.place.quota / name, self.etc / "vcuda" / name)
        limits = self.etc / "vcuda" / "limits"
        self.mounts[:0] = [
            f"mount --bind {self.etc} /etc",
            f"mount --bind {limits} /etc/vcuda/limits",
            "mount -o remount,bind,ro /etc/vcuda/limits",
        ]

    def run(self, *command: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
        """COMMAND inside; its environment is that of a plain program that is refused memory on purpose, and EXTRA."""
        return in_namespace(
            self.mounts, *command, env=self.place.plain_env() | {"VCUDA_REFUSALS": "off"} | extra
        )

    def words(self, *command: str | Path, **extra: str) -> list[str]:
        """What the program `ways` says."""
        done = self.run(*command, **extra)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.splitlines()


def in_namespace(
    mounts: list[str], *command: str | Path, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """COMMAND under ENV, in a mount namespace that MOUNTS have prepared without it."""
    script = " && ".join([*mounts, 'exec env -i "$@"'])
    settings = [f"{name}={value}" for name, value in env.items()]
    return subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
            *settings,
            *map(str, command),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
