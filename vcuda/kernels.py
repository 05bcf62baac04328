# SPDX-License-Identifier: Apache-2.0
"""Jupyter's kernel specifications that start a kernel under a quota of its own.

A specification is a directory with ``kernel.json``, found by name in Jupyter's data directories (Jupyter's
documentation: "Making kernels for Jupyter", "Common directories and file locations"). Those made here have
``metadata.vcuda`` and are the only ones that are listed and removed. The kernel is started by ``vcuda run --exec``: the
process that Jupyter signals and watches is the kernel itself. Nothing of Jupyter is imported or run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gigaslice.runtime.files import read_file, replace_file
from vcuda import errors

__all__ = [
    "KernelPython",
    "KernelSpec",
    "check_name",
    "find_specs",
    "inspect_python",
    "install",
    "remove",
    "spec_roots",
]

_MOST_JSON = 1 << 20
_PROBE_SECONDS = 60
_SYSTEM_ROOTS = ("/usr/local/share/jupyter", "/usr/share/jupyter")
_PROBE = (
    "import importlib.util as u, json, sys; "
    "print(json.dumps([sys.prefix, sys.version_info[0], u.find_spec('ipykernel') is not None]))"
)


@dataclass(frozen=True, slots=True)
class KernelPython:
    """An interpreter that can run a kernel. prefix: its environment (sys.prefix). version: Python's first number."""

    path: Path
    prefix: Path
    version: int


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A specification of ours. quota: the options of ``vcuda run``. python: the kernel's interpreter."""

    name: str
    display_name: str
    directory: Path
    quota: tuple[str, ...]
    python: str


def spec_roots(environment: Mapping[str, str], prefixes: Sequence[Path] = ()) -> list[Path]:
    """The directories whose ``kernels`` Jupyter reads, the first being the user's, in which it installs.

    PREFIXES: environments of Python, each with a ``share/jupyter`` of its own.

    Raises:
        UsageError: Nothing says where the user's directory is: no variable, and no entry in /etc/passwd.
    """
    users = Path(environment.get("JUPYTER_DATA_DIR") or _data_directory(environment) / "jupyter")
    more = [Path(part) for part in environment.get("JUPYTER_PATH", "").split(os.pathsep) if part]
    shared = [prefix / "share" / "jupyter" for prefix in prefixes]
    return list(dict.fromkeys([users, *more, *shared, *map(Path, _SYSTEM_ROOTS)]))


def _data_directory(environment: Mapping[str, str]) -> Path:
    if directory := environment.get("XDG_DATA_HOME"):
        return Path(directory)
    try:
        home = Path(environment.get("HOME") or "~").expanduser()
    except RuntimeError as error:
        what = "it is not known where Jupyter's kernels are"
        raise errors.UsageError(
            what, "this user has no home directory", "set HOME or JUPYTER_DATA_DIR"
        ) from error
    return home / ".local" / "share"


def inspect_python(path: Path) -> KernelPython:
    """Asks the interpreter at PATH where its environment is. Raises UsageError where it cannot run a kernel."""
    what = f"{path} cannot run a kernel"
    try:
        done = subprocess.run(
            [path, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
        prefix, version, has_ipykernel = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise errors.UsageError(what, "it is no Python that works", "name one with --python") from error
    if not has_ipykernel:
        remedy = f"{path} -m pip install ipykernel, or name another Python with --python"
        raise errors.UsageError(what, "it has no ipykernel", remedy)
    return KernelPython(path, Path(prefix), int(version))


def check_name(name: str) -> str:
    """NAME, if it is one that Jupyter takes. Raises UsageError."""
    if not re.fullmatch(r"[a-z0-9._-]+", name) or name.startswith("."):
        what = f"{errors.printable(name)!r} is no name of a kernel"
        raise errors.UsageError(what, "", "write lower-case letters, digits, dots, hyphens and underscores")
    return name


def install(
    root: Path,
    name: str,
    *,
    display_name: str,
    launcher: Sequence[str],
    quota: Sequence[str],
    python: KernelPython,
) -> KernelSpec:
    """Writes the specification NAME below ROOT, or replaces one of ours.

    LAUNCHER: the words that ``vcuda`` is started by. QUOTA: options of ``vcuda run``. Raises UsageError for a name that
    another kernel has.
    """
    directory = root / "kernels" / check_name(name)
    if directory.exists() and _read(directory) is None:
        raise errors.UsageError(
            f"there is another kernel {name}", f"in {directory}", "choose another name with --name"
        )
    kernel = [str(python.path), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    text = {
        "argv": [*launcher, "run", "--exec", *quota, "--", *kernel],
        "display_name": display_name,
        "language": "python",
        "metadata": {"debugger": True, "vcuda": {"quota": [*quota], "python": str(python.path)}},
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        content = json.dumps(text, indent=1, ensure_ascii=False) + "\n"
        replace_file(
            directory / "kernel.json", content.encode("utf-8", "surrogateescape"), suffix=str(os.getpid())
        )
    except OSError as error:
        raise errors.PermissionDeniedError(
            f"cannot write {directory}", error.strerror or "", "set JUPYTER_DATA_DIR, or use --sys-prefix"
        ) from error
    return KernelSpec(name, display_name, directory, tuple(quota), str(python.path))


def find_specs(roots: Sequence[Path]) -> Iterator[KernelSpec]:
    """Those of ours below ROOTS; of two with one name, the first is the one that Jupyter takes."""
    for root in roots:
        try:
            entries = sorted((root / "kernels").iterdir())
        except OSError:
            continue
        yield from (spec for entry in entries if (spec := _read(entry)) is not None)


def remove(roots: Sequence[Path], name: str) -> Path:
    """Removes the first one called NAME; the directory that it had. Raises UsageError without one."""
    spec = next((spec for spec in find_specs(roots) if spec.name == name), None)
    if spec is None:
        what = f"there is no kernel {errors.printable(name)} with a quota"
        raise errors.UsageError(what, "", "vcuda jupyter list shows them")
    try:
        shutil.rmtree(spec.directory)
    except OSError as error:
        raise errors.PermissionDeniedError(
            f"cannot remove {spec.directory}", error.strerror or "", "remove it as its owner"
        ) from error
    return spec.directory


def _read(directory: Path) -> KernelSpec | None:
    """The specification in DIRECTORY, if it is one of ours."""
    try:
        value = json.loads(read_file(directory / "kernel.json", _MOST_JSON))
        ours = value["metadata"]["vcuda"]
        quota = tuple(map(str, ours["quota"]))
        return KernelSpec(directory.name, str(value["display_name"]), directory, quota, str(ours["python"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
