# SPDX-License-Identifier: Apache-2.0
"""What an early volume needs to be finished after the service was killed: its request, and its credentials.

The kubelet sends the credentials of a volume once. A volume that was published before its data had arrived is not sent
again, so a service that is started anew would have nothing to read the source with. Until the data are there they are
kept in memory outside of the process: on a tmpfs, for root alone, and never anywhere else. A reboot empties it, and
then the kubelet publishes every volume again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gigaslice.core.kube.json_text import read_json
from gigaslice.roles.dataset_node.mounts import MountEntry
from gigaslice.roles.dataset_node.store import Volume
from gigaslice.runtime.files import read_file, replace_file
from gigaslice.runtime.logs import get_logger

__all__ = ["EarlyRequest", "EarlyRequests", "in_memory"]

_MOST_BYTES = 4 << 20
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class EarlyRequest:
    """One early volume. attributes: as the kubelet sent them."""

    volume: Volume
    attributes: Mapping[str, str]
    credentials: Mapping[str, str]

    def __repr__(self) -> str:
        return f"KeptVolume({self.volume!r})"


def in_memory(path: Path, table: Sequence[MountEntry]) -> bool:
    """Whether what is written to PATH stays in memory, by the mount table."""
    text, best, filesystem = os.path.realpath(path), -1, ""
    for mount in table:
        point = mount.point.rstrip("/")
        if (text == mount.point or text.startswith(f"{point}/")) and len(point) >= best:
            best, filesystem = len(point), mount.filesystem
    return filesystem in ("tmpfs", "ramfs")


class EarlyRequests:
    """The files of DIRECTORY, which must be in memory. Blocking."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = get_logger("dataset")

    def keep(self, request: EarlyRequest) -> None:
        """Writes the request of a volume, in place of an earlier one. Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path(request.volume.id), json.dumps(asdict(request)).encode(), mode=0o600)

    def forget(self, volume_id: str) -> None:
        """Removes the request of a volume, where there is one."""
        with contextlib.suppress(OSError):
            self._path(volume_id).unlink()

    def requests(self) -> list[EarlyRequest]:
        """All that are there after a start."""
        requests = []
        try:
            paths = sorted(self._directory.glob(f"*{_SUFFIX}"))
        except OSError:
            return []
        for path in paths:
            try:
                document = read_json(read_file(path, _MOST_BYTES))
                requests.append(
                    EarlyRequest(
                        Volume(**document["volume"]), document["attributes"], document["credentials"]
                    )
                )
            except (OSError, ValueError, KeyError, TypeError):
                self._log.warning("a request that was kept cannot be used", path=str(path))
                with contextlib.suppress(OSError):
                    path.unlink()
        return requests

    def _path(self, volume_id: str) -> Path:
        return self._directory / f"{volume_id}{_SUFFIX}"
