# SPDX-License-Identifier: Apache-2.0
"""``vcuda jupyter``: kernels of Jupyter, each under a quota of its own.

``vcuda run … -- jupyter lab`` is one quota for all its kernels. A kernel that is installed here is a ``vcuda run`` of
its own each time that it is started, by whatever finds Jupyter's kernels: Jupyter itself, VS Code, nbconvert.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gigaslice.core.units import exact_size, format_bytes
from gigaslice.runtime.table import Column, as_table
from vcuda import errors, kernels, program, quota_request, settings
from vcuda.cli import run as run_command

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "install kernels of Jupyter that have a quota each"
DESCRIPTION = (
    "Installs a kernel that is started under a quota of its own, lists those that are installed, and removes them. "
    "Start Jupyter itself without a quota."
)
_ACTIONS = ("install", "list", "remove")
_COLUMNS = (Column("NAME"), Column("QUOTA"), Column("PYTHON"), Column("DIRECTORY"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.usage = "vcuda jupyter {install --memory SIZE ... | list | remove --name NAME}"
    parser.add_argument("action", choices=_ACTIONS, metavar="ACTION", help="install, list or remove")
    run_command.add_quota_arguments(parser)
    parser.add_argument("--name", metavar="NAME", help="of the kernel; default: vcuda- and the quota")
    parser.add_argument(
        "--display-name", metavar="TEXT", help="what Jupyter shows; default: Python and the quota"
    )
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="the kernel's Python, which needs ipykernel; default: python3 on PATH",
    )
    parser.add_argument(
        "--sys-prefix",
        action="store_true",
        help="in the environment of that Python instead of the user's own directory",
    )


def run(parsed: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    if parsed.action != "install" and run_command.quota_words(parsed):
        raise errors.UsageError(f"vcuda jupyter {parsed.action} has no quota", "", "leave these options out")
    if parsed.action == "install":
        return _install(parsed)
    return _list(parsed) if parsed.action == "list" else _remove(parsed)


def _install(parsed: argparse.Namespace) -> int:
    config = settings.read_settings()
    memory = quota_request.parse_memory(parsed.memory, parsed.physical, parsed.host)
    run_command.check_quota(parsed)
    python = kernels.inspect_python(_python(parsed.python, config))
    text = f"Python {python.version} ({format_bytes(memory.memory_bytes)} of GPU memory)"
    roots = kernels.spec_roots(config.environment, [python.prefix])
    spec = kernels.install(
        python.prefix / "share" / "jupyter" if parsed.sys_prefix else roots[0],
        parsed.name or _default_name(parsed, memory),
        display_name=parsed.display_name or text,
        launcher=_launcher(),
        quota=run_command.quota_words(parsed),
        python=python,
    )
    print(
        f"installed {spec.name} ({errors.printable(spec.display_name)}) in {errors.printable(str(spec.directory))}"
    )
    return 0


def _default_name(parsed: argparse.Namespace, memory: quota_request.MemoryRequest) -> str:
    """Another one for another quota, so that none replaces another by accident."""
    parts = [exact_size(memory.memory_bytes)]
    parts += [f"on-gpu-{exact_size(memory.on_gpu)}"] if memory.host_bytes else []
    parts += [f"{parsed.cores}-percent{'-elastic' if parsed.elastic else ''}"] if parsed.cores else []
    return "-".join(["vcuda", *parts, *(f"gpu-{gpu.removeprefix('GPU-')}" for gpu in parsed.gpu)]).lower()


def _list(parsed: argparse.Namespace) -> int:
    specs = list(kernels.find_specs(_roots(parsed)))
    if not specs:
        print("no kernel has a quota here")
        return 0
    rows = [(spec.name, " ".join(spec.quota), spec.python, str(spec.directory)) for spec in specs]
    print(as_table(_COLUMNS, [[errors.printable(cell) for cell in row] for row in rows]))
    return 0


def _remove(parsed: argparse.Namespace) -> int:
    if not parsed.name:
        raise errors.UsageError("no kernel was named", "", "write --name NAME; vcuda jupyter list shows them")
    print(f"removed {errors.printable(str(kernels.remove(_roots(parsed), parsed.name)))}")
    return 0


def _roots(parsed: argparse.Namespace) -> list[Path]:
    """Where Jupyter would look, with the environments of the Python that was named, of the one on PATH, and of ours."""
    config = settings.read_settings()
    found = parsed.python or program.find_program("python3", config.environment.get("PATH", os.defpath))
    environments = [Path(found).absolute().parent.parent] if found else []
    return kernels.spec_roots(config.environment, [*environments, Path(sys.prefix)])


def _python(named: Path | None, config: settings.UserSettings) -> Path:
    """Not resolved: the path of a virtual environment's link is what makes it one."""
    found = program.find_program(str(named or "python3"), config.environment.get("PATH", os.defpath))
    if found is None:
        raise errors.UsageError(f"there is no {named or 'python3'}", "", "name a Python with --python")
    return found.absolute()


def _launcher() -> list[str]:
    """The script beside our interpreter, whatever environment the kernel is started from; else the module."""
    script = Path(sys.executable).with_name("vcuda")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-m", "vcuda"]
