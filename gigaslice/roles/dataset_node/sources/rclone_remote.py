# SPDX-License-Identifier: Apache-2.0
"""What an rclone remote may be, and how a volume's Secret describes one.

rclone can do more than a pod may: read the node's own disk, run commands, take the node's identity. So types and
options are those of a list.
"""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Callable, Mapping

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.endpoint import ServerAddress, ServerUrl
from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources.addresses import checked_addresses
from gigaslice.roles.dataset_node.sources.credentials import Credentials

__all__ = ["REMOTE", "RcloneRemote", "remote_of"]

REMOTE = "source"
"""The remote's name in rclone's environment."""

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
_SERVERS = {
    "host": "host",
    "url": "https://host:port/path",
    "namenode": "host:port",
    "endpoint": "https://host:port",
    "auth": "https://host:port/path",
}
"""What of a remote names servers, and how it is written."""
_PROXY_FLAGS = {"sftp": "--sftp-http-proxy", "ftp": "--ftp-http-proxy", "smb": "", "hdfs": ""}
_FIXED = {"sftp": {"shell_type": "none", "disable_hashcheck": "true"}, "s3": {"env_auth": "false"}}


class RcloneRemote:
    """A remote: rclone's parameters, and the path on it. Its text shows no value of a secret."""

    def __init__(self, parameters: Mapping[str, str], path: str, *, obscured: bool) -> None:
        kind = parameters.get("type", "")
        allowed = _BACKENDS.get(kind)
        if allowed is None:
            raise RequestError(
                f"rclone remotes of type {kind[:40]!r} are not read here; there are {', '.join(sorted(_BACKENDS))}"
            )
        for name, value in parameters.items():
            if name != "type" and name not in allowed:
                raise RequestError(
                    f"a remote of type {kind} may not have {name[:40]!r} here; there are {', '.join(sorted(allowed))}"
                )
            if not _SAFE.fullmatch(value):
                raise RequestError(f"{name} of the rclone remote has a NUL byte")
            if name == "port" and not re.fullmatch(r"[1-9][0-9]{0,4}", value):
                raise RequestError("port of the rclone remote is no number; write one from 1 to 65535")
        self.kind = kind
        self.path = path
        self.obscured = obscured
        self._parameters = dict(parameters)
        self._servers = {name: _servers(name, parameters[name]) for name in _SERVERS if parameters.get(name)}

    def __repr__(self) -> str:
        return f"RcloneRemote({self.kind})"

    @property
    def identity(self) -> str:
        """What of the parameters says which storage it is: a part of the dataset's key."""
        public = sorted((name, value) for name, value in self._parameters.items() if name not in _SECRET)
        return hasher(json.dumps(public).encode()).hexdigest()[:16]

    @property
    def proxy_flag(self) -> str:
        """The flag by which rclone connects to this remote through an HTTP proxy; "" where it has none."""
        return _PROXY_FLAGS.get(self.kind, "--http-proxy")

    def at_checked_addresses(self) -> RcloneRemote:
        """This remote, with a checked address in place of the server's name where rclone takes no proxy.

        Where it takes one, this says at once what would else be said after tries. Raises SourceError, RequestError.
        """
        parameters = dict(self._parameters)
        for name, servers in self._servers.items():
            checked = [_checked(server) for server in servers]
            if not self.proxy_flag:
                parameters[name] = ",".join(checked)
        return RcloneRemote(parameters, self.path, obscured=self.obscured)

    def environment(self, obscure: Callable[[str], str], proxy: str = "") -> dict[str, str]:
        """The remote as rclone takes it from its environment. PROXY: the URL of what it connects through."""
        parameters = {**self._parameters, **_FIXED.get(self.kind, {})}
        if proxy and self.kind in ("sftp", "ftp"):
            parameters["http_proxy"] = proxy
        return {
            f"RCLONE_CONFIG_{REMOTE.upper()}_{name.upper()}": obscure(value)
            if name in _OBSCURED and value and not self.obscured
            else value
            for name, value in parameters.items()
        }


