# SPDX-License-Identifier: Apache-2.0
"""The directory of one allocation on the host: what the container's four mounts point at.

    allocations/<id>/limits          the limits page, mounted read-only
    allocations/<id>/ledger          the ledger, mounted read-write; or a link to it, see `ledger_files`
    allocations/<id>/ld.so.preload   one line: the library's path in the container, mounted read-only
    allocations/<id>/allocation.json the allocation, so that the table can be rebuilt from the directories alone
    allocations/<id>/owner.json      namespace, pod and container, once known: for people and `vcuda ps`

A directory appears complete or not at all: it is filled under another name and renamed. It ends by a rename too:
making and removing files is what takes a disk's journal long, so `make_ahead` and `tidy` do it in another thread,
before and after the fact. Names that begin with a point are its business, and cleared away at the next start. Files are
not synced one by one; what a power loss takes is rebuilt from the synced checkpoint, before any container can start.
This is the agent's only creator of limits pages and ledgers. Which directory may be removed is decided by the rules of
the allocation's origin.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import stat
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import vcuda
from agent.ledgers.open_ledgers import OpenLedgers
from agent.ledgers.trust import RecentLimits
from agent.persistence.codec import Codec
from agent.persistence.ledger_files import LedgerFiles, ledger_path
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.errors import CheckpointError, CheckpointVersionError, StorageError
from gigaslice.core.kube.json_text import read_json
from gigaslice.runtime.files import open_file, read_file, remedy
from vcuda import contract

__all__ = ["AllocationDirs"]

_ALLOCATION_FILE = "allocation.json"
_OWNER_NEW = contract.OWNER_FILE + ".new"  # until there is one to name
_NEW, _OLD = ".new-", ".old-"  # before the rename that makes a directory, after the one that ends it
_SPARE = _NEW + "spare-"  # older agents clear them away, too
_MOST = 16 << 20  # bytes of one of these files
_SPARES = 6
"""More than a pod usually has containers, and a pod is admitted in more time than it takes to make one."""


class AllocationDirs:
    """All directories below ROOT, with records in the format of CODEC. ELSEWHERE: where ledgers may lie whose locks
    would not last there.
    """

    def __init__(self, root: Path, codec: Codec, elsewhere: Path | None = None) -> None:
        self._root = root
        self._codec = codec
        self.ledger_files = LedgerFiles(root, elsewhere)
        self._ended = deque[Path]()  # filled by one thread, emptied by another
        self._spares = deque[
            tuple[Path, str]
        ]()  # the other way about; with the library of their preload lines
        self._number = itertools.count()
        self.recent = RecentLimits()
        """What pages have said that now say less."""
        self.ledgers = OpenLedgers()

    def prepare(self) -> None:
        """Makes the root, and clears away what a killed agent left half made or half removed."""
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in self._root.iterdir():
                if path.name.startswith((_NEW, _OLD)):
                    _clear_away(path)
            self.ledger_files.prepare()
        except OSError as error:
            raise _storage_error("prepare", self._root, error) from error

    def path(self, allocation_id: str) -> Path:
        """Where the directory of an allocation is or would be."""
        return self._root / allocation_id

    def create(self, allocation: Allocation) -> None:
        """Makes the directory of an allocation. Raises StorageError and leaves nothing behind when it cannot."""
        spare = self._spare(allocation.library)
        if spare is not None:
            with contextlib.suppress(OSError, vcuda.VcudaError):
                self._fill(spare, allocation)
                os.rename(spare, f"{self._root}/{allocation.id}")  # noqa: PTH104  (see `CheckpointFile`)
                self.hold(allocation.id)
                return
            self._ended.append(spare)  # another process has changed it
        fresh = self._root / (_NEW + allocation.id)
        try:
            self._furnish(fresh, allocation.library)
            self._fill(fresh, allocation)
            fresh.rename(self.path(allocation.id))
            self.hold(allocation.id)
        except (OSError, vcuda.VcudaError) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            self.ledger_files.abandon(fresh)
            raise _storage_error("create", self.path(allocation.id), error) from error

    def hold(self, allocation_id: str) -> None:
        """Keeps the ledger of a directory open, for as long as that is there."""
        self.ledgers.hold(allocation_id, ledger_path(self.path(allocation_id)))

    def problem(self, allocation: Allocation) -> str | None:
        """What keeps a container from starting with this directory, or None when it is as it should be."""
        path = self.path(allocation.id)
        if not path.is_dir():
            return "the directory is missing"
        try:
            page = vcuda.read_limits(path / contract.LIMITS_FILE)
            ledger = vcuda.read_ledger(path / contract.LEDGER_FILE, wait=False)
            preload = read_file(path / contract.PRELOAD_FILE, _MOST).decode("utf-8")
        except vcuda.errors.BusyError:
            return None  # a process that blocks reading has it in use
        except (OSError, UnicodeDecodeError, vcuda.VcudaError) as error:
            return str(error)
        wanted = bytes.fromhex(allocation.id)
        if page.allocation_id != wanted or ledger.allocation_id != wanted:
            return "limits page or ledger belong to another allocation"
        if {gpu.uuid for gpu in page.gpus} != set(allocation.quota()):
            return "the limits page names other GPUs"
        return None if preload == _preload_line(allocation.library) else "the preload line is damaged"

    def rebuild(self, allocation: Allocation) -> None:
        """Replaces a damaged directory by a new one. Only for an allocation that no process is attached to."""
        self.remove(allocation.id)
        self.create(allocation)

    def mend_ledger(self, allocation: Allocation) -> bool:
        """Makes a ledger anew that is gone from behind its link, as after a reboot; whether it was. Raises
        StorageError.
        """
        path = self.path(allocation.id)
        try:
            return self.ledger_files.mend(path, bytes.fromhex(allocation.id), _limits(allocation))
        except (OSError, vcuda.VcudaError) as error:
            raise _storage_error("mend the ledger of", path, error) from error

    def remove(self, allocation_id: str) -> None:
        """Ends a directory; one that is not there is as good as removed. Its files go with the next `tidy`."""
        path = self.path(allocation_id)
        ledger = ledger_path(path)
        ended = self._root / f"{_OLD}{next(self._number)}-{allocation_id}"
        self.ledgers.release(allocation_id)
        try:
            path.rename(ended)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _storage_error("remove", path, error) from error
        self._ended.append(ended)
        if ledger.parent != path:
            with contextlib.suppress(OSError):  # else the next start does it
                ledger.unlink()

    def tidy(self) -> None:
        """Removes the files of what has ended. Blocks; may run in another thread, one at a time.

        Raises StorageError for what could not be removed: the next start does it.
        """
        failure: OSError | None = None
        while self._ended:
            ended = self._ended.popleft()
            self.ledger_files.abandon(ended)
            try:
                _clear_away(ended)
            except OSError as error:
                failure = error if ended.exists() else failure
        if failure is not None:
            raise _storage_error("remove files below", self._root, failure) from failure

    def probe(self) -> None:
        """Finds out whether a directory can be made: makes one and removes it. Blocks; may run in another thread.

        Raises StorageError.
        """
        trial = self._root / (_NEW + "probe")
        try:
            shutil.rmtree(trial, ignore_errors=True)
            self._furnish(trial, "")
        except (OSError, vcuda.VcudaError) as error:
            raise _storage_error("create", trial, error) from error
        finally:
            shutil.rmtree(trial, ignore_errors=True)
            self.ledger_files.abandon(trial)

    def make_ahead(self, library: str) -> None:
        """Makes some directories for allocations with LIBRARY, where they are used up. Blocks; may run in another
        thread.
        """
        while len(self._spares) < _SPARES:
            spare = self._root / f"{_SPARE}{next(self._number)}"
            try:
                self._furnish(spare, library)
            except (OSError, vcuda.VcudaError):  # a full disk: `create` will say so
                shutil.rmtree(spare, ignore_errors=True)
                self.ledger_files.abandon(spare)
                break
            self._spares.append((spare, library))

    def read_all(self) -> dict[str, Allocation | None]:
        """The allocation that each directory says it is of, with its container; None where that cannot be read."""
        try:
            names = sorted(path.name for path in self._root.iterdir() if not path.name.startswith("."))
        except OSError as error:
            raise _storage_error("read", self._root, error) from error
        return {name: self._read(name) for name in names}

    def write_owner(self, allocation_id: str, container: ContainerRef) -> None:
        """Notes whose allocation it is, beside the files of the container."""
        target = self.path(allocation_id) / contract.OWNER_FILE
        fresh = target.with_name(_OWNER_NEW)
        try:
            fresh.unlink(missing_ok=True)
            _write(fresh, _owner_document(container), 0o600)
            fresh.replace(target)
        except OSError as error:
            raise _storage_error("write", target, error) from error

    def write_allocation(self, allocation: Allocation) -> None:
        """Exchanges the record of an allocation in its directory for its present state."""
        target = self.path(allocation.id) / _ALLOCATION_FILE
        fresh = target.with_name(target.name + ".new")
        try:
            fresh.unlink(missing_ok=True)  # of an agent that was killed
            _write(fresh, self._codec.encode_allocation(allocation), 0o600)
            fresh.replace(target)
        except OSError as error:
            raise _storage_error("write", target, error) from error

    def set_limits(self, allocation_id: str, wanted: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
        """Makes the limits page say WANTED (bytes and per cent of compute, by GPU); the GPUs that said otherwise.

        Each number is one atomic store, seen by running processes at their next call. Raises vcuda.VcudaError.
        """
        page = self.path(allocation_id) / contract.LIMITS_FILE
        changed = []
        for gpu in vcuda.read_limits(page).gpus:
            memory, cores = wanted.get(gpu.uuid, (gpu.memory_bytes, gpu.cores_percent))
            if memory != gpu.memory_bytes:
                self.recent.note(allocation_id, gpu.uuid, gpu.memory_bytes)
                vcuda.set_memory_limit(page, gpu.uuid, memory)
            if cores != gpu.cores_percent:
                vcuda.set_cores_limit(page, gpu.uuid, cores)
            if (memory, cores) != (gpu.memory_bytes, gpu.cores_percent):
                changed.append(gpu.uuid)
        return tuple(changed)

    def set_physical(self, allocation_id: str, wanted: Mapping[str, int]) -> None:
        """Makes the limits page say how much of each GPU of WANTED may be the GPU's own memory."""
        page = self.path(allocation_id) / contract.LIMITS_FILE
        for gpu in vcuda.read_limits(page).gpus:
            physical = wanted.get(gpu.uuid)
            if physical is not None and gpu.physical_bytes and physical != gpu.physical_bytes:
                vcuda.set_physical_limit(page, gpu.uuid, physical)

    def _furnish(self, path: Path, library: str) -> None:
        """Makes a directory with all of its files: the preload line, the others empty, with the room they need."""
        path.mkdir(mode=0o700)
        vcuda.reserve_limits(path / contract.LIMITS_FILE, contract.LIMITS_MODE)
        self.ledger_files.reserve(path)
        _write(path / contract.PRELOAD_FILE, _preload_line(library).encode(), contract.PRELOAD_MODE)
        _write(path / _ALLOCATION_FILE, b"", 0o600)
        _write(path / _OWNER_NEW, b"", 0o600)

    def _fill(self, path: Path, allocation: Allocation) -> None:
        identity = bytes.fromhex(allocation.id)
        gpus = _limits(allocation)
        vcuda.fill_limits(f"{path}/{contract.LIMITS_FILE}", identity, gpus)
        self.ledger_files.fill(path, identity, gpus)
        _write(f"{path}/{_ALLOCATION_FILE}", self._codec.encode_allocation(allocation))
        if allocation.consumers:
            _write(f"{path}/{_OWNER_NEW}", _owner_document(allocation.consumers[0].ref))
            os.rename(f"{path}/{_OWNER_NEW}", f"{path}/{contract.OWNER_FILE}")  # noqa: PTH104

    def _spare(self, library: str) -> Path | None:
        """A furnished directory made ahead, if there is one."""
        while self._spares:
            spare, made_for = self._spares.popleft()
            if made_for == library and os.path.exists(f"{spare}/{contract.PRELOAD_FILE}"):  # noqa: PTH110
                return spare
            self._ended.append(spare)
        return None

    def _read(self, name: str) -> Allocation | None:
        path = self._root / name
        try:
            allocation = self._codec.decode_allocation(read_file(path / _ALLOCATION_FILE, _MOST))
        except (OSError, CheckpointError, CheckpointVersionError):
            return None
        if allocation.id != name:
            return None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            owner = read_json(read_file(path / contract.OWNER_FILE, _MOST))
            ref = ContainerRef(owner["namespace"], owner["pod"], owner["container"])
            return self._codec.with_owner(allocation, ref)
        return allocation


