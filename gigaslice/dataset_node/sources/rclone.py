"""Everything that rclone reads: SFTP, SMB, WebDAV, HDFS, FTP and the others, by one process per source.

rclone lists (`lsjson`) and serves the files on a Unix socket (`serve http`), where they are read like those of any
HTTP server. It is found on PATH and is no part of this program. Its configuration is in its environment only: no file,
no argument that other processes see. It ends with this process, at the latest when the kernel notices that.

rclone can do more than a pod may: read the node's own disk, run commands, take the node's identity. So kinds and
options are those of a list, the process has no rights (nobody, where this one is root), and gets nothing of this
process's environment. Serving forgets a directory after ten seconds, so a read may miss a change: the source is `weak`.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlsplit

from gigaslice.dataset.digest import hasher
from gigaslice.dataset.errors import ListingError, RequestError, SourceError
from gigaslice.dataset.listing import Entry, EntryKind, Limits, Listing
from gigaslice.dataset.source_spec import SourceSpec
from gigaslice.dataset_node.sources.addresses import refuse_local
from gigaslice.dataset_node.sources.credentials import Credentials
from gigaslice.dataset_node.sources.seam import Sink, Stop, in_thread
from gigaslice.dataset_node.sources.web import WebClient
from gigaslice.dataset_node.sources.web_files import read_range

__all__ = ["RcloneRemote", "RcloneSource", "remote_of"]

_REMOTE = "source"
_NOBODY = 65534
_START_SECONDS = 20.0
_PR_SET_PDEATHSIG = 1
_SECRET = frozenset(
    (
        *("pass", "key", "key_pem", "key_file_pass", "token", "bearer_token"),
        *("client_secret", "secret_access_key", "service_account_credentials"),
    )
)
_OBSCURED = frozenset(("pass", "key_file_pass"))
_SAFE = re.compile(r"[^\0]{0,65536}")
_BACKENDS: dict[str, frozenset[str]] = {
    "sftp": frozenset(("host", "user", "port", "pass", "key_pem", "key_file_pass")),
    "ftp": frozenset(("host", "user", "port", "pass", "tls", "explicit_tls")),
    "smb": frozenset(("host", "user", "port", "pass", "domain")),
    "webdav": frozenset(("url", "vendor", "user", "pass", "bearer_token")),
    "hdfs": frozenset(("namenode", "username")),
    "http": frozenset(("url",)),
    "s3": frozenset(("provider", "access_key_id", "secret_access_key", "region", "endpoint")),
    "b2": frozenset(("account", "key")),
    "swift": frozenset(("user", "key", "auth", "tenant", "domain", "region", "auth_version")),
    "drive": frozenset(("client_id", "client_secret", "token", "scope", "root_folder_id", "team_drive",
                        "service_account_credentials")),
    "dropbox": frozenset(("client_id", "client_secret", "token")),
    "onedrive": frozenset(("client_id", "client_secret", "token", "drive_id", "drive_type")),
}  # fmt: skip
"""What a remote may be, and what may be said of it."""
_FIXED = {"sftp": {"shell_type": "none", "disable_hashcheck": "true"}, "s3": {"env_auth": "false"}}
_ABSENT = re.compile(r"directory not found|object not found|no such file|not exist|404")
_REFUSED = re.compile(r"40[13]|nauthori|ermission denied|ccess ?denied|authenticat|login|530 |LOGON_FAILURE")
_AWAY = re.compile(r"no such host|connection refused|time[d ]*out|unreachable|reset by peer|EOF")
_FAILURES = (
    (_ABSENT, "has no such directory; check the path", False),
    (_REFUSED, "refuses access; check the credentials in the volume's nodePublishSecretRef", False),
    (_AWAY, "does not answer; check its address and the network", True),
)


class RcloneRemote:
    """A remote: rclone's parameters, and the path on it. Its text shows no value of a secret."""

    def __init__(self, parameters: Mapping[str, str], path: str, *, obscured: bool) -> None:
        kind = parameters.get("type", "")
        known = _BACKENDS.get(kind)
        if known is None:
            raise RequestError(
                f"rclone remotes of type {kind[:40]!r} are not read here; there are {', '.join(sorted(_BACKENDS))}"
            )
        for name, value in parameters.items():
            if name != "type" and name not in known:
                raise RequestError(
                    f"a remote of type {kind} may not have {name[:40]!r} here; there are {', '.join(sorted(known))}"
                )
            if not _SAFE.fullmatch(value):
                raise RequestError(f"{name} of the rclone remote has a NUL byte")
        self.kind = kind
        self.path = path
        self.obscured = obscured
        self._parameters = dict(parameters)

    def __repr__(self) -> str:
        return f"RcloneRemote({self.kind})"

    @property
    def identity(self) -> str:
        """What of the parameters says which storage it is: a part of the dataset's key."""
        said = sorted((name, value) for name, value in self._parameters.items() if name not in _SECRET)
        return hasher(json.dumps(said).encode()).hexdigest()[:16]

    def check_address(self) -> None:
        """Refuses a server at an address of the node. Raises SourceError."""
        for name in ("host", "url", "namenode", "endpoint", "auth"):
            value = self._parameters.get(name, "")
            if not value:
                continue
            parts = urlsplit(value if "://" in value else f"//{value}")
            refuse_local(parts.hostname or value, 0)

    def environment(self, obscure: Callable[[str], str]) -> dict[str, str]:
        """The remote as rclone takes it from its environment."""
        found = {**self._parameters, **_FIXED.get(self.kind, {})}
        return {
            f"RCLONE_CONFIG_{_REMOTE.upper()}_{name.upper()}": obscure(value)
            if name in _OBSCURED and value and not self.obscured
            else value
            for name, value in found.items()
        }


