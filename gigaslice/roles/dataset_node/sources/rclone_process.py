# SPDX-License-Identifier: Apache-2.0
"""Processes of rclone: without rights, with a remote in their environment and nothing else, gone when this one is.

Where this process is root, each source's run as a user of their own: processes of one user read each other's
environment, and with it the passwords. They get nothing of this process's environment.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from typing import IO

from gigaslice.core.dataset.errors import SourceError
from gigaslice.roles.dataset_node.sources.rclone_remote import REMOTE, RcloneRemote

__all__ = ["RcloneProcesses"]

_USERS, _MOST_USERS = (
    0x70000000,
    1 << 27,
)  # above every range that is given to people, containers and their namespaces
_users = itertools.count(secrets.randbelow(_MOST_USERS))
_PR_SET_PDEATHSIG = 1


class RcloneProcesses:
    """Starts rclone with a remote in its environment and nothing else.

    Args:
        program: Its path.
        remote: What it reads.
        proxy: The URL of what it connects through, with the pass in it; "": it connects by itself.

    Attributes:
        user: Whom it runs as, and the number of the group; None where this process is not root.
    """

    def __init__(self, program: str, remote: RcloneRemote, proxy: str = "") -> None:
        self._program = program
        self._proxy = proxy
        self._remote = remote
        self.place = f"{REMOTE}:{remote.path}"
        self.user = _USERS + next(_users) % _MOST_USERS if os.geteuid() == 0 else None
        self._errors: dict[int, IO[bytes]] = {}

    def environment(self) -> dict[str, str]:
        """Blocking: passwords are obscured by rclone itself."""
        through = {"RCLONE_HTTP_PROXY": self._proxy} if self._proxy else {}
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": "/nonexistent",
            "TZ": "UTC",
            "RCLONE_CONFIG": "",
            "RCLONE_RETRIES": "2",
            "RCLONE_CONTIMEOUT": "15s",
            "RCLONE_TIMEOUT": "60s",
            **through,
            **self._remote.environment(self._obscure, self._proxy),
        }

    def has_flag(self, flag: str) -> bool:
        """Whether this rclone has FLAG. Blocking."""
        try:
            done = subprocess.run(
                [self._program, "help", "flags"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20,
                check=False, env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "RCLONE_CONFIG": ""},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return False
        return flag.encode() in done.stdout.split()

    def _obscure(self, secret: str) -> str:
        done = subprocess.run(
            [self._program, "obscure", "-"], input=secret.encode(), capture_output=True, timeout=20, check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "RCLONE_CONFIG": ""},
        )  # fmt: skip
        if done.returncode:
            raise SourceError("rclone does not take the password; it may be too long")
        return done.stdout.decode().strip()

    def start(
        self, arguments: list[str], environment: Mapping[str, str], *, output: bool = False
    ) -> subprocess.Popen[bytes]:
        """Starts a command in this thread, with whose end the kernel ends it."""
        errors = tempfile.TemporaryFile()  # noqa: SIM115  (kept for `said`)
        try:
            process = subprocess.Popen(
                [self._program, *arguments],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if output else subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  (one call of libc, no lock)
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
            )
        except (OSError, subprocess.SubprocessError):
            errors.close()
            raise SourceError("rclone cannot be started; run it by hand on the node") from None
        self._errors[process.pid] = errors
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for a process that was killed. Blocking."""
        process.wait()
        self.error_output(process)

    def error_output(self, process: subprocess.Popen[bytes]) -> str:
        """The end of what it wrote to its standard error: to be judged, not to be shown."""
        errors = self._errors.pop(process.pid, None)
        if errors is None:
            return ""
        with errors:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4096))
            return errors.read().decode("utf-8", "replace")


_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
