# SPDX-License-Identifier: Apache-2.0
"""Where the ledgers of new allocations lie: beside their other files, or where their locks last.

A slot's owner is told from the dead by a lock that a mapping keeps (docs/adr/0057). On overlayfs it does not, so a
container that is killed and restarted with a PID namespace of its own stays charged. There a ledger lies on a tmpfs:

    <state directory>/allocations/<id>/ledger   a link to
    <ledger directory>/<state directory>/<id>   the ledger

The mount that the kubelet keeps names the link, so it is the same wherever the ledger lies, and whoever opens the link
has the ledger. What a reboot takes is made anew behind the link. An allocation keeps the place that it was given.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import vcuda
from vcuda import contract

__all__ = ["LedgerFiles", "ledger_path", "tried"]

_NEW = ".new-"
_TRIAL = _NEW + "trial"


class LedgerFiles:
    """The ledgers of the directories below ROOT; ELSEWHERE: where they may lie instead, None for nowhere."""

    def __init__(self, root: Path, elsewhere: Path | None) -> None:
        self.unsafe = ""
        """Why a lock may be lost in every place there is; empty where it lasts."""
        self._root = root
        self._elsewhere = None if elsewhere is None else elsewhere / root.parent.relative_to("/")
        self._place: Path | None = None  # of new ledgers; None: their directories

    @property
    def place(self) -> Path | None:
        """The directory of new ledgers; None where they lie in the directories of their allocations."""
        return self._place

    def prepare(self) -> None:
        """Chooses the place by trial, and clears away what a killed agent left.

        A full disk cannot be tried: then ledgers lie where they usually do.
        """
        self._place, reason, other = None, "", ""
        with contextlib.suppress(OSError):
            reason = tried(self._root)
        self.unsafe = f"{self._root}: {reason}" if reason else ""
        if self._elsewhere is None:
            return
        if reason:
            try:
                self._elsewhere.mkdir(mode=0o700, parents=True, exist_ok=True)
                other = tried(self._elsewhere)
            except OSError as error:
                other = error.strerror or str(error)
            if other:
                self.unsafe += f"; {self._elsewhere}: {other}"
            else:
                self._place, self.unsafe = self._elsewhere, ""
        self._sweep(self._elsewhere)

    def reserve(self, directory: Path) -> None:
        """Makes the empty file of a ledger for DIRECTORY, which is being made. Raises OSError or VcudaError."""
        if self._place is None:
            vcuda.reserve_ledger(directory / contract.LEDGER_FILE, contract.LEDGER_MODE)
            return
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self._place / directory.name
        target.unlink(missing_ok=True)
        vcuda.reserve_ledger(target, contract.LEDGER_MODE)

    def fill(self, directory: Path, identity: bytes, gpus: Sequence[vcuda.GpuLimit]) -> None:
        """Writes the reserved ledger of DIRECTORY. Raises OSError or VcudaError."""
        if self._place is None:
            vcuda.fill_ledger(f"{directory}/{contract.LEDGER_FILE}", identity, gpus)
            return
        target = self._place / identity.hex()
        vcuda.fill_ledger(self._place / directory.name, identity, gpus)
        (self._place / directory.name).rename(target)
        (directory / contract.LEDGER_FILE).symlink_to(target)

    def mend(self, directory: Path, identity: bytes, gpus: Sequence[vcuda.GpuLimit]) -> bool:
        """Makes the ledger behind the link of DIRECTORY anew where it is gone, as after a reboot; whether it was.

        Raises OSError or VcudaError.
        """
        target = ledger_path(directory)
        if target.parent == directory or target.exists():
            return False
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        vcuda.create_ledger(target, identity, gpus, contract.LEDGER_MODE)
        return True

    def abandon(self, directory: Path) -> None:
        """Removes what was reserved for DIRECTORY, which will not be an allocation's."""
        if self._place is not None:
            with contextlib.suppress(OSError):
                (self._place / directory.name).unlink()

    def _sweep(self, place: Path) -> None:
        """Removes the ledgers in PLACE whose directories are gone."""
        for path in place.iterdir() if place.is_dir() else ():
            if path.name.startswith(_NEW) or not (self._root / path.name).is_dir():
                with contextlib.suppress(OSError):  # a directory of another agent's
                    path.unlink()


def ledger_path(directory: Path) -> Path:
    """Where the ledger of an allocation's directory lies: behind the agent's own link, or where any other file is.

    A link that something else has planted is not followed.
    """
    path = directory / contract.LEDGER_FILE
    with contextlib.suppress(OSError):
        target = Path(os.readlink(path))  # noqa: PTH115  (as it was written)
        if target.is_absolute() and target.name == directory.name:
            return target
    return path


def tried(directory: Path) -> str:
    """Why a lock may be lost in DIRECTORY; empty where it lasts. Raises OSError where it cannot be tried."""
    trial = directory / _TRIAL
    try:
        trial.unlink(missing_ok=True)
        trial.touch(mode=0o600)
        lasts = vcuda.locks_last(trial)
    except vcuda.VcudaError as error:
        return error.cause
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()
    return "" if lasts else "its file system does not keep a lock that a mapping holds"