def _limits(allocation: Allocation) -> list[vcuda.GpuLimit]:
    return [
        vcuda.GpuLimit(
            gpu,
            memory,
            allocation.cores_of(gpu),
            physical_bytes=allocation.physical.get(gpu, 0),
            compute_policy=allocation.compute,
        )
        for gpu, memory in allocation.quota().items()
    ]


def _write(path: Path | str, data: bytes, mode: int | None = None) -> None:
    """A new file with exactly the permissions MODE, whatever the umask; without MODE one that is there and empty."""
    fd = open_file(path, os.O_WRONLY | (0 if mode is None else os.O_CREAT | os.O_EXCL))
    try:
        if mode is not None:
            os.fchmod(fd, mode)
        view = memoryview(data)
        while view:  # a disk that becomes full takes a part, and says so at the next attempt
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def _clear_away(path: Path) -> None:
    """Removes a directory with all that is in it, or what stands in its place: rmtree would open a FIFO."""
    if stat.S_ISDIR(path.lstat().st_mode):
        shutil.rmtree(path)
    else:
        path.unlink()


def _owner_document(container: ContainerRef) -> bytes:
    document = {"namespace": container.namespace, "pod": container.pod, "container": container.container}
    return json.dumps(document).encode("ascii")


def _preload_line(library: str) -> str:
    return f"{contract.CONTAINER_LIBRARY_DIR}/{library}\n"


def _storage_error(verb: str, path: Path, error: Exception) -> StorageError:
    if isinstance(error, OSError):
        return StorageError(f"cannot {verb} {path}: {error.strerror}; {remedy(error)}")
    return StorageError(
        f"cannot {verb} {path}: {error}; make room and check the permissions of the state directory"
    )
