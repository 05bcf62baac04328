# SPDX-License-Identifier: Apache-2.0
"""etcd and kube-apiserver on loopback, with nothing of the machine's in them, and requests to them as any user.

There is no controller manager unless a test starts one: ServiceAccount admission is off, so that pods can be made at
once, and nodes are made through the API and have no kubelet.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.fakes.ports import free_port

NEEDED = ("etcd", "kube-apiserver", "kube-scheduler")
MANAGER = "kube-controller-manager"
"""Is there or not; what needs it says so."""
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_PLURALS = {"NetworkPolicy": "networkpolicies", "ResourceClass": "resourceclasses"}
_CLUSTER_SCOPED = {
    "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace", "Node", "ResourceClass",
    "ExtendedResource", "PriorityClass", "DeviceClass", "CSIDriver",
}  # fmt: skip
Document = dict[str, Any]


def find_binaries() -> dict[str, str] | str:
    """Paths by name, of MANAGER too where it is there; or the line that says which are missing."""
    folder = os.environ.get("K8S_BIN")
    found = {name: shutil.which(name, path=folder) or shutil.which(name) for name in (*NEEDED, MANAGER)}
    missing = [name for name in NEEDED if found[name] is None]
    if missing:
        where = f"{folder} (K8S_BIN) and PATH" if folder else "PATH; K8S_BIN may name their folder"
        return f"a real control plane is not at hand: no {', '.join(missing)} in {where}"
    return {name: path for name, path in found.items() if path}


class Refused(Exception):  # noqa: N818  (an answer that tests are after)
    """An answer with a status of 400 or more."""

    def __init__(self, status: int, document: Document) -> None:
        super().__init__(f"{status}: {document.get('message', document)}")
        self.status = status
        self.message: str = str(document.get("message", ""))


@dataclass(slots=True)
class Api:
    """Requests as one user. warnings: of the last answer. storage_seconds: for a definition to be served."""

    port: int
    headers: Mapping[str, str]
    warnings: list[str] = field(default_factory=list)
    storage_seconds: float = 30.0

    def request(
        self, method: str, path: str, body: object = None, content: str = "application/json"
    ) -> Document:
        """Raises Refused."""
        deadline = time.monotonic() + self.storage_seconds
        while True:
            status, document = self._once(method, path, body, content)
            starting = status == 429 and "storage is (re)initializing" in str(document.get("message"))
            if starting and time.monotonic() < deadline:
                time.sleep(0.2)  # of a definition that was installed or changed just now; nothing was done
                continue
            if status >= 400:
                raise Refused(status, document)
            return document

    def _once(self, method: str, path: str, body: object, content: str) -> tuple[int, Document]:
        context = ssl._create_unverified_context()  # loopback, and a certificate made a second ago
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        with contextlib.closing(connection):
            # Without spaces, as clients in Go write: the server compares the parameters in a claim byte by byte.
            text = None if body is None else json.dumps(body, separators=(",", ":"))
            connection.request(method, path, text, {**self.headers, "Content-Type": content})
            reply = connection.getresponse()
            raw = reply.read()
            self.warnings = reply.headers.get_all("Warning") or []
        return reply.status, json.loads(raw) if raw[:1] == b"{" else {"message": raw.decode()}

    def get(self, path: str) -> Document:
        """The object at PATH."""
        return self.request("GET", path)

    def post(self, path: str, body: Document) -> Document:
        """Creates an object."""
        return self.request("POST", path, body)

    def patch(self, path: str, body: Document, content: str = MERGE) -> Document:
        """Changes an object."""
        return self.request("PATCH", path, body, content)

    def delete(self, path: str, body: Document | None = None) -> Document:
        """Deletes an object."""
        return self.request("DELETE", path, body)

    def apply(self, document: Document) -> Document:
        """Creates or changes what the document names."""
        return self.patch(f"{path_of(document)}?fieldManager=test&force=true", document, APPLY)


def path_of(document: Document) -> str:
    """Where the object of a manifest is."""
    version, kind = document["apiVersion"], document["kind"]
    plural = _PLURALS.get(kind, kind.lower() + ("es" if kind.endswith("s") else "s"))
    plural = plural.replace("policys", "policies").replace("classs", "classes")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    whole = kind in _CLUSTER_SCOPED or version.startswith("admissionregistration.k8s.io/")
    namespace = "" if whole else f"/namespaces/{document['metadata'].get('namespace', 'default')}"
    return f"{root}{namespace}/{plural}/{document['metadata']['name']}"


class ControlPlane:
    """Use it as a context manager. folder: for data, keys and logs."""

    def __init__(self, folder: Path, binaries: Mapping[str, str], *flags: str) -> None:
        self.folder = folder
        self.binaries = binaries
        self.port = free_port()
        self.documents: list[Document] = []
        """Of the chart, where it is installed."""
        self._flags = flags
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def admin(self) -> Api:
        """As an administrator."""
        return Api(self.port, {"Authorization": "Bearer admin-token"})

    def user(self, name: str, *groups: str, **extra: str) -> Api:
        """As another user, by impersonation."""
        headers = {"Authorization": "Bearer admin-token", "Impersonate-User": name}
        if groups:
            headers["Impersonate-Group"] = ",".join(groups)
        headers |= {f"Impersonate-Extra-{key}": value for key, value in extra.items()}
        return Api(self.port, headers)

    def account(self, namespace: str, name: str) -> Api:
        """As a service account, by impersonation."""
        return self.user(f"system:serviceaccount:{namespace}:{name}")

    def bearer(self, token: str) -> Api:
        """As the account that the token is of."""
        return Api(self.port, {"Authorization": f"Bearer {token}"})

    def kubeconfig(self, name: str = "admin", token: str = "admin-token", port: int = 0) -> Path:
        """A kubeconfig of the administrator, or of whom the token is; port: of a proxy."""
        path = self.folder / f"{name}{port or ''}.kubeconfig"
        server = {"server": f"https://127.0.0.1:{port or self.port}", "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "users": [{"name": "admin", "user": {"token": token}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(document))
        return path

    def start(self, name: str, *flags: str) -> subprocess.Popen[bytes]:
        """Starts a binary, whose output goes to a log in the folder; it ends with the control plane."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [self.binaries[name], *flags], stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    def running(self) -> dict[str, subprocess.Popen[bytes]]:
        """The binaries that run now, by name."""
        return {Path(str(one.args[0])).name: one for one in self._processes if one.poll() is None}  # type: ignore[index]

    def __enter__(self) -> ControlPlane:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.start(
            "etcd", f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=error",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        )  # fmt: skip
        key, tokens = self.folder / "sa.key", self.folder / "tokens.csv"
        key.write_bytes(
            rsa.generate_private_key(65537, 2048).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        tokens.write_text('admin-token,admin,admin,"system:masters"\n')
        self._server_flags = (
            f"--etcd-servers={client}", "--bind-address=127.0.0.1", f"--secure-port={self.port}",
            "--advertise-address=127.0.0.1", f"--cert-dir={self.folder}", "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", f"--token-auth-file={tokens}", "--allow-privileged=true",
            "--service-cluster-ip-range=10.96.0.0/24", "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount", *self._flags,
        )  # fmt: skip

        self._start_server()

    def restart(self) -> None:
        """Kills the API server, and starts it again on the same data and port."""
        server = self._server
        self._processes.remove(server)
        server.kill()
        server.wait()
        self._start_server()

    def _start_server(self) -> None:
        server = self._server = self.start("kube-apiserver", *self._server_flags)

        def ready() -> bool:
            if server.poll() is not None:
                raise AssertionError((self.folder / "kube-apiserver.log").read_text()[-3000:])
            with contextlib.suppress(OSError, Refused):
                return self.admin.get("/readyz")["message"] == "ok"
            return False

        until(ready, 120)

    @contextlib.contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """A namespace; without a controller manager nothing ever empties it, so the name is used once."""
        self.admin.post("/api/v1/namespaces", {"metadata": {"name": name}})
        yield name


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)
