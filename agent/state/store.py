"""The state directory as a whole: the book in memory, the checkpoint and the directories behind it.

The only writer of them, called from one thread (`sync`, `tidy`, `make_ahead` excepted). A change goes to disk before it
becomes the book that others see, so an answer given from the book is one that a killed agent's successor finds again.

    <state directory>/lock              held while an agent runs
    <state directory>/checkpoint.json   the book; checkpoint.json.previous the one before
    <state directory>/allocations/<id>/ see `allocdir`
    <state directory>/lib/              libraries under versioned names, mounted into containers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec

import vcuda
from agent.errors import MissingError, StorageError
from agent.state import ledgers
from agent.state.allocdir import AllocationDirs
from agent.state.checkpoint import CheckpointFile
from agent.state.lock import LockFile
from agent.state.reconcile import Review, recover
from agent.state.records import Book, Grant
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
        self.watchers: list[Callable[[], None]] = []
        """Called after every change of the book."""
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
                f"cannot create the state directory {self.state_dir}: {error.strerror}; choose another with --state-dir"
            ) from error
        self._lock.acquire()
        for left in self.library_dir.glob(".libvcuda-*"):  # by an agent that was killed while it copied
            left.unlink(missing_ok=True)
        self.library = vcuda.install_library(self.library_dir, self._source).name
        self.dirs.prepare()
        self._load()

    def close(self) -> None:
        """Gives the lock back. Nothing of running containers is touched."""
        self._lock.release()

    def commit(self, book: Book, fresh: Sequence[Grant]) -> None:
        """Makes the directories of FRESH grants and then BOOK the book. Raises StorageError and changes nothing."""
        made: list[Grant] = []
        try:
            for grant in fresh:
                self.dirs.create(grant)
                made.append(grant)
            self.update(book)
        except StorageError:
            for grant in made:
                self.dirs.remove(grant.id)
            raise

    def update(self, book: Book) -> None:
        """Makes BOOK the book if it differs. Raises StorageError."""
        if book != self._book:
            self._checkpoint.save(book)
            self._set(book)

    def remember(self, book: Book) -> None:
        """Makes BOOK the book without writing it, for what the kubelet will say again; the next change writes it."""
        self._set(book)

    def resize(self, grant: Grant) -> None:
        """Records a grant whose limits were changed, in the book and then in its directory. Raises StorageError."""
        self.update(self._book.replaced([grant]))
        self._copy("allocation", self.dirs.write_grant, grant)

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
            self._log.warning(
                "container without a record counted by its device names",
                container=grant.name,
                allocation=grant.id,
            )
            self._recreate(grant)
        for grant in review.released:
            self._log.info("released", allocation=grant.id, container=grant.name)
            self._copy("directory", self.dirs.remove, grant.id)

    def ensure(self, grant: Grant) -> None:
        """Makes sure that the grant's container can start: rebuilds what a power failure or a person has damaged.

        Only for a container that is not running; a directory with a living process is left alone. Raises StorageError.
        """
        problem = self.dirs.problem(grant)
        if problem is None:
            return
        if ledgers.read(self.dirs.path(grant.id)).alive:
            self._log.error(
                "allocation damaged while in use; left alone", allocation=grant.id, detail=problem
            )
            return
        self.dirs.rebuild(grant)
        self._log.warning("allocation rebuilt", allocation=grant.id, container=grant.name, detail=problem)

    def remake(self, grant: Grant) -> None:
        """Puts GRANT in the place of the one with its id, and makes its files say the same. Raises StorageError.

        Only for a container that has not started yet: its files are made anew where they change.
        """
        known = self._book.find(grant.id)
        self.update(self._book.replaced([grant]))
        if known is None or _page(known) != _page(grant):
            self.dirs.rebuild(grant)

    def readings(self) -> dict[str, ledgers.Reading]:
        """Every grant's ledger, read now."""
        return {grant.id: self.reading(grant.id) for grant in self._book.grants}

    def reading(self, grant_id: str) -> ledgers.Reading:
        """One grant's ledger, read now."""
        found = ledgers.read(self.dirs.path(grant_id))
        strangers = self.strangers.get(grant_id)
        return replace(found, strangers=strangers) if strangers else found

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


def read_only(state_dir: Path) -> tuple[Book, dict[str, ledgers.Reading]]:
    """The book and the ledgers of a state directory, without a lock and without changing anything.

    Raises StorageError when there is no such directory, CheckpointError when the checkpoint cannot be used.
    """
    if not (state_dir / ALLOCATIONS).is_dir():
        raise StorageError(
            f"{state_dir} is no state directory of gigaslice; name the one of the agent with --state-dir"
        )
    book = CheckpointFile(state_dir / CHECKPOINT).peek()
    dirs = AllocationDirs(state_dir / ALLOCATIONS)
    return book, {grant.id: ledgers.read(dirs.path(grant.id)) for grant in book.grants}
