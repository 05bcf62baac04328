# SPDX-License-Identifier: Apache-2.0
"""What the package takes from the environment: variables and user IDs, read once per command.

No other module of ``vcuda`` reads the environment, so this list is complete. It decides where a user's quota
directories are, and creates none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vcuda import contract

__all__ = [
    "UserSettings",
    "child_environment",
    "in_container",
    "not_preloadable",
    "read_settings",
    "unlimited_environment",
]


@dataclass(frozen=True, slots=True)
class UserSettings:
    """Where this user's quota directories are, the one this process runs under if any, and what children inherit."""

    base_directory: Path
    own_directory: Path | None
    environment: Mapping[str, str]

    @property
    def is_limited(self) -> bool:
        """Whether the library may answer this process for the driver.

        The head of a quota has its directory in the environment, too, unless its variables make no sense.
        """
        limits = (contract.ENV_MEMORY_LIMIT, contract.ENV_PHYSICAL_LIMIT, contract.ENV_CORES)
        preloaded = "LD_PRELOAD" in self.environment
        return self.own_directory is not None or (
            preloaded and any(name in self.environment for name in limits)
        )


def read_settings() -> UserSettings:
    """Settings of the calling process.

    Quota directories are in ``$XDG_RUNTIME_DIR/vcuda`` where that directory exists and belongs to the user (under sudo
    it may belong to another one), and in ``/tmp/vcuda-<uid>`` otherwise. Root's are there too where other users may
    not enter the first: a program that root starts may change its user (su, gosu, a server that drops privileges).
    """
    base = _base_directory(os.environ.get("XDG_RUNTIME_DIR", ""))
    return UserSettings(
        base_directory=base,
        own_directory=_own_directory(
            os.environ.get(contract.ENV_DIR, ""), os.environ.get(contract.ENV_QUOTA, ""), base
        ),
        environment=dict(os.environ),
    )


def child_environment(
    settings: UserSettings, *, library: Path, directory: Path, visible_devices: str | None = None
) -> dict[str, str]:
    """Environment of a command that runs with LIBRARY loaded under the quota of DIRECTORY.

    An existing LD_PRELOAD is kept in front. The variables with limits are dropped: the page of DIRECTORY has them; and
    so is the name of another quota.
    """
    result = unlimited_environment(settings)
    earlier = [
        entry for entry in result.get("LD_PRELOAD", "").replace(":", " ").split() if entry != str(library)
    ]
    result["LD_PRELOAD"] = ":".join([*earlier, str(library)])
    result[contract.ENV_DIR] = str(directory)
    if visible_devices is not None:
        result["CUDA_VISIBLE_DEVICES"] = visible_devices
    return result


def unlimited_environment(settings: UserSettings) -> dict[str, str]:
    """Environment of a child under no quota: the library does nothing in it, outside of an agent's containers."""
    limits = {
        contract.ENV_DIR,
        contract.ENV_QUOTA,
        contract.ENV_MEMORY_LIMIT,
        contract.ENV_PHYSICAL_LIMIT,
        contract.ENV_CORES,
    }
    return {name: value for name, value in settings.environment.items() if name not in limits}


def in_container() -> bool:
    """Whether an agent gave this container a limits page; one without permission to read counts."""
    try:
        Path(contract.CONTAINER_LIMITS).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def not_preloadable(library: Path) -> str:
    """Why LIBRARY cannot be in LD_PRELOAD, whose entries end at colons and spaces; "" when it can."""
    return "its path has a space or a colon in it" if set(str(library)) & set(" :") else ""


def _own_directory(named: str, quota: str, base: Path) -> Path | None:
    """The directory whose limits the library would enforce here."""
    if in_container():
        return Path(contract.CONTAINER_DIR)
    if quota and "/" not in quota:
        return base / f"{contract.QUOTA_PREFIX}{quota}"
    return Path(named) if named.startswith("/") else None


def _base_directory(runtime: str) -> Path:
    try:
        if runtime.startswith("/") and _may_hold_quotas(Path(runtime).stat(), os.geteuid()):
            return Path(runtime) / "vcuda"
    except OSError:
        pass  # it does not exist
    return Path(f"/tmp/vcuda-{os.geteuid()}")


def _may_hold_quotas(directory: os.stat_result, user: int) -> bool:
    return directory.st_uid == user and (user != 0 or bool(directory.st_mode & stat.S_IXOTH))
