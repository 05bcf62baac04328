# SPDX-License-Identifier: Apache-2.0
"""Storage that the kernel mounts: NFS, Lustre, BeeGFS, CephFS. Mounted once, read as a directory, unmounted after.

Everything that is asked of one server and path with the same credentials shares a mount: what is mounted with the key
of one pod is lent to no other, which would not have to show its own then. Mounts are soft, so that a server which is
gone becomes an error after a minute instead of a thread that nothing ends; a read-only mount loses nothing by that.
RDMA is tried only where it was asked for and the node has a device; else, and where the server does not take it, NFS
goes over TCP, which a log line says.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.mounts import MountError, Mounts
from gigaslice.roles.dataset_node.sources.addresses import checked_addresses
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.runtime.keyed_locks import KeyedLocks
from gigaslice.runtime.logs import get_logger

__all__ = ["KernelMounts", "checked_servers", "nfs_options"]

_RDMA_PORT = "20049"
_FLAGS = frozenset(("hard", "soft", "nolock", "noatime", "flock", "noflock", "localflock"))
_VALUE = re.compile(r"[A-Za-z0-9._:/@\[\]-]{1,128}")
_NID = re.compile(r"(?P<colon>:?)(?P<name>[^,@]+)@(?P<network>[A-Za-z0-9]+)|[^,@:]+")  # of Lustre
_BEEGFS = "/etc/beegfs/beegfs-client.conf"


class KernelMounts:
    """The mounts of sources below ROOT.

    Args:
        mounts: The node's.
        root: A directory of ours; each mount is a directory in it.
        local: Whether servers may be at addresses of the node.
        rdma_devices: Where the kernel shows them.
    """

    def __init__(
        self,
        mounts: Mounts,
        root: Path,
        *,
        local: bool,
        rdma_devices: Path = Path("/sys/class/infiniband"),
    ) -> None:
        self._local = local
        self._rdma_devices = rdma_devices
        self._mounts = mounts
        self._root = root
        self._locks = KeyedLocks()  # one for each mount: a server that is gone holds up its own alone
        self._users: dict[Path, int] = {}
        self._salt = os.urandom(16)
        self._log = get_logger("sources")

    def reconcile(self) -> None:
        """Unmounts what an earlier process has left. Blocking; before anything is acquired."""
        for mount in reversed(self._mounts.table()):
            if Path(mount.point).parent == self._root:
                with contextlib.suppress(MountError):
                    self._mounts.unmount(Path(mount.point))

    def acquire(self, spec: SourceSpec, credentials: Credentials) -> tuple[Path, Path]:
        """Mounts a source, unless it is. Blocking.

        Returns:
            Where it is mounted, which is what `release` takes; and the directory of the dataset.

        Raises:
            SourceError: It cannot be mounted.
            RequestError: An option that cannot be one.
        """
        where = self._root / self._name(spec, credentials)
        with self._locks.held(where):
            if not self._users.get(where):
                self._mount(spec, credentials, where)
            self._users[where] = self._users.get(where, 0) + 1
        return where, where / spec.path.lstrip("/") if spec.kind == "beegfs" else where

    def release(self, where: Path) -> None:
        """Unmounts what no source uses any more. Blocking."""
        with self._locks.held(where):
            left = self._users.pop(where) - 1
            if left:
                self._users[where] = left
                return
            try:
                self._mounts.unmount(where)
                where.rmdir()
            except (MountError, OSError) as error:
                self._log.warning("source not unmounted", where=str(where), detail=str(error))

    def _name(self, spec: SourceSpec, credentials: Credentials) -> str:
        """The directory of a mount: another one for other credentials, of which it shows nothing."""
        given = (
            [credentials.get(name) for name in ("ceph_user", "ceph_secret")] if spec.kind == "cephfs" else []
        )
        digest = hasher(self._salt)
        digest.update(repr((spec.kind, spec.location, spec.options, given)).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:32]

    def _mount(self, spec: SourceSpec, credentials: Credentials, where: Path) -> None:
        try:
            where.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SourceError(
                f"{where} cannot be made: {error.strerror}; look after the state directory"
            ) from None
        servers = spec.server if self._local else checked_servers(spec)
        with _arguments(spec, servers, credentials, rdma=_has_any(self._rdma_devices)) as (
            kind,
            source,
            attempts,
        ):
            failure: MountError | None = None
            for options in attempts:
                try:
                    self._mounts.network(kind, source, where, options)
                except MountError as error:
                    failure = error
                else:
                    if failure is not None:
                        self._log.warning(
                            "mounted over TCP instead of RDMA", source=spec.canonical, detail=str(failure)
                        )
                    return
        with contextlib.suppress(OSError):
            where.rmdir()
        raise SourceError(f"{spec.canonical} is not mounted: {failure}", retry=True)


def _has_any(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False


@contextlib.contextmanager
def _arguments(
    spec: SourceSpec, servers: str, credentials: Credentials, *, rdma: bool
) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Kind, source and the lists of options to try for mount(8)."""
    given = _given(spec)
    if spec.kind == "nfs":
        yield "nfs", f"{servers}:{spec.path}", nfs_options(spec, given, rdma=rdma)
    elif spec.kind == "lustre":
        yield "lustre", f"{servers}:{spec.path}", [_listed(given)]
    elif spec.kind == "beegfs":
        config = given.pop("cfgfile", _BEEGFS)
        if Path(config).parent != Path(_BEEGFS).parent:
            raise RequestError(
                f"option cfgfile of a beegfs source must name a file in {Path(_BEEGFS).parent}"
            )
        yield "beegfs", "beegfs_nodev", [[f"cfgFile={config}", f"sysMgmtdHost={servers}", *_port(given)]]
    else:
        with _secret_file(credentials.get("ceph_secret")) as secret:
            user = credentials.get("ceph_user") or "guest"
            if not _VALUE.fullmatch(user):
                raise RequestError("the Secret's Ceph user has characters that a user cannot have")
            yield "ceph", f"{servers}:{spec.path}", [[f"name={user}", *secret, *_listed(given)]]


