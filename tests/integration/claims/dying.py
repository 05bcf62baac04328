# SPDX-License-Identifier: Apache-2.0
"""The node agent as a program that kills itself at a named point, once: `dying.py DIRECTORY node …`.

A point is armed by a file of its name in DIRECTORY. Whoever comes to it takes the file away and kills the agent's own
process, or its front and then itself, or stops itself (SIGSTOP) so that something else can be killed meanwhile: the
file says which. Points lie before and after each step of Prepare and Unprepare that leaves something behind.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PREPARE_STEPS = ("directory", "record", "file", "rename", "sync", "prepared")
UNPREPARE_STEPS = ("await", "record", "remove-directory", "remove-file", "unprepared")
SIDES = ("before", "after")
TAKE_OVER_STEP = "adopt"
"""Of a front that takes over from another: here the process that dies is the front's own."""
AGENT, FRONT, STOP = "agent", "front", "stop"


def arm(directory: Path, step: str, side: str, *, what: str = AGENT) -> Path:
    """Has the agent die or stop once at a point. The file that is returned is there until then."""
    path = directory / f"{step}-{side}"
    whole = path.with_suffix(".new")
    whole.write_text(what)
    whole.replace(path)
    return path


def _die(directory: Path, step: str, side: str) -> None:
    path = directory / f"{step}-{side}"
    try:
        what = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return
    if what == STOP:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if what == FRONT:
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _wrapped(
    directory: Path, step: str, real: Callable[..., Any], concerns: Callable[..., bool]
) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(real):

        @functools.wraps(real)
        async def later(*arguments: Any, **more: Any) -> Any:
            _die(directory, step, "before")
            answer = await real(*arguments, **more)
            _die(directory, step, "after")
            return answer

        return later

    @functools.wraps(real)
    def call(*arguments: Any, **more: Any) -> Any:
        if not concerns(*arguments):
            return real(*arguments, **more)
        _die(directory, step, "before")
        answer = real(*arguments, **more)
        _die(directory, step, "after")
        return answer

    return call


def _prepare_to_die(directory: Path) -> None:
    """Puts the points into the agent's own process."""
    from agent.claims.cdi_files import CdiFiles
    from agent.claims.release import ClaimRelease
    from agent.claims.servicer import ClaimServicer
    from agent.persistence.checkpoint import CheckpointFile
    from agent.persistence.directories import AllocationDirs
    from agent.persistence.store import Store

    steps: dict[str, tuple[Any, str]] = {
        "directory": (AllocationDirs, "create"),
        "record": (CheckpointFile, "save"),
        "file": (CdiFiles, "write"),
        "rename": (Path, "replace"),
        "sync": (Store, "sync"),
        "prepared": (ClaimServicer, "prepare"),
        "await": (ClaimRelease, "_remaining_users"),
        "remove-directory": (AllocationDirs, "remove"),
        "remove-file": (CdiFiles, "remove"),
        "unprepared": (ClaimServicer, "unprepare"),
    }
    for step, (owner, name) in steps.items():
        concerns: Callable[..., bool] = lambda *_: True  # noqa: E731
        if owner is Path:
            concerns = lambda path, *_: "gigaslice.io-vgpu-" in path.name  # noqa: E731
        setattr(owner, name, _wrapped(directory, step, getattr(owner, name), concerns))


def main() -> int:
    """Runs the agent with the points in it."""
    from agent.front import handover, supervise
    from gigaslice_cli import entry

    directory, run = Path(sys.argv.pop(1)), supervise.run
    handover.adopt = _wrapped(directory, TAKE_OVER_STEP, handover.adopt, lambda *_: True)

    def armed(agent: Callable[[], int]) -> int:
        def dying() -> int:
            _prepare_to_die(directory)
            return agent()

        return run(dying)

    supervise.run = armed
    return entry.main()


if __name__ == "__main__":
    sys.exit(main())
