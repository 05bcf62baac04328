# SPDX-License-Identifier: Apache-2.0
"""Quota directories of commands on a workstation: made by ``vcuda run``, listed by ``vcuda ps``, swept when unused.

A directory holds a limits page, a ledger and ``command.json``. It is filled under a hidden name and renamed when it is
complete, so no process ever finds an incomplete one. The library makes such directories too, for programs that have
their limit from the environment. When one is in use, and how it is removed, is decided in C for both
(``native/shm/quota.h``): while a process owns a slot of its ledger, while its launcher lives, or while any process
names it, so that a background child that has not used the GPU yet finds its limit later. Directories that a user named
with --dir are never swept.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import stat
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gigaslice.core.units import exact_size
from gigaslice.runtime.files import read_file, replace_file
from vcuda import contract, errors
from vcuda._bridge import lib, path_bytes
from vcuda.ledger import LedgerUsage, create_ledger, read_ledger
from vcuda.limits import GpuLimit, LimitsPage, create_limits, read_limits

__all__ = [
    "CommandRecord",
    "Quota",
    "all_quotas",
    "context_costs",
    "create_in",
    "find_quotas",
    "is_in_use",
    "open_named",
    "other_bases",
    "owner_of",
    "private_base",
    "quotas_in_use",
    "read_quota",
    "remove_if_unused",
    "sweep",
    "write_command",
]

_MOST_JSON = 1 << 20
_RUN_PREFIX = "run-"
_NEW_PREFIX = ".new-"


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """What ``vcuda run`` has started: arguments, its PID (0 before it runs), the launcher's PID with its start time in
    clock ticks since boot, and when, in seconds since 1970.
    """

    command: tuple[str, ...]
    pid: int
    launcher: int
    launcher_start: int
    start: float
    version: int = 1


@dataclass(frozen=True, slots=True)
class Quota:
    """One directory as it was read. kind: "container", "command" or "directory". name: for display."""

    directory: Path
    kind: str
    name: str
    limits: LimitsPage
    usage: LedgerUsage


def private_base(base: Path) -> Path:
    """Makes BASE a directory that only this user can list. Raises PermissionDeniedError.

    Every user can write to /tmp, so a directory or link that another user put there is refused. Other users can enter
    root's, since a program that root starts may change its user; they cannot list it, and the names in it have 96
    random bits.
    """
    what = f"cannot use {base} for quota directories"
    try:
        base.mkdir(mode=0o700, parents=False, exist_ok=True)
        info = base.lstat()
    except OSError as error:
        raise errors.PermissionDeniedError(
            what, error.strerror or "", "set XDG_RUNTIME_DIR or use --dir"
        ) from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise errors.PermissionDeniedError(
            what, "it belongs to another user", "remove it or set XDG_RUNTIME_DIR"
        )
    if stat.S_IMODE(info.st_mode) != _directory_mode():
        base.chmod(_directory_mode())
    return base


def _directory_mode() -> int:
    return 0o711 if os.geteuid() == 0 else 0o700


def create_in(base: Path, gpus: Sequence[GpuLimit], command: Sequence[str]) -> Path:
    """Creates a directory below BASE with page, ledger and the launcher's record of COMMAND."""
    suffix = secrets.token_hex(12)
    prepared = base / f"{_NEW_PREFIX}{os.getpid()}-{suffix}"
    final = base / f"{_RUN_PREFIX}{os.getpid()}-{suffix}"
    try:
        prepared.mkdir(mode=0o700)
        _fill(prepared, gpus)
        write_command(prepared, command, 0)
        prepared.chmod(_directory_mode())
        prepared.rename(final)
    except OSError as error:
        shutil.rmtree(prepared, ignore_errors=True)
        raise errors.SystemError_(
            f"cannot create a quota directory in {base}", error.strerror or ""
        ) from error
    except errors.VcudaError:
        shutil.rmtree(prepared, ignore_errors=True)
        raise
    return final


def open_named(directory: Path, gpus: Sequence[GpuLimit]) -> Path:
    """Creates page and ledger for GPUS in DIRECTORY, or joins those that are there when the limits agree.

    Raises UsageError when the limits differ: one quota cannot have two limits.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise errors.UsageError(
            f"cannot use {directory}", error.strerror or "", "name a directory of yours"
        ) from error
    with contextlib.suppress(errors.ExistsError):  # joined, or another process created them first
        _fill(directory, gpus)
    page = read_limits(directory / contract.LIMITS_FILE)
    if not (directory / contract.LEDGER_FILE).exists():
        with contextlib.suppress(
            errors.ExistsError
        ):  # its creator was killed between the two, or creates it right now
            create_ledger(
                directory / contract.LEDGER_FILE, page.allocation_id, page.gpus, contract.LEDGER_MODE
            )
    present = read_quota(directory).limits.gpus
    if _all_options(present) != _all_options(gpus):
        raise errors.UsageError(
            f"{directory} has other limits than requested",
            ", ".join(f"{gpu.uuid} {exact_size(gpu.memory_bytes)}" for gpu in present),
            "request the same, or use another directory",
        )
    return directory


def write_command(directory: Path, command: Sequence[str], pid: int) -> None:
    """Records that COMMAND runs as PID, by replacing the file atomically."""
    launcher = os.getpid()
    record = CommandRecord(tuple(command), pid, launcher, _start_time(launcher) or 0, time.time())
    text = json.dumps(asdict(record)) + "\n"
    replace_file(directory / contract.COMMAND_FILE, text.encode(), suffix=str(launcher))


def find_quotas(base: Path) -> list[Path]:
    """Quota directories in BASE by name; none where BASE does not exist or is not readable."""
    try:
        entries = sorted(base.iterdir())
    except OSError:
        return []
    return [entry for entry in entries if not entry.name.startswith(".") and _is_quota(entry)]


def other_bases(own: Path) -> list[Path]:
    """The directories in which other users have their quotas, for root. A link or another one's is left out."""
    if os.geteuid() != 0:
        return []
    places = [*Path("/run/user").glob("*/vcuda"), *Path("/tmp").glob("vcuda-*")]
    return sorted(place for place in places if place != own and _is_of_its_user(place))


