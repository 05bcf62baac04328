# SPDX-License-Identifier: Apache-2.0
"""Everything that rclone reads: SFTP, SMB, WebDAV, HDFS, FTP and the others, by one process per source.

rclone lists (`lsjson`) and serves the files on a Unix socket (`serve http`), where they are read like those of any
HTTP server. It is found on PATH and is no part of this program. Its configuration is in its environment only: no file,
no argument that other processes see. It ends with this process, at the latest when the kernel notices that.

Which remotes may be read is `rclone_remote`'s to say, and how the process is started `rclone_process`'s. Serving
forgets a directory after ten seconds, so a read may miss a change: the source is `weak`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

from gigaslice.core.dataset.errors import ListingError, SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind, Limits, Listing
from gigaslice.core.kube.json_text import read_json
from gigaslice.roles.dataset_node.sources.checked_proxy import CheckedProxy, ProxyPass
from gigaslice.roles.dataset_node.sources.http_client import HttpClient
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag, Sink, in_thread
from gigaslice.roles.dataset_node.sources.rclone_process import RcloneProcesses
from gigaslice.roles.dataset_node.sources.rclone_remote import RcloneRemote
from gigaslice.roles.dataset_node.sources.web_files import read_range

__all__ = ["RcloneSource"]

_START_SECONDS = 20.0
_CHECK = 4096
_ABSENT = re.compile(r"directory not found|object not found|no such file|not exist|404")
_REFUSED = re.compile(r"40[13]|nauthori|ermission denied|ccess ?denied|authenticat|login|530 |LOGON_FAILURE")
_AWAY = re.compile(r"no such host|connection refused|time[d ]*out|unreachable|reset by peer|EOF")
_FAILURES = (
    (_ABSENT, "has no such directory; check the path", False),
    (_REFUSED, "refuses access; check the credentials (a pod's: nodePublishSecretRef)", False),
    (_AWAY, "does not answer; check its address and the network", True),
)


class RcloneSource:
    """A remote's files. Made by `open`.

    Args:
        process: `rclone serve http`.
        directory: Has the socket; removed at the end.
        run: Starts other commands of rclone.
        what: How the source is called in texts.
        through: Its pass for the proxy that rclone connects through.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        directory: Path,
        run: RcloneProcesses,
        what: str,
        through: ProxyPass | None,
    ) -> None:
        self.parallel = 32
        self.image = None
        self.weak = True
        self._process = process
        self._directory = directory
        self._run = run
        self._what = what
        self._through = through
        self._client = HttpClient(urlsplit("http://rclone/"), unix=str(directory / "s"))

    @staticmethod
    async def open(
        remote: RcloneRemote, what: str, *, directory: Path | None = None, proxy: CheckedProxy | None = None
    ) -> RcloneSource:
        """Starts rclone for a remote.

        Must be called in a thread that lives as long as the process: the kernel ends the child with that thread.

        Args:
            remote: What to serve.
            what: How it is called in texts.
            directory: Where sockets are made; the system's for temporary files by default.
            proxy: What rclone connects through; None: it connects by itself.

        Raises:
            SourceError: There is no rclone, or it does not start.
        """
        program = shutil.which("rclone")
        if program is None:
            raise SourceError(
                "rclone is not installed on this node, and this source is read by it; install it on PATH of the service"
            )
        through = proxy.issue() if proxy is not None and remote.proxy_flag else None
        run = RcloneProcesses(program, remote, through.url if through else "")
        flag = remote.proxy_flag
        if through and not await in_thread("dataset-rclone", lambda _: run.has_flag(flag)):
            through.withdraw()
            raise SourceError(
                f"rclone on this node has no {flag}, without which the addresses that it connects to are not checked; "
                "install 1.70 or newer (or an administrator allows all addresses: --local-addresses on)"
            )
        socket_directory = Path(tempfile.mkdtemp(prefix="rclone-", dir=_enterable(directory)))
        try:
            if run.user is not None:
                os.chown(socket_directory, run.user, run.user)
            environment = await in_thread("dataset-rclone", lambda _: run.environment())
            process = run.start(
                ["serve", "http", "--addr", f"unix://{socket_directory / 's'}", "--read-only",
                 "--dir-cache-time", "10s", "--poll-interval", "0", "--buffer-size", "0", run.place],
                environment,
            )  # fmt: skip
        except BaseException:
            shutil.rmtree(socket_directory, ignore_errors=True)
            raise
        source = RcloneSource(process, socket_directory, run, what, through)
        try:
            await in_thread("dataset-rclone", source._wait_for_socket)
        except BaseException:
            await source.close()
            raise
        return source

    def _wait_for_socket(self, stop: CancelFlag) -> None:
        end = time.monotonic() + _START_SECONDS
        while not (self._directory / "s").is_socket():
            if self._process.poll() is not None:
                raise self._failure(self._run.error_output(self._process))
            if time.monotonic() > end or stop.wait(0.02):
                raise SourceError(
                    f"rclone does not start for {self._what}; run it by hand on the node", retry=True
                )

    async def list(self, limits: Limits = Limits()) -> Listing:  # noqa: B008  (frozen)
        """Runs `rclone lsjson`. Raises as `DataSource.list`."""
        environment = await in_thread("dataset-rclone", lambda _: self._run.environment())
        process = self._run.start(
            ["lsjson", "--recursive", "--no-mimetype", "--fast-list", self._run.place],
            environment,
            output=True,
        )
        try:
            return await in_thread("dataset-list", lambda stop: self._listed(process, limits, stop))
        finally:
            process.kill()
            threading.Thread(
                target=self._run.end, args=(process,), name="dataset-rclone", daemon=True
            ).start()

    def _listed(self, process: subprocess.Popen[bytes], limits: Limits, stop: CancelFlag) -> Listing:
        entries: list[Entry] = []
        text_bytes = 0
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                text = line.strip().rstrip(b",")
                if not text.startswith(b"{"):
                    continue
                try:
                    entries.append(_entry(text))
                except (ValueError, KeyError, TypeError):
                    raise ListingError(
                        f"{self._what} is listed by rclone in a form that is not known"
                    ) from None
                text_bytes += len(entries[-1].path) + len(entries[-1].version)
                if not len(entries) % _CHECK:
                    limits.check(len(entries), text_bytes)
                if stop:
                    process.kill()
                    break
        limits.check(len(entries), text_bytes)
        if process.wait() != 0 and not stop:
            raise self._failure(self._run.error_output(process))
        return Listing.of(entries, limits)

    def read_into(self, entry: Entry, offset: int, size: int, sink: Sink) -> None:
        """Reads a range of a file. Raises as `DataSource.read_into`."""
        if self._process.poll() is not None:
            raise SourceError(
                f"rclone for {self._what} has ended; it is started again with the next attempt", retry=False
            )
        read_range(self._client, "/" + quote(entry.path), entry, (offset, size), sink)

    async def close(self) -> None:
        """Ends rclone."""
        self._client.close()
        self._process.kill()
        with contextlib.suppress(asyncio.CancelledError):
            await in_thread("dataset-rclone", lambda _: self._run.end(self._process))
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._through is not None:
            self._through.withdraw()

    def _failure(self, message: str) -> SourceError:
        refusal = self._through.refused() if self._through is not None else None
        return refusal or _failure(self._what, message)


def _enterable(directory: Path | None) -> Path | None:
    """DIRECTORY if a process without rights can enter it; else none, for the system's."""
    try:
        return directory if directory is not None and directory.stat().st_mode & 0o001 else None
    except OSError:
        return None


def _entry(text: bytes) -> Entry:
    document = read_json(text)
    path = str(document["Path"]).encode()
    if document["IsDir"]:
        return Entry(path, EntryKind.DIRECTORY)
    size = document["Size"]
    if not isinstance(size, int) or size < 0:
        raise ListingError(
            f"{document['Path']!r} has no size that rclone can tell; it cannot be a dataset's file"
        )
    return Entry(path, EntryKind.FILE, size, f"{size}:{document['ModTime']}")


def _failure(what: str, message: str) -> SourceError:
    for pattern, text, retry in _FAILURES:
        if pattern.search(message):
            return SourceError(f"{what} {text}", retry=retry)
    return SourceError(f"rclone fails for {what}; run it by hand with the same remote to see why")
