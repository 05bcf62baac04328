# SPDX-License-Identifier: Apache-2.0
"""Where the API server is and who we are to it: from a kubeconfig file, or from what a pod is given.

Nothing secret is kept longer than needed: tokens that are files are read for every request, certificates and keys
again when they have changed, since the cluster renews them while a role runs. And nothing secret is shown: no message
quotes a value of a kubeconfig that may be a credential, which includes an address that is not known to hold none, and
YAML's own messages, which quote the line they stumbled over.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gigaslice.core.errors import ConfigError
from gigaslice.kubeapi.kubeconfig import Kubeconfig, KubeconfigEntry, kubeconfig_files, read_kubeconfig

__all__ = ["SERVICE_ACCOUNT", "Access", "access_of", "find_access"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_TOKEN_BYTES = 64 << 10
_TOKEN = re.compile(r"[ -~]+")  # what may stand in a header
_PATH = re.compile(r"[!-~]*")
_HOST = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]+(%[0-9A-Za-z._-]+)?")
_UNSUPPORTED = {
    "exec": "credentials by a command (exec) are not supported; use a token, tokenFile or a client certificate",
    "auth-provider": "an auth-provider is not supported; use a token, tokenFile or a client certificate",
    "username": "user name and password are not supported; use a token or a client certificate",
    "password": "user name and password are not supported; use a token or a client certificate",
    "proxy-url": "proxies are not supported; name a server that is reached directly",
    "as": "acting as another user is not supported; use credentials of its own",
}


@dataclass(frozen=True, slots=True)
class Access:
    """One API server and one identity. Files win over inline data, as in kubectl.

    prefix: path before "/api", without a slash at its end. insecure: the server's certificate is not looked at.
    """

    host: str
    port: int
    tls: bool = True
    prefix: str = ""
    ca_file: Path | None = None
    ca_data: bytes | None = field(default=None, repr=False)
    insecure: bool = False
    server_name: str | None = None
    token_file: Path | None = None
    token: str | None = field(default=None, repr=False)
    cert_file: Path | None = None
    key_file: Path | None = None
    cert_data: bytes | None = field(default=None, repr=False)
    key_data: bytes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"

    def authorization(self) -> str | None:
        """Value of the header of that name. Raises OSError when the token's file cannot be read, or has no token now:
        it may just be written anew.
        """
        if self.token_file is not None:
            with self.token_file.open("rb") as file:
                token = file.read(_MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
            if not _TOKEN.fullmatch(token):
                raise OSError(errno.EINVAL, f"{self.token_file} has no token in it")
            return f"Bearer {token}"
        return f"Bearer {self.token}" if self.token else None

    def ssl_context(self) -> ssl.SSLContext | None:
        """For the next connection. Raises OSError (ssl.SSLError among them) when a file is no good."""
        if not self.tls:
            return None
        if self.ca_file is not None or self.ca_data is not None:
            pem = None if self.ca_data is None else self.ca_data.decode("ascii", "replace")
            context = ssl.create_default_context(cafile=self.ca_file, cadata=None if self.ca_file else pem)
        else:
            context = ssl.create_default_context()
        # Newer Pythons ask for extensions that the CAs of many clusters lack.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE

        def no_passphrase() -> str:  # without an answer of ours OpenSSL asks on the terminal, and waits
            raise OSError(errno.EINVAL, "the client key has a passphrase; write it without one")

        with _as_file(self.cert_file, self.cert_data) as cert, _as_file(self.key_file, self.key_data) as key:
            if cert is not None:
                context.load_cert_chain(cert, key, no_passphrase)
        return context


def find_access(
    kubeconfig: Path | None,
    service: str,
    account: Path = SERVICE_ACCOUNT,
    *,
    variable: str = "",
    context: str = "",
) -> tuple[Access | None, str]:
    """How to reach the API server, and a sentence: where that is from, or why there is none.

    KUBECONFIG is the file that a flag names, VARIABLE is $KUBECONFIG, which counts where there is no flag. SERVICE is
    "host:port" as the kubelet tells every container, or empty. CONTEXT is one of the kubeconfig; empty for its current
    one. Raises ConfigError for a kubeconfig that cannot be used.
    """
    files = kubeconfig_files(kubeconfig, variable)
    if files is not None:
        return access_of(read_kubeconfig(files), context), f"kubeconfig {files}"
    if not service:
        absent = f'; none of the files of $KUBECONFIG "{variable}" is there' if variable else ""
        return None, f"not in a cluster, and no --kubeconfig{absent}"
    if not (account / "token").exists():
        return (
            None,
            f"{account}/token does not exist; give the container its pod's token: a projected volume there, or "
            "automountServiceAccountToken: true",
        )
    host, _, port = service.rpartition(":")
    access = Access(
        host=host.strip("[]"),
        port=int(port),
        ca_file=account / "ca.crt",
        token_file=account / "token",
    )
    return access, f"service account {account}"


def access_of(kubeconfig: Kubeconfig, context: str = "") -> Access:
    """The server and the identity of a context of KUBECONFIG, of its current one if empty. Raises ConfigError."""
    chosen = kubeconfig.context(context)
    cluster = kubeconfig.entry("clusters", chosen.get("cluster"))
    user = (
        kubeconfig.entry("users", chosen["user"]) if chosen.get("user") else KubeconfigEntry({}, cluster.path)
    )
    mistakes: list[str] = []
    access = _access(cluster, user, mistakes)
    if access is None or mistakes:
        origin = kubeconfig.files.origin
        paths = os.pathsep.join(map(str, dict.fromkeys((cluster.path, user.path))))
        raise ConfigError(f'{origin} "{paths}": {mistake}' for mistake in mistakes)
    return access


def _access(of_cluster: KubeconfigEntry, of_user: KubeconfigEntry, mistakes: list[str]) -> Access | None:
    cluster, user = of_cluster.values, of_user.values

    def text(table: Mapping[str, Any], key: str) -> str | None:
        value = table.get(key)
        if value is None or isinstance(value, str):
            return value or None
        mistakes.append(f"{key} is not a text; put it into quotes")
        return None

    def file(entry: KubeconfigEntry, key: str) -> Path | None:
        name = text(entry.values, key)
        return entry.path.parent / name if name else None

    def data(table: Mapping[str, Any], key: str) -> bytes | None:
        try:
            return base64.b64decode(text(table, key) or "", validate=True) or None
        except (binascii.Error, ValueError):
            mistakes.append(f"{key} is not base64")
            return None

    mistakes.extend(_unsupported({*cluster, *user}))
    insecure = cluster.get("insecure-skip-tls-verify", False)
    if not isinstance(insecure, bool):
        mistakes.append("insecure-skip-tls-verify must be true or false, without quotes")
    token = (text(user, "token") or "").strip()
    if user.get("token") and not _TOKEN.fullmatch(token) and isinstance(user["token"], str):
        mistakes.append(
            "token is not one line of printable characters, which a header can carry; write it anew"
        )
    server = _server(text(cluster, "server") or "", mistakes)
    if server is None:
        return None
    tls, host, port, prefix = server
    return Access(
        host=host,
        port=port,
        tls=tls,
        prefix=prefix,
        ca_file=file(of_cluster, "certificate-authority"),
        ca_data=data(cluster, "certificate-authority-data"),
        insecure=insecure is True,
        server_name=text(cluster, "tls-server-name"),
        token_file=file(of_user, "tokenFile"),
        token=token or None,
        cert_file=file(of_user, "client-certificate"),
        key_file=file(of_user, "client-key"),
        cert_data=data(user, "client-certificate-data"),
        key_data=data(user, "client-key-data"),
    )


def _unsupported(given: set[object]) -> list[str]:
    """Sentences about the keys GIVEN that would change whom one asks, or as whom, and do not here."""
    names = {"as" if str(key).startswith("as-") else str(key) for key in given}
    return list(dict.fromkeys(sentence for key, sentence in _UNSUPPORTED.items() if key in names))


def _server(server: str, mistakes: list[str]) -> tuple[bool, str, int, str] | None:
    """Whether by TLS, host, port and path of an address; None with a mistake where it is none.

    It is shown only where nothing in it can be a password.
    """
    shown = f' "{server}"' if server.isprintable() and not set(server) & set("@?#") else ""
    try:
        url = urlsplit(server)
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        mistakes.append(f"server{shown} is no URL")
        return None
    if "@" in url.netloc:
        mistakes.append("server has a user name or password in it, which is not supported; use a token")
    elif url.query or url.fragment:
        mistakes.append("server has something after a ? or #; it must look like https://host:6443")
    elif url.scheme not in ("http", "https") or not url.hostname:
        mistakes.append(f"server{shown} must look like https://host:6443")
    elif not _HOST.fullmatch(url.hostname) or not _PATH.fullmatch(url.path):
        mistakes.append(
            f"server{shown} has characters that no address has; it must look like https://host:6443"
        )
    else:
        return url.scheme == "https", url.hostname, port, url.path.rstrip("/")
    return None


@contextlib.contextmanager
def _as_file(path: Path | None, data: bytes | None) -> Iterator[str | None]:
    """A name for the data: OpenSSL reads files only, and a key does not belong on a disk."""
    if path is not None or data is None:
        yield None if path is None else str(path)
        return
    fd = os.memfd_create("credentials", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