def remote_of(spec: SourceSpec, credentials: Credentials) -> RcloneRemote:
    """The remote of a source of one of rclone's kinds.

    Raises:
        RequestError: The Secret does not describe one that may be read.
    """
    if spec.kind == "rclone":
        return _described(spec, credentials)
    host, _, port = spec.server.partition(":")
    user, password = credentials.get("user"), credentials.get("password")
    found: dict[str, str]
    if spec.kind in ("webdav", "webdavs"):
        found = {"type": "webdav", "url": f"http{'s' * spec.kind.endswith('s')}://{spec.server}/", "vendor": "other",
                 "user": user, "pass": password, "bearer_token": credentials.get("token")}  # fmt: skip
    elif spec.kind == "hdfs":
        found = {"type": "hdfs", "namenode": spec.server, "username": user or "root"}
    else:
        found = {"type": spec.kind, "host": host, "port": port, "user": user, "pass": password}
        if spec.kind == "sftp":
            keys = [
                value
                for name, value in credentials.exact()
                if name in ("ssh-privatekey", "key_pem", "privateKey")
            ]
            # rclone takes a key on one line
            found["key_pem"] = keys[0].strip().replace("\n", "\\n") if keys else ""
    return RcloneRemote({name: value for name, value in found.items() if value}, spec.path, obscured=False)


def _described(spec: SourceSpec, credentials: Credentials) -> RcloneRemote:
    remote, _, path = spec.location.partition(":")
    given = dict(credentials.exact())
    if "rclone.conf" in given:
        parser = configparser.RawConfigParser(interpolation=None)
        try:
            parser.read_string(given["rclone.conf"])
            return RcloneRemote(dict(parser[remote]), path, obscured=True)
        except (configparser.Error, KeyError):
            raise RequestError(f"rclone.conf in the Secret has no readable section [{remote}]") from None
    prefix = f"RCLONE_CONFIG_{re.sub(r'[^A-Z0-9]', '_', remote.upper())}_"
    found = {name[len(prefix) :].lower(): value for name, value in given.items() if name.startswith(prefix)}
    if found:
        return RcloneRemote(found, path, obscured=True)
    if "type" in given:
        return RcloneRemote(given, path, obscured=False)
    raise RequestError(
        f"the Secret does not describe the rclone remote {remote}; give it type, host, user, pass, …, or rclone.conf"
    )


