# SPDX-License-Identifier: Apache-2.0
"""Servers whose names mount(8) and rclone would resolve again are named by checked addresses."""

from __future__ import annotations

import socket

import pytest

from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources import addresses
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.kernel_mounts import KernelMounts, checked_servers
from gigaslice.roles.dataset_node.sources.rclone_remote import RcloneRemote, remote_of

NAMES = {
    "store": ["10.1.2.3"],
    "two": ["169.254.169.254", "10.1.2.4"],
    "six": ["fd12::7"],
    "both": ["fd12::8", "10.1.2.5"],
    "node": ["127.0.0.1"],
    "metadata": ["fd20:ce::254"],
}


@pytest.fixture(autouse=True)
def _names(monkeypatch):
    def found(host, port, **_):
        listed = NAMES.get(host) or [host]
        if not listed[0][0].isdigit() and ":" not in listed[0]:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (one, port)) for one in listed]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("nfs://store/export", "10.1.2.3"),
        ("nfs://two/export", "10.1.2.4"),
        ("nfs://six/export", "[fd12::7]"),
        ("nfs://[fd12::9]/export", "[fd12::9]"),
        ("beegfs://store/x", "10.1.2.3"),
        ("cephfs://store,six,10.9.9.9:6789,[fd12::9]:6789,store:3300/x",
         "10.1.2.3,[fd12::7],10.9.9.9:6789,[fd12::9]:6789,10.1.2.3:3300"),
        ("lustre://10.0.0.1@tcp/fs", "10.0.0.1@tcp"),
        ("lustre://store@tcp1:two@o2ib/fs", "10.1.2.3@tcp1:10.1.2.4@o2ib"),
        ("lustre://store,two/fs", "10.1.2.3,10.1.2.4"),
        ("lustre://store:10.0.0.9/fs", "10.1.2.3:10.0.0.9"),
        ("lustre://12@gni/fs", "12@gni"),
    ],
)  # fmt: skip
def test_names_become_checked_addresses(text, servers):
    assert checked_servers(SourceSpec.parse(text)) == servers


@pytest.mark.parametrize("text", [
    "nfs://node/export", "nfs://127.0.0.1/export", "nfs://[::1]/export", "nfs://metadata/x", "beegfs://node/x",
    "cephfs://store,node/x", "lustre://store@tcp:node@tcp/fs", "lustre://169.254.169.254@tcp/fs", "lustre://store,node/fs",
])  # fmt: skip
def test_the_node_is_no_server(text):
    with pytest.raises(SourceError, match="--local-addresses on"):
        checked_servers(SourceSpec.parse(text))


def test_a_name_that_kerberos_proves_stays_and_is_checked():
    assert checked_servers(SourceSpec.parse("nfs://store/export", {"sec": "krb5p"})) == "store"
    with pytest.raises(SourceError):
        checked_servers(SourceSpec.parse("nfs://node/export", {"sec": "krb5p"}))


class Mounts:
    def __init__(self):
        self.sources = []

    def network(self, kind, source, where, options):
        self.sources.append((source, [one for one in options if "Host" in one]))


@pytest.mark.parametrize(("local", "server"), [(False, "10.1.2.3"), (True, "store")])
def test_what_is_mounted_is_the_address_unless_all_are_allowed(tmp_path, local, server):
    mounts = Mounts()
    made = KernelMounts(mounts, tmp_path, local=local)
    for text in ("nfs://store/export", "cephfs://store/x", "lustre://store@tcp/fs", "beegfs://store/x"):
        made.acquire(SourceSpec.parse(text), Credentials({}))
    nfs, ceph, lustre, beegfs = mounts.sources
    assert (nfs[0], ceph[0], lustre[0]) == (f"{server}:/export", f"{server}:/x", f"{server}@tcp:/fs")
    assert beegfs[1] == [f"sysMgmtdHost={server}"]


def test_nothing_is_mounted_of_the_node(tmp_path):
    mounts = Mounts()
    with pytest.raises(SourceError, match="--local-addresses on"):
        KernelMounts(mounts, tmp_path, local=False).acquire(SourceSpec.parse("nfs://node/x"), Credentials({}))
    assert not mounts.sources


