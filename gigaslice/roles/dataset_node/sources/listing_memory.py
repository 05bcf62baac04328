# SPDX-License-Identifier: Apache-2.0
"""How much memory listings take on a node, all together.

What a source lists is up to its owner, and may have no end. So every listing has an account, which grows with it,
and all accounts come out of one store of bytes, which follows from the memory that the service may use. A listing that
finds too little left is tried again later; one that alone needs more than there is is refused. A small one always has
its place, so that large ones of others delay it by nothing.

The figures are estimates, from above, of what entries take while a listing is made and while it is kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.dataset.errors import ListingError, SourceError
from gigaslice.core.dataset.listing import Limits
from gigaslice.core.units import format_bytes

__all__ = ["AccountedLimits", "ListingAccount", "ListingMemory"]

_ENTRY, _TEXT = 300, 2  # bytes for an entry, and for each byte of its texts, while a listing is made
_KEPT = 0.8  # of that, afterwards
_FREE = 4 << 20  # bytes that every listing has besides
_USUAL, _LEAST = 1 << 30, 64 << 20
_SHARE = 0.5
_CGROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def _memory_limit(files: tuple[Path, ...] = _CGROUP) -> int | None:
    """What this process's container may use; None where there is no limit, or none that can be read."""
    for path in files:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() and int(text) < 1 << 50 else None
    return None


class ListingMemory:
    """The store of bytes.

    Args:
        most: Bytes; None: half of what the container may use.
    """

    def __init__(self, most: int | None = None) -> None:
        if most is None:
            limit = _memory_limit()
            most = _USUAL if limit is None else max(_LEAST, int(limit * _SHARE))
        self.most = most
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes that listings have."""
        with self._lock:
            return self._held

    def account(self) -> ListingAccount:
        """The account of one listing; its listing closes it."""
        return ListingAccount(self)

    def _change(self, before: int, after: int) -> bool:
        with self._lock:
            if after > before and self._held + after - before > self.most:
                return False
            self._held += after - before
            return True


class ListingAccount:
    """What one listing has of MEMORY. Several threads may grow it."""

    def __init__(self, memory: ListingMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._held = 0
        self._closed = False

    @property
    def limits(self) -> AccountedLimits:
        """To be given to `DataSource.list`."""
        return AccountedLimits(account=self)

    def grow(self, entries: int, text: int) -> None:
        """Has room for so much in all.

        Raises:
            ListingError: More than there is, whatever others have.
            SourceError: More than is left; it may be tried again.
        """
        wanted = max(0, entries * _ENTRY + text * _TEXT - _FREE)
        if wanted > self._memory.most:
            raise ListingError(
                f"more than {entries} entries, for which the service's memory on this node does not suffice "
                f"({format_bytes(self._memory.most)} for listings); split the dataset, or pack files together"
            )
        with self._lock:
            if wanted <= self._held or self._closed:
                return
            if not self._memory._change(self._held, wanted):
                raise SourceError(
                    "other datasets take the memory that the service has for listings on this node; it is tried again",
                    retry=True,
                )
            self._held = wanted

    def listed(self) -> None:
        """Gives back what only the making of the listing took."""
        self._set(int(self._held * _KEPT))

    def close(self) -> None:
        """Gives everything back: nothing has the listing any more."""
        self._closed = True
        self._set(0)

    def _set(self, size: int) -> None:
        with self._lock:
            self._memory._change(self._held, size)
            self._held = size


@dataclass(frozen=True, slots=True)
class AccountedLimits(Limits):
    """Limits of a listing whose memory comes out of an account."""

    account: ListingAccount | None = None

    def check(self, entries: int, text: int) -> None:
        """As `Limits.check`, and raises as `ListingAccount.grow`."""
        Limits.check(self, entries, text)
        if self.account is not None:
            self.account.grow(entries, text)
