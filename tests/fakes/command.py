# SPDX-License-Identifier: Apache-2.0
"""The command `vcuda` as on a machine that has no node agent and is no container of one, whatever this one is.

What it shows would otherwise depend on the machine that runs the tests: `vcuda ps` lists a node agent's allocations,
and the quota that a container or the tests themselves are under.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["alone", "environment", "runtime"]

_CODE = """
import sys
from vcuda import contract
contract.HOST_ALLOCATIONS, contract.CONTAINER_LIMITS = sys.argv.pop(1), sys.argv.pop(1)
from vcuda.cli import main
sys.exit(main())
"""


def alone(occupants: Path = Path("/nonexistent")) -> list[str]:
    """The beginning of its command line; ALLOCATIONS is where a node agent would have them."""
    return [sys.executable, "-c", _CODE, str(occupants), "/nonexistent/limits"]


def environment(*without: str) -> dict[str, str]:
    """This process's environment but for WITHOUT and for what says a quota."""
    dropped = {"LD_PRELOAD", *without}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith("VCUDA_")
    }


def runtime(directory: Path) -> Path:
    """A directory for XDG_RUNTIME_DIR that every user can have, root too, whatever the umask: see `vcuda.settings`."""
    path = directory / "runtime"
    path.mkdir()
    path.chmod(0o755)
    return path
