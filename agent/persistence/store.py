# SPDX-License-Identifier: Apache-2.0
"""The state directory as a whole: the allocation table in memory, the checkpoint and the directories behind it.

The only writer of them, called from one thread (`sync`, `tidy`, `make_ahead` excepted). A change goes to disk before it
becomes the allocation table that others see, so an answer given from the allocation table is one that a killed agent's
successor finds again.

    <state directory>/lock              held while an agent runs
    <state directory>/checkpoint.json   the allocation table; checkpoint.json.previous the one before
    <state directory>/allocations/<id>/ see `allocdir`
    <state directory>/lib/              libraries under versioned names, mounted into containers
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec

import vcuda
from agent.ledgers import usage
from agent.ledgers.trust import believed, ceiling
from agent.persistence.checkpoint import CheckpointFile
from agent.persistence.codec import Codec
from agent.persistence.directories import AllocationDirs
from agent.persistence.lock import LockFile
from agent.persistence.recovery import recover
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.errors import MissingError, StorageError
from gigaslice.runtime.files import is_directory, remedy
from gigaslice.runtime.logs import get_logger

__all__ = ["Store", "read_only"]

_P = ParamSpec("_P")

CHECKPOINT, ALLOCATIONS, LIBRARIES, LOCK = "checkpoint.json", "allocations", "lib", "lock"


class Store:
    """State below STATE_DIR; SOURCE is the library to hand out, this installation's own if None.

    CODEC has the records of the origins that allocations here may have. GPU_BYTES gives the sizes of the GPUs, with the
    host memory that was lent to them. LEDGER_DIR: where ledgers lie whose locks would not last in STATE_DIR, None for
    nowhere else.
    """

    def __init__(
        self,
        state_dir: Path,
        source: Path | None = None,
        *,
        codec: Codec,
        gpu_bytes: Callable[[], Mapping[str, int]] = dict,
        ledger_dir: Path | None = None,
    ) -> None:
        self.state_dir = state_dir
        self.dirs = AllocationDirs(state_dir / ALLOCATIONS, codec, ledger_dir)
        self.library = ""
        self.without_library: Mapping[
            str, Mapping[str, int]
        ] = {}  # by allocation and GPU: see `Reading.without_library`
        self.measured: Mapping[str, Mapping[str, int]] = {}
        """Bytes that NVML showed of all processes of an allocation in the last round, by allocation and GPU; empty
        before.
        """
        self.listed: Mapping[str, Mapping[str, int]] = {}  # how many processes that were, likewise
        self.read_last: Mapping[
            str, usage.Reading
        ] = {}  # by allocation: what the last round has read, unbounded
        self.disowned: Mapping[str, frozenset[int]] = {}
        """Processes that hold a slot of an allocation's ledger and run in another container, by allocation."""
        self.pods_seen: Mapping[str, frozenset[str]] = {}
        """UIDs of the pods that processes of an allocation were seen in, in the last round, by allocation."""
        self.watchers: list[Callable[[], None]] = []
        """Called after every change of the allocation table."""
        self._told_of_failures: list[Callable[[str], None]] = []
        """Called with what was wrong after a change could not be written."""
        self._source = source
        self._gpu_bytes = gpu_bytes
        self._lock = LockFile(state_dir / LOCK, f"the state directory {state_dir}")
        self._codec = codec
        self._checkpoint = CheckpointFile(state_dir / CHECKPOINT, codec)
        self._table = AllocationTable()
        self._log = get_logger("state")

    @property
    def table(self) -> AllocationTable:
        """The allocation table: as it is on disk, but for what `remember` has been told since."""
        return self._table

    @property
    def library_dir(self) -> Path:
        """The directory that containers see as their library directory."""
        return self.state_dir / LIBRARIES

    def open(self) -> None:
        """Takes the lock, installs the library, and brings checkpoint and directories into agreement.

        Raises MissingError, LockedError, StorageError, CheckpointVersionError, or a vcuda error for the library.
        """
        try:
            self.state_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        except PermissionError as error:
            raise MissingError(
                f"no permission to create the state directory {self.state_dir}; run as root, or choose another with "
                "--state-dir"
            ) from error
        except OSError as error:
            raise StorageError(
                f"cannot create the state directory {self.state_dir}: {error.strerror}; {remedy(error)}, or choose "
                "another with --state-dir"
            ) from error
        self._lock.acquire()
        for left in self.library_dir.glob(".libvcuda-*"):  # by an agent that was killed while it copied
            with contextlib.suppress(
                OSError
            ):  # on a disk that is read-only an agent says so below, or starts
                left.unlink()
        self.library = vcuda.install_library(self.library_dir, self._source).name
        with contextlib.suppress(OSError):  # an earlier agent may have been started with another umask
            self.library_dir.chmod(0o755)  # programs of any user read it in their containers
        self.dirs.prepare()
        ledgers = self.dirs.ledger_files
        if ledgers.unsafe:
            self._log.warning("ledgers may count too much", detail=ledgers.unsafe)
        elif ledgers.place is not None:
            self._log.info("new ledgers lie elsewhere", path=str(ledgers.place))
        self._load()

    def watch_failures(self, told: Callable[[str], None]) -> None:
        """Has TOLD called with the reason whenever an allocation cannot be written."""
        self._told_of_failures.append(told)

    def close(self) -> None:
        """Releases the lock. Running containers are not affected."""
        self.dirs.ledgers.close()
        self._lock.release()

    def commit(self, table: AllocationTable, fresh: Sequence[Allocation]) -> None:
        """Makes the directories of FRESH allocations and then records TABLE. Raises StorageError, and then
        changes nothing.
        """
        with_directory: list[Allocation] = []
        try:
            for allocation in fresh:
                with self._telling():
                    self.dirs.create(allocation)
                with_directory.append(allocation)
            self.update(table)
        except StorageError:
            for allocation in with_directory:
                self._copy("directory", self.dirs.remove, allocation.id)
            raise

    def update(self, table: AllocationTable) -> None:
        """Records TABLE if it differs. Raises StorageError."""
        if table != self._table:
            with self._telling():
                self._checkpoint.save(table)
            self._set(table)

    def remember(self, table: AllocationTable) -> None:
        """Takes over TABLE without writing it, for what the kubelet will list again; the next change writes it."""
        self._set(table)

    def resize(self, allocation: Allocation) -> None:
        """Records an allocation whose limits were changed, in the allocation table and then in its directory. Raises
        StorageError.
        """
        self.update(self._table.replaced([allocation]))
        self._copy("allocation", self.dirs.write_allocation, allocation)

    def probe(self) -> None:
        """Finds out whether another allocation could be written. Blocks; may run in another thread.

        Raises StorageError.
        """
        self._checkpoint.probe()
        self.dirs.probe()

    def sync(self) -> None:
        """Returns when the allocation table is on the disk, safe from a power failure. May run in another thread."""
        self._checkpoint.sync()

    def tidy(self) -> None:
        """Prepares what comes next and removes the files of what has ended. Blocks; may run in another thread."""
        self.make_ahead()
        try:
            self._checkpoint.tidy()
        except OSError as error:
            self._log.warning("old checkpoint not removed", detail=error.strerror)
        self._copy("directory", self.dirs.tidy)

    def make_ahead(self) -> None:
        """Makes the files that the next allocations need. Blocks; may run in another thread."""
        self._checkpoint.make_ahead()
        self.dirs.make_ahead(self.library)

    def release(self, table: AllocationTable, released: Sequence[Allocation]) -> None:
        """Records TABLE, which has the released allocations no more, and then removes their directories. Raises
        StorageError, and then changes nothing.
        """
        self.update(table)
        for allocation in released:
            self._log.info("released", allocation=allocation.id, container=allocation.name)
            self._copy("directory", self.dirs.remove, allocation.id)

    def write_owner(self, allocation: Allocation) -> None:
        """Notes in the directory of an allocation whose it is."""
        for consumer in allocation.consumers[:1]:
            self._copy("owner", self.dirs.write_owner, allocation.id, consumer.ref)

    def recreate(self, allocation: Allocation) -> None:
        """Makes a directory that is missing altogether, or a ledger that a reboot has taken. A damaged one may be
        mounted: it waits for `ensure`.
        """
        if not self.dirs.path(allocation.id).exists():
            self.dirs.rebuild(allocation)
            self._log.warning(
                "allocation directory recreated", allocation=allocation.id, container=allocation.name
            )
            return
        try:
            if self.dirs.mend_ledger(allocation):
                self._log.info("ledger recreated", allocation=allocation.id, container=allocation.name)
        except StorageError as error:
            self._log.warning("ledger not recreated", allocation=allocation.id, detail=str(error))

    def ensure(self, allocation: Allocation) -> None:
        """Makes sure that the allocation's container can start: rebuilds what a power failure or a person has damaged.

        Only for a container that is not running. Raises StorageError, also for a damaged one that processes still use.
        """
        if not (self.library_dir / allocation.library).is_file():  # the loader would go on without it
            self._log.error("library missing; replaced", allocation=allocation.id, detail=allocation.library)
            allocation = replace(allocation, library=self.library)
            self.update(self._table.replaced([allocation]))
        problem = self.dirs.problem(allocation)
        if problem is None:
            return
        if usage.read(self.dirs.path(allocation.id)).alive:
            # Started with a part of its files missing, a container runs without limits.
            raise StorageError(
                f"{self.dirs.path(allocation.id)} is damaged while processes use it: {problem}; it is mended when they "
                "have ended"
            )
        self.dirs.rebuild(allocation)
        self._log.warning(
            "allocation rebuilt", allocation=allocation.id, container=allocation.name, detail=problem
        )

    def restore(self, allocation: Allocation, table: AllocationTable, instead_of: Sequence[str] = ()) -> None:
        """Makes the directory of ALLOCATION anew and records TABLE, which has it. INSTEAD_OF: ids of allocations that
        TABLE has no more. Raises StorageError.
        """
        self.dirs.rebuild(allocation)
        self.update(table)
        for allocation_id in instead_of:
            self._copy("directory", self.dirs.remove, allocation_id)

    def remake(self, allocation: Allocation) -> None:
        """Puts ALLOCATION in the place of the one with its id, and makes its files say the same. Raises StorageError.

        Only for a container that has not started yet: its files are made anew where they change.
        """
        before = self._table.find(allocation.id)
        self.update(self._table.replaced([allocation]))
        if before is None or _page(before) != _page(allocation):
            self.dirs.rebuild(allocation)

    def readings(self) -> dict[str, usage.Reading]:
        """Every allocation's ledger, read now."""
        return {allocation.id: self.reading(allocation.id) for allocation in self._table.allocations}

    def reading(self, allocation_id: str) -> usage.Reading:
        """One allocation's ledger, read now, as far as it counts. An empty one for an allocation that is not in the
        allocation table.
        """
        allocation = self._table.find(allocation_id)
        if allocation is None:
            return usage.Reading({}, {}, problem="the allocation has ended")
        reading = self._read_now(allocation_id)
        without_library = self.without_library.get(allocation_id)
        return self.believe(
            allocation, replace(reading, without_library=without_library) if without_library else reading
        )

    def _read_now(self, allocation_id: str) -> usage.Reading:
        """What the ledger says now, or said in the last round where its container makes a read wait."""
        try:
            return usage.read(self.dirs.path(allocation_id), wait=False)
        except vcuda.errors.BusyError as error:
            return self.read_last.get(allocation_id) or usage.unreadable(
                self.dirs.path(allocation_id), str(error)
            )

    def believe(self, allocation: Allocation, reading: usage.Reading) -> usage.Reading:
        """READING of ALLOCATION's ledger as far as it counts after the last measuring round: see `trust`."""
        measured = self.measured.get(allocation.id)
        most = ceiling(
            allocation, reading.limits, measured, self.dirs.recent.of(allocation.id), self._gpu_bytes()
        )
        return believed(
            reading,
            most,
            measured,
            disowned=self.disowned.get(allocation.id, frozenset()),
            listed=self.listed.get(allocation.id, {}),
            ended=allocation.ended,
        )

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Reports a write that fails."""
        try:
            yield
        except StorageError as error:
            for told in self._told_of_failures:
                told(str(error))
            raise

    def _set(self, table: AllocationTable) -> None:
        changed = table is not self._table
        self._table = table
        for watcher in self.watchers if changed else ():
            watcher()

    def _load(self) -> None:
        loaded = self._checkpoint.load()
        for note in loaded.notes:
            self._log.error("checkpoint damaged", detail=note)
        directories = self.dirs.read_all()
        recovery = recover(self._codec, loaded.table or AllocationTable(), directories)
        table = recovery.table
        for allocation in recovery.adopted:
            self._log.warning(
                "allocation recovered from its directory",
                allocation=allocation.id,
                container=allocation.name,
            )
        for name in recovery.strays:
            self._log.warning("unknown directory left alone", path=str(self.dirs.path(name)))
        if table != loaded.table:
            self._checkpoint.save(table)  # else nothing is written: an agent starts on a full disk, too
        self._table = table
        for allocation in table.allocations:
            self.recreate(allocation)
            if not self.dirs.ledgers.held(allocation.id):
                self.dirs.hold(allocation.id)
            record = directories.get(allocation.id)
            if record is not None and record.resizes != allocation.resizes:
                self._copy("allocation", self.dirs.write_allocation, allocation)
        self._log.info("state loaded", path=str(self.state_dir), occupants=len(table.allocations))

    def _copy(self, what: str, write: Callable[_P, None], *arguments: _P.args, **more: _P.kwargs) -> None:
        """Brings a directory into line with the allocation table, which counts: where that fails, the next start does
        it.
        """
        try:
            write(*arguments, **more)
        except StorageError as error:
            self._log.warning(
                "allocation directory lags behind the allocation table", what=what, detail=str(error)
            )


def _page(allocation: Allocation) -> tuple[object, ...]:
    """What its limits page says."""
    cores = {gpu: allocation.cores_of(gpu) for gpu in allocation.quota()}
    return allocation.quota(), cores, allocation.compute, allocation.physical


def read_only(
    state_dir: Path, codec: Codec, gpu_slices: Mapping[str, int] | None = None
) -> tuple[AllocationTable, dict[str, usage.Reading]]:
    """The allocation table and the ledgers of a state directory, without a lock and without changing anything.

    GPU_SLICES: how many each GPU has, as far as that is known. Memory is not measured here, and where limits change, a
    ledger counts up to the whole GPU. An allocation that ends meanwhile is left out.

    Raises StorageError where there is no such directory, CheckpointError where the checkpoint cannot be used.
    """
    if not is_directory(state_dir / ALLOCATIONS):
        raise StorageError(
            f"{state_dir} is no state directory of gigaslice; name the one of the agent with --state-dir"
        )
    checkpoint = CheckpointFile(state_dir / CHECKPOINT, codec)
    table = checkpoint.peek()
    dirs = AllocationDirs(state_dir / ALLOCATIONS, codec)
    readings = {
        allocation.id: _read_outside(dirs, allocation, gpu_slices or {}) for allocation in table.allocations
    }
    gone = [
        allocation.id
        for allocation in table.allocations
        if readings[allocation.id].problem and not dirs.path(allocation.id).is_dir()
    ]
    if gone:
        left = checkpoint.peek()
        table = table.without(allocation_id for allocation_id in gone if left.find(allocation_id) is None)
    return table, readings


def _read_outside(
    dirs: AllocationDirs, allocation: Allocation, gpu_slices: Mapping[str, int]
) -> usage.Reading:
    reading = usage.read(dirs.path(allocation.id))
    gpu_bytes = {hold.gpu: gpu_slices.get(hold.gpu, 0) * hold.slice_bytes for hold in allocation.holds}
    return believed(reading, ceiling(allocation, reading.limits, None, {}, gpu_bytes), None)