class RcloneSource:
    """A remote's files. Made by `open`.

    Args:
        process: `rclone serve http`.
        directory: Has the socket; removed at the end.
        run: Starts other commands of rclone.
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, run: _Runner, what: str) -> None:
        self.parallel = 32
        self.image = None
        self.weak = True
        self._process = process
        self._directory = directory
        self._run = run
        self._what = what
        self._client = WebClient(urlsplit("http://rclone/"), unix=str(directory / "s"))

    @staticmethod
    async def open(remote: RcloneRemote, what: str, *, directory: Path | None = None) -> RcloneSource:
        """Starts rclone for a remote.

        Must be called in a thread that lives as long as the process: the kernel ends the child with that thread.

        Args:
            remote: What to serve.
            what: How it is called in texts.
            directory: Where sockets are made; the system's for temporary files by default.

        Raises:
            SourceError: There is no rclone, or it does not start.
        """
        program = shutil.which("rclone")
        if program is None:
            raise SourceError(
                "rclone is not installed on this node, and this source is read by it; install it on PATH of the service"
            )
        run = _Runner(program, remote)
        made = Path(tempfile.mkdtemp(prefix="rclone-", dir=_enterable(directory)))
        try:
            if os.geteuid() == 0:
                os.chown(made, _NOBODY, _NOBODY)
            environment = await in_thread("dataset-rclone", lambda _: run.environment())
            process = run.start(
                ["serve", "http", "--addr", f"unix://{made / 's'}", "--read-only", "--dir-cache-time", "10s",
                 "--poll-interval", "0", "--buffer-size", "0", run.place],
                environment,
            )  # fmt: skip
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        found = RcloneSource(process, made, run, what)
        try:
            await in_thread("dataset-rclone", found._wait_for_socket)
        except BaseException:
            await found.close()
            raise
        return found

    def _wait_for_socket(self, stop: Stop) -> None:
        end = time.monotonic() + _START_SECONDS
        while not (self._directory / "s").is_socket():
            if self._process.poll() is not None:
                raise _failure(self._what, self._run.said(self._process))
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

    def _listed(self, process: subprocess.Popen[bytes], limits: Limits, stop: Stop) -> Listing:
        found: list[Entry] = []
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                text = line.strip().rstrip(b",")
                if not text.startswith(b"{"):
                    continue
                try:
                    found.append(_entry(text))
                except (ValueError, KeyError, TypeError):
                    raise ListingError(
                        f"{self._what} is listed by rclone in a form that is not known"
                    ) from None
                if stop or len(found) > limits.entries:
                    process.kill()
                    break
        if process.wait() != 0 and not stop and len(found) <= limits.entries:
            raise _failure(self._what, self._run.said(process))
        return Listing.of(found, limits)

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


def _enterable(directory: Path | None) -> Path | None:
    """DIRECTORY if a process without rights can enter it; else none, for the system's."""
    try:
        return directory if directory is not None and directory.stat().st_mode & 0o001 else None
    except OSError:
        return None


class _Runner:
    """Starts rclone with a remote in its environment and nothing else."""

    def __init__(self, program: str, remote: RcloneRemote) -> None:
        self._program = program
        self._remote = remote
        self.place = f"{_REMOTE}:{remote.path}"
        self._errors: dict[int, IO[bytes]] = {}

    def environment(self) -> dict[str, str]:
        """Blocking: passwords are obscured by rclone itself."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": "/nonexistent",
            "TZ": "UTC",
            "RCLONE_CONFIG": "",
            "RCLONE_RETRIES": "2",
            "RCLONE_CONTIMEOUT": "15s",
            "RCLONE_TIMEOUT": "60s",
            **self._remote.environment(self._obscure),
        }

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
        root = os.geteuid() == 0
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
                user=_NOBODY if root else None,
                group=_NOBODY if root else None,
                extra_groups=[] if root else None,
            )
        except (OSError, subprocess.SubprocessError):
            errors.close()
            raise SourceError("rclone cannot be started; run it by hand on the node") from None
        self._errors[process.pid] = errors
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for a process that was killed. Blocking."""
        process.wait()
        self.said(process)

    def said(self, process: subprocess.Popen[bytes]) -> str:
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


def _entry(text: bytes) -> Entry:
    found = json.loads(text)
    path = str(found["Path"]).encode("utf-8", "surrogatepass")
    if found["IsDir"]:
        return Entry(path, EntryKind.DIRECTORY)
    size = found["Size"]
    if not isinstance(size, int) or size < 0:
        raise ListingError(
            f"{found['Path']!r} has no size that rclone can tell; it cannot be a dataset's file"
        )
    return Entry(path, EntryKind.FILE, size, f"{size}:{found['ModTime']}")


def _failure(what: str, said: str) -> SourceError:
    for pattern, text, retry in _FAILURES:
        if pattern.search(said):
            return SourceError(f"{what} {text}", retry=retry)
    return SourceError(f"rclone fails for {what}; run it by hand with the same remote to see why")