def environment(remote: RcloneRemote, proxy: str = "") -> dict[str, str]:
    names = remote.environment(lambda secret: f"obscured {secret}", proxy)
    return {name.removeprefix("RCLONE_CONFIG_SOURCE_"): value for name, value in names.items()}


def test_rclone_gets_addresses_where_it_takes_no_proxy():
    smb = remote_of(SourceSpec.parse("smb://both:445/share"), Credentials({"username": "u", "password": "p"}))
    assert environment(smb.at_checked_addresses())["HOST"] == "10.1.2.5"
    hdfs = remote_of(SourceSpec.parse("hdfs://store:8020/x"), Credentials({}))
    assert environment(hdfs.at_checked_addresses())["NAMENODE"] == "10.1.2.3:8020"
    described = Credentials({"type": "hdfs", "namenode": "two:8020, six:9000"})
    several = remote_of(SourceSpec.parse("rclone:h:x"), described)
    assert environment(several.at_checked_addresses())["NAMENODE"] == "10.1.2.4:8020,[fd12::7]:9000"
    assert smb.at_checked_addresses().proxy_flag == hdfs.proxy_flag == ""


def test_rclone_keeps_the_name_where_the_proxy_connects_for_it():
    """TLS needs it."""
    for kind, flag in (("sftp", "--sftp-http-proxy"), ("ftp", "--ftp-http-proxy")):
        remote = remote_of(
            SourceSpec.parse(f"{kind}://store/x"), Credentials({"username": "u", "password": "p"})
        )
        found = environment(remote.at_checked_addresses(), "http://proxy")
        assert (remote.proxy_flag, found["HOST"], found["HTTP_PROXY"]) == (flag, "store", "http://proxy")
        assert "HTTP_PROXY" not in environment(remote)
    web = remote_of(SourceSpec.parse("webdavs://store/x"), Credentials({}))
    assert web.proxy_flag == "--http-proxy"
    assert environment(web.at_checked_addresses())["URL"] == "https://store/"


@pytest.mark.parametrize("secret", [
    {"type": "smb", "host": "node"}, {"type": "http", "url": "http://metadata/"},
    {"type": "s3", "endpoint": "node:9000"},
    {"type": "swift", "auth": "https://127.0.0.1/v1"}, {"type": "hdfs", "namenode": "store:8020,node:8020"},
    {"type": "sftp", "host": "::1"},
])  # fmt: skip
def test_a_remote_at_the_node_is_refused_at_once(secret):
    remote = remote_of(SourceSpec.parse("rclone:r:x"), Credentials(secret))
    with pytest.raises(SourceError):
        remote.at_checked_addresses()


def test_a_server_that_is_no_address_is_a_mistake():
    for secret in NO_ADDRESSES:
        with pytest.raises(RequestError, match=r"is no address; write it as|is no number"):
            remote_of(SourceSpec.parse("rclone:r:x"), Credentials(secret))


NO_ADDRESSES = [
    {"type": "http", "url": "http://store:x/"},
    {"type": "http", "url": "http://store\\@node/"},
    {"type": "http", "url": "http://u:p@store/"},
    {"type": "http", "url": "file:///etc"},
    {"type": "http", "url": "store"},
    {"type": "webdav", "url": "http://store%2f@node/"},
    {"type": "s3", "endpoint": "store%40node:9000"},
    {"type": "s3", "endpoint": "127.1:9000"},
    {"type": "swift", "auth": "https://store#@node/v1"},
    {"type": "hdfs", "namenode": "store:8020,node\\x:8020"},
    {"type": "sftp", "host": "store:22"},
    {"type": "smb", "host": "store\\node"},
    {"type": "sftp", "host": "store", "port": "22@node"},
]


def test_addresses_of_ipv6_are_servers_of_every_kind():
    web = remote_of(SourceSpec.parse("webdav://[fd12::9]:81/x"), Credentials({}))
    assert environment(web)["URL"] == "http://[fd12::9]:81/"
    shell = remote_of(SourceSpec.parse("sftp://[fd12::9]:2222/x"), Credentials({"username": "u"}))
    assert (environment(shell)["HOST"], environment(shell)["PORT"]) == ("fd12::9", "2222")
    nameless = SourceSpec("sftp", "[fd12::9/x")
    with pytest.raises(RequestError, match="has no server"):
        remote_of(nameless, Credentials({"username": "u"}))
