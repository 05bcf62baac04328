# SPDX-License-Identifier: Apache-2.0
"""The settings of `gigaslice driver-limits`: one field is one setting, with its flag, default and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gigaslice.role_settings import LogSettings
from gigaslice.runtime import setting_values as values
from gigaslice.runtime.settings import setting

__all__ = ["DriverLimitSettings"]


@dataclass(frozen=True, slots=True)
class DriverLimitSettings(LogSettings):
    """Everything that the role can be told."""

    # fmt: off
    socket: Path = setting("SOCKET", values.absolute_path, "/run/gigaslice/driver-limits/limits.sock",
        "where the node agent asks; as its --driver-limits-socket")
    cgroup_root: Path = setting("DIR", values.absolute_path, "/sys/fs/cgroup",
        "the node's cgroups; must be the same path as on the host")
    # fmt: on