def _servers(name: str, value: str) -> list[ServerAddress]:
    """The servers that the parameter NAME has: a URL, or a host with or without a port. Raises RequestError."""
    try:
        if name == "host":
            return [ServerAddress.parse_host(value)]
        if name == "namenode":
            return [ServerAddress.parse(server.strip()) for server in value.split(",")]
        url = ServerUrl.parse(value)
    except ValueError:
        raise _no_server(name) from None
    if url.scheme not in ("http", "https", "") or (name == "url" and not url.scheme):
        raise _no_server(name)
    return [url.server]


def _no_server(name: str) -> RequestError:
    form = _SERVERS[name]
    return RequestError(f"{name} of the rclone remote is no address; write it as {form}")


def _checked(server: ServerAddress) -> str:
    """An address of SERVER, with the port that it has. Raises SourceError."""
    addresses, port = checked_addresses(server.host, 0), server.port
    # rclone's SMB puts address and port together without brackets
    address = next((address for address in addresses if ":" not in address), addresses[0])
    return address if port is None else f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def remote_of(spec: SourceSpec, credentials: Credentials) -> RcloneRemote:
    """The remote of a source of one of rclone's kinds.

    Raises:
        RequestError: The Secret does not describe one that may be read.
    """
    if spec.kind == "rclone":
        return _described(spec, credentials)
    user, password = credentials.get("user"), credentials.get("password")
    parameters: dict[str, str]
    if spec.kind in ("webdav", "webdavs"):
        url = f"http{'s' * spec.kind.endswith('s')}://{spec.server}/"
        parameters = {"type": "webdav", "url": url, "vendor": "other", "user": user, "pass": password,
                      "bearer_token": credentials.get("token")}  # fmt: skip
    elif spec.kind == "hdfs":
        parameters = {"type": "hdfs", "namenode": spec.server, "username": user or "root"}
    else:
        server = _server_of(spec)
        port = "" if server.port is None else str(server.port)
        parameters = {"type": spec.kind, "host": server.host, "port": port, "user": user, "pass": password}
        if spec.kind == "sftp":
            keys = [
                value
                for name, value in credentials.exact()
                if name in ("ssh-privatekey", "key_pem", "privateKey")
            ]
            # rclone takes a key on one line
            parameters["key_pem"] = keys[0].strip().replace("\n", "\\n") if keys else ""
    return RcloneRemote(
        {name: value for name, value in parameters.items() if value}, spec.path, obscured=False
    )


def _server_of(spec: SourceSpec) -> ServerAddress:
    try:
        return ServerAddress.parse(spec.server)
    except ValueError:
        raise RequestError(
            f"{spec.canonical} has no server; write it as {spec.kind}://host:port/path"
        ) from None


def _described(spec: SourceSpec, credentials: Credentials) -> RcloneRemote:
    remote, _, path = spec.location.partition(":")
    given = dict(credentials.exact())
    if "rclone.conf" in given:
        parser = configparser.RawConfigParser(interpolation=None)
        try:
            parser.read_string(given["rclone.conf"])
            return RcloneRemote(dict(parser[remote]), path, obscured=True)
        except (configparser.Error, KeyError):
            raise RequestError(
                f"rclone.conf in {credentials.where} has no readable section [{remote}]"
            ) from None
    prefix = f"RCLONE_CONFIG_{re.sub(r'[^A-Z0-9]', '_', remote.upper())}_"
    parameters = {
        name[len(prefix) :].lower(): value for name, value in given.items() if name.startswith(prefix)
    }
    if parameters:
        return RcloneRemote(parameters, path, obscured=True)
    if "type" in given:
        return RcloneRemote(given, path, obscured=False)
    raise RequestError(
        f"{credentials.where} does not describe the rclone remote {remote}; "
        "give it type, host, user, pass, …, or rclone.conf"
    )
