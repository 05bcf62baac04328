"""Where the API server is and who we are to it: from a kubeconfig file, or from what a pod is given.

Nothing secret is kept longer than needed: tokens, certificates and keys that are files are read again for every
connection, since the cluster renews them while the agent runs.
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

import yaml

from agent.errors import ConfigError

__all__ = ["SERVICE_ACCOUNT", "Access", "find_access"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_TOKEN_BYTES = 64 << 10
_TOKEN = re.compile(r"[ -~]+")  # what may stand in a header


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
        with _as_file(self.cert_file, self.cert_data) as cert, _as_file(self.key_file, self.key_data) as key:
            if cert is not None:
                context.load_cert_chain(cert, key)
        return context


def find_access(
    kubeconfig: Path | None, service: str, account: Path = SERVICE_ACCOUNT
) -> tuple[Access | None, str]:
    """How to reach the API server, and a sentence: where that is from, or why there is none.

    SERVICE is "host:port" as the kubelet tells every container, or empty. Raises ConfigError for a KUBECONFIG that was
    named and cannot be used.
    """
    if kubeconfig is not None:
        return _from_kubeconfig(kubeconfig), f"kubeconfig {kubeconfig}"
    if not service:
        return None, "not in a cluster, and no --kubeconfig"
    if not (account / "token").exists():
        return None, f"{account}/token does not exist; the pod needs automountServiceAccountToken: true"
    host, _, port = service.rpartition(":")
    found = Access(
        host=host.strip("[]"),
        port=int(port),
        ca_file=account / "ca.crt",
        token_file=account / "token",
    )
    return found, f"service account {account}"


def _from_kubeconfig(path: Path) -> Access:
    mistakes: list[str] = []
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            [f'--kubeconfig "{path}": {error.strerror}; name a readable kubeconfig file']
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError([f'--kubeconfig "{path}": not YAML: {" ".join(str(error).split())}']) from error
    document = document if isinstance(document, dict) else {}
    context = _named(document, "contexts", "context", document.get("current-context"), mistakes)
    cluster = _named(document, "clusters", "cluster", context.get("cluster"), mistakes)
    user = _named(document, "users", "user", context.get("user"), mistakes) if context.get("user") else {}
    access = None if mistakes else _access(path.parent, cluster, user, mistakes)
    if access is None or mistakes:
        raise ConfigError(f'--kubeconfig "{path}": {mistake}' for mistake in mistakes)
    return access


def _named(
    document: Mapping[str, Any], table: str, key: str, name: object, mistakes: list[str]
) -> Mapping[str, Any]:
    entries = document.get(table)
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(key), dict):
            return dict(entry[key])
    if not mistakes:  # the first thing that is missing explains the others
        mistakes.append(f'{table} has no {key} named "{name}"')
    return {}


def _access(
    folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any], mistakes: list[str]
) -> Access | None:
    server = str(cluster.get("server", ""))
    try:
        url = urlsplit(server)
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        mistakes.append(f'server "{server}" is no URL')
        return None
    if url.scheme not in ("http", "https") or not url.hostname:
        mistakes.append(f'server "{server}" must look like https://host:6443')
        return None
    if "exec" in user or "auth-provider" in user:
        mistakes.append(
            "credentials by a command (exec) are not supported; use a token, tokenFile or a client certificate"
        )
    if "username" in user:
        mistakes.append("user name and password are not supported; use a token or a client certificate")

    def file(table: Mapping[str, Any], key: str) -> Path | None:
        return folder / str(table[key]) if table.get(key) else None

    def data(table: Mapping[str, Any], key: str) -> bytes | None:
        try:
            return base64.b64decode(str(table[key]), validate=True) if table.get(key) else None
        except (binascii.Error, ValueError):
            mistakes.append(f"{key} is not base64")
            return None

    return Access(
        host=url.hostname,
        port=port,
        tls=url.scheme == "https",
        prefix=url.path.rstrip("/"),
        ca_file=file(cluster, "certificate-authority"),
        ca_data=data(cluster, "certificate-authority-data"),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        server_name=cluster.get("tls-server-name"),
        token_file=file(user, "tokenFile"),
        token=user.get("token"),
        cert_file=file(user, "client-certificate"),
        key_file=file(user, "client-key"),
        cert_data=data(user, "client-certificate-data"),
        key_data=data(user, "client-key-data"),
    )


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
