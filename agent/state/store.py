"""The state directory as a whole: the book in memory, the checkpoint and the directories behind it.

The only writer of them, called from one thread (`sync`, `tidy`, `make_ahead` excepted). A change goes to disk before it
becomes the book that others see, so an answer given from the book is one that a killed agent's successor finds again.

    <state directory>/lock              held while an agent runs
    <state directory>/checkpoint.json   the book; checkpoint.json.previous the one before
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
from agent.errors import MissingError, StorageError
from agent.files import is_directory, remedy
from agent.state import ledgers
from agent.state.allocdir import AllocationDirs
from agent.state.checkpoint import CheckpointFile
from agent.state.lock import LockFile
from agent.state.reconcile import Answered, Review, recover
from agent.state.records import Book, Grant
from agent.state.trust import believed, ceiling
from agent.telemetry.logs import get_logger

__all__ = ["Store", "read_only"]

_P = ParamSpec("_P")

CHECKPOINT, ALLOCATIONS, LIBRARIES, LOCK = "checkpoint.json", "allocations", "lib", "lock"


class Store:
    """State below STATE_DIR; SOURCE is the library to hand out, this installation's own if None."""

    def __init__(self, state_dir: Path, source: Path | None = None) -> None:
        self.state_dir = state_dir
        self.dirs = AllocationDirs(state_dir / ALLOCATIONS)
        self.library = ""
        self.strangers: Mapping[str, Mapping[str, int]] = {}  # by grant and GPU: see `Reading.strangers`
        self.measured: Mapping[str, Mapping[str, int]] = {}
        """Bytes that NVML showed of all processes of a grant in the last round, by grant and GPU; empty before."""
        self.listed: Mapping[str, Mapping[str, int]] = {}  # how many processes that were, likewise
        self.read_last: Mapping[
            str, ledgers.Reading
        ] = {}  # by grant: what the last round has read, unbounded
        self.disowned: Mapping[str, frozenset[int]] = {}
        """Processes that hold a slot of a grant's ledger and run in another container, by grant."""
        self.gpu_bytes: Callable[[], Mapping[str, int]] = dict
        """Sizes of the GPUs, with the host memory that was lent to them."""
        self.watchers: list[Callable[[], None]] = []
        """Called after every change of the book."""
        self.failed: list[Callable[[str], None]] = []
        """Called with what was wrong after a change could not be written."""
        self._source = source
        self._lock = LockFile(state_dir / LOCK, f"the state directory {state_dir}")
        self._checkpoint = CheckpointFile(state_dir / CHECKPOINT)
        self._book = Book()
        self._log = get_logger("state")

    @property
    def book(self) -> Book:
        """The book: as it is on disk, but for what `remember` has been told since."""
        return self._book

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
        self._load()

    def close(self) -> None:
        """Gives the lock back. Nothing of running containers is touched."""
        self.dirs.ledgers.close()
        self._lock.release()

    def commit(self, book: Book, fresh: Sequence[Grant]) -> None:
        """Makes the directories of FRESH grants and then BOOK the book. Raises StorageError and changes nothing."""
        made: list[Grant] = []
        try:
            for grant in fresh:
                with self._telling():
                    self.dirs.create(grant)
                made.append(grant)
            self.update(book)
        except StorageError:
            for grant in made:
                self._copy("directory", self.dirs.remove, grant.id)
            raise

    def update(self, book: Book) -> None:
        """Makes BOOK the book if it differs. Raises StorageError."""
        if book != self._book:
            with self._telling():
                self._checkpoint.save(book)
            self._set(book)

    def remember(self, book: Book) -> None:
        """Makes BOOK the book without writing it, for what the kubelet will say again; the next change writes it."""
        self._set(book)

    def resize(self, grant: Grant) -> None:
        """Records a grant whose limits were changed, in the book and then in its directory. Raises StorageError."""
        self.update(self._book.replaced([grant]))
        self._copy("allocation", self.dirs.write_grant, grant)

    def probe(self) -> None:
        """Finds out whether another allocation could be written. Blocks; may run in another thread.

        Raises StorageError.
        """
        self._checkpoint.probe()
        self.dirs.probe()

    def sync(self) -> None:
        """Returns when the book is on the disk, safe from a power failure. May run in another thread."""
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

    def apply(self, review: Review) -> None:
        """Carries out a review: the book first, then owners' names, missing directories and removals."""
        self.update(review.book)
        for grant in review.learned:
            if grant.container:
                if not (grant.owner and grant.owner.ref == grant.container):  # else its file says so already
                    self._copy("owner", self.dirs.write_owner, grant.id, grant.container)
                self._log.info("container known", allocation=grant.id, container=str(grant.container))
        for grant in review.adopted:
            if grant.foreign:
                self._log.warning(
                    "container without a record counted by its device names",
                    container=grant.name,
                    allocation=grant.id,
                )
            else:
                self._log.warning(
                    "container without a record restored", container=grant.name, allocation=grant.id
                )
            self._recreate(grant)
        for grant in review.released:
            self._log.info("released", allocation=grant.id, container=grant.name)
            self._copy("directory", self.dirs.remove, grant.id)

    def ensure(self, grant: Grant) -> None:
        """Makes sure that the grant's container can start: rebuilds what a power failure or a person has damaged.

        Only for a container that is not running. Raises StorageError, also for a damaged one that processes still use.
        """
        if not (self.library_dir / grant.library).is_file():  # the loader would go on without it
            self._log.error("library is missing; replaced", allocation=grant.id, detail=grant.library)
            grant = replace(grant, library=self.library)
            self.update(self._book.replaced([grant]))
        problem = self.dirs.problem(grant)
        if problem is None:
            return
        if ledgers.read(self.dirs.path(grant.id)).alive:
            # Started with a part of its files missing, a container runs without limits.
            raise StorageError(
                f"{self.dirs.path(grant.id)} is damaged while processes use it: {problem}; it is mended when they "
                "have ended"
            )
        self.dirs.rebuild(grant)
        self._log.warning("allocation rebuilt", allocation=grant.id, container=grant.name, detail=problem)

    def restore(self, grant: Grant) -> None:
        """Takes up GRANT with its directory. What was made up for its container goes. Raises StorageError."""
        made_up = [one.id for one in self._book.grants if one.foreign and one.tokens == grant.tokens]
        grant = replace(grant, number=self._book.next_number)
        self.dirs.rebuild(grant)
        self.update(self._book.without(made_up).with_grant(grant))
        for one in made_up:
            self._copy("directory", self.dirs.remove, one)
        self._log.warning("container without a record restored", allocation=grant.id, container=grant.name)

    def remake(self, grant: Grant) -> None:
        """Puts GRANT in the place of the one with its id, and makes its files say the same. Raises StorageError.

        Only for a container that has not started yet: its files are made anew where they change.
        """
        known = self._book.find(grant.id)
        self.update(self._book.replaced([grant]))
        if known is None or _page(known) != _page(grant):
            self.dirs.rebuild(grant)

    def is_place_of(self, answer: Answered) -> bool:
        """Whether the mounts of an answer name the directory that its allocation has here, or none at all."""
        return answer.directory in ("", str(self.dirs.path(answer.allocation)))

    def readings(self) -> dict[str, ledgers.Reading]:
        """Every grant's ledger, read now."""
        return {grant.id: self.reading(grant.id) for grant in self._book.grants}

    def reading(self, grant_id: str) -> ledgers.Reading:
        """One grant's ledger, read now, as far as it counts. An empty one for a grant that is not in the book."""
        grant = self._book.find(grant_id)
        if grant is None:
            return ledgers.Reading({}, {}, problem="the allocation has ended")
        found = self._read_now(grant_id)
        strangers = self.strangers.get(grant_id)
        return self.believe(grant, replace(found, strangers=strangers) if strangers else found)

    def _read_now(self, grant_id: str) -> ledgers.Reading:
        """What the ledger says now, or said in the last round where its container lets nobody read without waiting."""
        try:
            return ledgers.read(self.dirs.path(grant_id), wait=False)
        except vcuda.errors.BusyError as error:
            return self.read_last.get(grant_id) or ledgers.unreadable(self.dirs.path(grant_id), str(error))

    def believe(self, grant: Grant, reading: ledgers.Reading) -> ledgers.Reading:
        """READING of GRANT's ledger as far as it counts after the last measuring round: see `trust`."""
        measured = self.measured.get(grant.id)
        most = ceiling(grant, reading.limits, measured, self.dirs.recent.of(grant.id), self.gpu_bytes())
        return believed(
            reading,
            most,
            measured,
            disowned=self.disowned.get(grant.id, frozenset()),
            listed=self.listed.get(grant.id, {}),
            ended=grant.gone,
        )

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Tells of a write that fails."""
        try:
            yield
        except StorageError as error:
            for told in self.failed:
                told(str(error))
            raise

    def _set(self, book: Book) -> None:
        changed = book is not self._book
        self._book = book
        for watcher in self.watchers if changed else ():
            watcher()

    def _load(self) -> None:
        loaded = self._checkpoint.load()
        for note in loaded.notes:
            self._log.error("checkpoint damaged", detail=note)
        directories = self.dirs.read_all()
        found = recover(loaded.book or Book(), directories)
        for grant in found.adopted:
            self._log.warning(
                "allocation taken over from its directory", allocation=grant.id, container=grant.name
            )
        for name in found.strays:
            self._log.warning(
                "directory is no allocation of this agent; left alone", path=str(self.dirs.path(name))
            )
        if found.book != loaded.book:
            self._checkpoint.save(found.book)  # else nothing is written: an agent starts on a full disk, too
        self._book = found.book
        for grant in found.book.grants:
            self._recreate(grant)
            if not self.dirs.ledgers.held(grant.id):
                self.dirs.hold(grant.id)
            known = directories.get(grant.id)
            if known is not None and known.resizes != grant.resizes:
                self._copy("allocation", self.dirs.write_grant, grant)
        self._log.info("state loaded", path=str(self.state_dir), allocations=len(found.book.grants))

    def _copy(self, what: str, write: Callable[_P, None], *arguments: _P.args, **more: _P.kwargs) -> None:
        """Brings a directory into line with the book, which counts: where that fails, the next start does it."""
        try:
            write(*arguments, **more)
        except StorageError as error:
            self._log.warning("allocation directory lags behind the book", what=what, detail=str(error))

    def _recreate(self, grant: Grant) -> None:
        """Makes a directory that is missing altogether. A damaged one may be mounted: it waits for `ensure`."""
        if not self.dirs.path(grant.id).exists():
            self.dirs.rebuild(grant)
            self._log.warning("allocation directory made again", allocation=grant.id, container=grant.name)


def _page(grant: Grant) -> tuple[object, ...]:
    """What its limits page says."""
    return grant.quota(), grant.policy.cores, grant.policy.compute, grant.physical


def read_only(
    state_dir: Path, gpu_slices: Mapping[str, int] | None = None
) -> tuple[Book, dict[str, ledgers.Reading]]:
    """The book and the ledgers of a state directory, without a lock and without changing anything.

    GPU_SLICES: how many each GPU has, as far as that is known: nobody has measured, and where limits change a ledger
    counts up to the whole GPU. An allocation that ends meanwhile is left out. Raises StorageError when there is no such
    directory, CheckpointError when the checkpoint cannot be used.
    """
    if not is_directory(state_dir / ALLOCATIONS):
        raise StorageError(
            f"{state_dir} is no state directory of gigaslice; name the one of the agent with --state-dir"
        )
    checkpoint = CheckpointFile(state_dir / CHECKPOINT)
    book = checkpoint.peek()
    dirs = AllocationDirs(state_dir / ALLOCATIONS)
    found = {grant.id: _read_outside(dirs, grant, gpu_slices or {}) for grant in book.grants}
    gone = [grant.id for grant in book.grants if found[grant.id].problem and not dirs.path(grant.id).is_dir()]
    if gone:
        left = checkpoint.peek()
        book = book.without(one for one in gone if left.find(one) is None)
    return book, found


def _read_outside(dirs: AllocationDirs, grant: Grant, gpu_slices: Mapping[str, int]) -> ledgers.Reading:
    reading = ledgers.read(dirs.path(grant.id))
    gpu_bytes = {hold.gpu: gpu_slices.get(hold.gpu, 0) * hold.slice_bytes for hold in grant.holds}
    return believed(reading, ceiling(grant, reading.limits, None, {}, gpu_bytes), None)