def _is_of_its_user(base: Path) -> bool:
    user = base.name.removeprefix("vcuda-") if base.parent == Path("/tmp") else base.parent.name
    try:
        info = base.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and str(info.st_uid) == user and info.st_uid != os.geteuid()


def owner_of(directory: Path) -> str:
    """The name of the user whose directory it is, or their number."""
    try:
        user = directory.stat().st_uid
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def all_quotas(base: Path) -> list[Path]:
    """The quota directories that this user may see: of a node agent, below BASE, and for root those of other users."""
    others = [quota for place in other_bases(base) for quota in find_quotas(place) if not quota.is_symlink()]
    return [*find_quotas(Path(contract.HOST_ALLOCATIONS)), *find_quotas(base), *others]


def quotas_in_use(base: Path, but: Path) -> list[Quota]:
    """Those that can be read and are promised to somebody, BUT one."""
    readable: list[Quota] = []
    for directory in all_quotas(base):
        if directory != but:
            with contextlib.suppress(errors.VcudaError):
                readable.append(read_quota(directory))
    return [quota for quota in readable if is_in_use(quota)]


def context_costs(base: Path) -> dict[str, int]:
    """What a context takes of each GPU, by UUID, as processes measured it whose quotas are in BASE, in use or left.

    Of several numbers the newest quota's counts. Another user's BASE has none.
    """
    costs: dict[str, int] = {}
    with contextlib.suppress(OSError):
        if base.lstat().st_uid != os.geteuid():
            return {}
    for directory in sorted(find_quotas(base), key=_age):
        with contextlib.suppress(errors.VcudaError):
            costs.update(read_quota(directory).usage.context_bytes)
    return costs


def _age(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except OSError:
        return 0.0  # it has just been removed


def is_in_use(quota: Quota) -> bool:
    """Whether the quota is promised to somebody: a container, or who keeps its directory from being swept."""
    return quota.kind == "container" or bool(lib.quota_in_use(path_bytes(quota.directory), 0))


def read_quota(directory: Path) -> Quota:
    """Reads page, ledger and owner. Raises the classes of ``vcuda.errors``."""
    limits = read_limits(directory / contract.LIMITS_FILE)
    usage = read_ledger(directory / contract.LEDGER_FILE, limits.gpus)
    if usage.allocation_id != limits.allocation_id:
        raise errors.MismatchError(f"cannot use {directory}", "the ledger belongs to another limits page")
    command = _read_json(directory / contract.COMMAND_FILE).get("command")
    if isinstance(command, list) and command:
        words = errors.printable(" ".join(map(str, command)))
        return Quota(directory, "command", _with_user(directory, words), limits, usage)
    owner = _read_json(directory / contract.OWNER_FILE)
    names = [str(owner[key]) for key in ("namespace", "pod", "container") if owner.get(key)]
    if names:
        return Quota(directory, "container", errors.printable("/".join(names)), limits, usage)
    return Quota(
        directory, "directory", _with_user(directory, errors.printable(directory.name)), limits, usage
    )


def _with_user(directory: Path, name: str) -> str:
    """NAME, with whose it is where root looks at another user's."""
    if os.geteuid() != 0:
        return name
    user = owner_of(directory)
    return name if user in ("root", "?") else f"{user}: {name}"


def sweep(base: Path) -> int:
    """Removes what finished commands and programs left in BASE; returns how many directories it removed."""
    return int(lib.quota_sweep(path_bytes(base)))


def remove_if_unused(directory: Path, *, launcher_done: bool = False) -> bool:
    """Removes DIRECTORY unless a process may use it. LAUNCHER_DONE: the caller's own command has ended."""
    return bool(lib.quota_remove_unused(path_bytes(directory), int(launcher_done)))


def _fill(directory: Path, gpus: Sequence[GpuLimit]) -> None:
    allocation_id = secrets.token_bytes(16)
    create_limits(directory / contract.LIMITS_FILE, allocation_id, gpus, contract.LIMITS_MODE)
    create_ledger(directory / contract.LEDGER_FILE, allocation_id, gpus, contract.LEDGER_MODE)


def _all_options(gpus: Sequence[GpuLimit]) -> dict[str, tuple[int, int, int]]:
    return {gpu.uuid.lower(): (gpu.memory_bytes, gpu.cores_percent, gpu.physical_bytes) for gpu in gpus}


def _is_quota(directory: Path) -> bool:
    try:
        return (directory / contract.LIMITS_FILE).exists()
    except OSError:
        return False  # no permission


def _read_json(path: Path) -> dict[str, object]:
    """The object in a file that is only for display: a missing or damaged one is empty."""
    try:
        value = json.loads(read_file(path, _MOST_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of process PID; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        return int(text.rpartition(b")")[2].split()[19])  # field 22; the name before it may contain anything
    except (OSError, ValueError, IndexError):
        return None
