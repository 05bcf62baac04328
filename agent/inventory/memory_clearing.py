# SPDX-License-Identifier: Apache-2.0
"""Whether the driver was told not to clear GPU memory that a process gives back: the next tenant could read it then.

Clearing is the kernel module's default (docs/threat-model.md says for which GPUs). Its option RMDisableScrubOnFree
takes it away; /proc/driver/nvidia/params shows the options that the module was loaded with, also in containers with
the driver. What is not there or cannot be read says nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from gigaslice.runtime.files import read_file

__all__ = ["OPTION", "PARAMETERS", "is_switched_off"]

PARAMETERS = Path("/proc/driver/nvidia/params")
OPTION = "RMDisableScrubOnFree"
_LONGEST = 1 << 16
_OPTIONS = re.compile(r'^RegistryDwords(?:PerDevice)?: "(.*)"', re.MULTILINE)
_SET = re.compile(rf"(?:^|;)\s*{OPTION}\s*=\s*(0x[0-9a-f]+|[0-9]+)", re.IGNORECASE)


def is_switched_off(path: Path = PARAMETERS) -> bool:
    """Whether the options of the kernel module switch the clearing of memory off, for a GPU or for all."""
    try:
        text = read_file(path, _LONGEST).decode("utf-8", "replace")
    except OSError:
        return False
    return any(int(value, 0) != 0 for options in _OPTIONS.findall(text) for value in _SET.findall(options))
