# SPDX-License-Identifier: Apache-2.0
"""`gigaslice cordon`: keeps new containers away from a GPU. Changes cordon.json, which an agent sees within a second.

No agent has to run; the GPUs are those that one has last seen.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from agent.commands.node_flags import add_state_dir
from agent.health.health_files import Cordon, change_cordons, read_cordons, read_report
from gigaslice.core.errors import UnknownGpuError
from gigaslice.core.uuids import matching
from gigaslice.runtime.command_line.command import OK

__all__ = ["HELP", "add_arguments", "cordon", "run", "uncordon"]

HELP = "give a GPU to no new container; what runs on it goes on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the GPU and the reason."""
    parser.add_argument("gpu", metavar="GPU", help="UUID, the beginning of one, or index as in status")
    parser.add_argument("--reason", metavar="TEXT", default="", help="shown wherever the cordon is")
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    """Cordons the GPU."""
    print(cordon(Path(arguments.state_dir), arguments.gpu, arguments.reason, time.time()))
    return OK


def cordon(state_dir: Path, name: str, reason: str, now: float) -> str:
    """Takes the GPU NAME (UUID, its beginning, or index) out of service at NOW; a line for the user."""
    uuid = _find(state_dir, name)
    reason = " ".join(reason.split())[:200]
    change_cordons(state_dir, lambda before: {**before, uuid: Cordon(reason, round(now, 3))})
    return f"{uuid} is cordoned: what runs on it goes on, new containers get other GPUs"


def uncordon(state_dir: Path, name: str) -> str:
    """Puts the GPU NAME back into service; a line for the user."""
    uuid = _find(state_dir, name)
    was = uuid in read_cordons(state_dir)
    change_cordons(state_dir, lambda before: {key: cordon for key, cordon in before.items() if key != uuid})
    return f"{uuid} is {'uncordoned' if was else 'not cordoned'}"


def _find(state_dir: Path, name: str) -> str:
    """The UUID that NAME stands for. Raises UnknownGpuError with those that there are."""
    report = read_report(state_dir)
    gpus = {gpu.uuid: gpu.index for gpu in report.gpus} if report else {}
    uuids = [*gpus, *(uuid for uuid in read_cordons(state_dir) if uuid not in gpus)]
    meant = [uuid for uuid in uuids if name == str(gpus.get(uuid))] or matching(name, uuids)
    if len(meant) == 1:
        return meant[0]
    listed = ", ".join(f"{gpus.get(uuid, '-')} {uuid}" for uuid in uuids)
    what = "several GPUs begin with" if meant else "this node has no GPU"
    raise UnknownGpuError(
        f"{what} {name!r}; " + (f"there are: {listed}" if uuids else "no agent has run here yet")
    )