def checked_servers(spec: SourceSpec) -> str:
    """The servers of SPEC by checked addresses in place of their names, which mount(8) would resolve again.

    A name that Kerberos proves stays: no other server can answer for it. To which servers a cluster's own answers lead
    the kernel afterwards is the cluster's to say.

    Raises:
        SourceError: One may not be used, or cannot be resolved.
    """
    if spec.kind == "lustre":
        return _NID.sub(_checked_nid, spec.server)
    if spec.kind == "cephfs":
        return ",".join(_with_port(server) for server in spec.server.split(","))
    address = _address(spec.server.strip("[]"))
    if spec.kind == "nfs":
        return spec.server if spec.option("sec").startswith("krb5") else _bracketed(address)
    return address


def _checked_nid(nid: re.Match[str]) -> str:
    colon, name, network = nid["colon"] or "", nid["name"] or nid[0], nid["network"]
    if network and not re.fullmatch(r"(tcp|o2ib)[0-9]*", network):
        return nid[0]  # no address of IP
    return f"{colon}{_address(name)}{f'@{network}' if network else ''}"


def _with_port(server: str) -> str:
    name, colon, port = (
        server.rpartition(":") if re.search(r"[^:]:[0-9]+\Z|\]:[0-9]+\Z", server) else (server, "", "")
    )
    return f"{_bracketed(_address(name.strip('[]')))}{colon}{port}"


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _address(server: str) -> str:
    return checked_addresses(server, 0)[0]


def nfs_options(spec: SourceSpec, given: dict[str, str] | None = None, *, rdma: bool) -> list[list[str]]:
    """The options of an NFS mount, best first.

    Args:
        spec: The source.
        given: Its options, when they are known.
        rdma: Whether the node has a device for it.
    """
    options = dict(_given(spec) if given is None else given)
    asked = options.pop("proto", "tcp")
    if asked not in ("tcp", "rdma"):
        raise RequestError(f"option proto of an nfs source is {asked!r}; write tcp or rdma")
    if options.pop("hard", "false") != "false" or options.pop("soft", "true") != "true":
        raise RequestError(
            "an nfs source is mounted soft: with a hard mount a server that is gone would hold its readers for ever; "
            "leave hard and soft out"
        )
    options["soft"] = "true"
    for name, usual in (("timeo", "150"), ("retrans", "3"), ("nconnect", "8"), ("nolock", "true")):
        options.setdefault(name, usual)
    tcp = ["proto=tcp", *_listed(options)]
    if asked == "tcp":
        return [tcp]
    if not rdma:
        get_logger("sources").warning("no RDMA device on this node; mounting over TCP", source=spec.canonical)
        return [tcp]
    by_rdma = {name: value for name, value in options.items() if name != "nconnect"}
    by_rdma.setdefault("port", _RDMA_PORT)
    without_port = {name: value for name, value in options.items() if name != "port"}
    return [["proto=rdma", *_listed(by_rdma)], ["proto=tcp", *_listed(without_port)]]


def _given(spec: SourceSpec) -> dict[str, str]:
    options = {name: value for name, value in spec.options if name != "fetchers"}
    for name, value in options.items():
        if not _VALUE.fullmatch(value):
            raise RequestError(
                f"option {name} of a {spec.kind} source has characters that no mount option has"
            )
    return options


def _listed(options: dict[str, str]) -> list[str]:
    return [
        name if name in _FLAGS else f"{name}={value}"
        for name, value in sorted(options.items())
        if not (name in _FLAGS and value == "false")
    ]


def _port(options: dict[str, str]) -> list[str]:
    return [f"connMgmtdPort={options['port']}"] if "port" in options else []


@contextlib.contextmanager
def _secret_file(secret: str) -> Iterator[list[str]]:
    """An option that names a file with SECRET, in memory: in the option itself every process would see it."""
    if not secret:
        yield []
        return
    fd = os.memfd_create("ceph", os.MFD_CLOEXEC)
    try:
        os.write(fd, secret.encode())
        yield [f"secretfile=/proc/{os.getpid()}/fd/{fd}"]
    finally:
        os.close(fd)
