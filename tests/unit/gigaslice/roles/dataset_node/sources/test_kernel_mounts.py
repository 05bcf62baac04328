# SPDX-License-Identifier: Apache-2.0
"""Sources that the kernel mounts: which options, one mount for many, and what is left of them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.mounts import MountEntry, MountError
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.kernel_mounts import KernelMounts, nfs_options
from gigaslice.roles.dataset_node.sources.opening import open_source


class RecordedMounts:
    """Notes what is mounted, and puts a file there."""

    def __init__(self):
        self.calls = []
        self.mounted = []
        self.refuse = lambda options: False
        self.secrets = []

    def network(self, kind, source, where, options):
        self.calls.append((kind, source, list(options)))
        for one in options:
            if one.startswith("secretfile="):
                self.secrets.append(Path(one.partition("=")[2]).read_text())
        if self.refuse(options):
            raise MountError("Connection refused")
        self.mounted.append(where)
        (where / "sub").mkdir(exist_ok=True)
        (where / "sub/file").write_text("data")

    def unmount(self, where):
        self.mounted.remove(where)
        (where / "sub/file").unlink()
        (where / "sub").rmdir()


@pytest.fixture
def mounts():
    return RecordedMounts()


def opened(mounts, root, text, options=None, credentials=None, **places):
    async def run():
        made = KernelMounts(mounts, root, local=True, **places)
        sources = [
            await open_source(SourceSpec.parse(text, options or {}), credentials or {}, mounts=made)
            for _ in range(2)
        ]
        paths = [[entry.path for entry in (await one.list()).entries] for one in sources]
        assert paths[0] == paths[1]
        assert len(mounts.mounted) == 1
        await sources[0].close()
        assert len(mounts.mounted) == 1, "the other one still reads"
        await sources[1].close()
        assert not mounts.mounted
        return paths[0]

    return asyncio.run(run())


def test_two_of_one_server_share_a_mount_that_goes_with_the_last(mounts, tmp_path):
    assert opened(mounts, tmp_path / "m", "nfs://server/export/set") == [b"sub", b"sub/file"]
    assert len(mounts.calls) == 1
    kind, source, options = mounts.calls[0]
    assert (kind, source) == ("nfs", "server:/export/set")
    assert {"proto=tcp", "soft", "nconnect=8"} <= set(options)
    assert list((tmp_path / "m").iterdir()) == []


def test_a_mount_is_lent_to_no_pod_with_other_credentials(mounts, tmp_path):
    """Ceph asks for the key when it mounts, and never again: a pod with a wrong one must be asked, too."""
    made = KernelMounts(mounts, tmp_path / "m", local=True)
    spec = SourceSpec.parse("cephfs://mon/data")
    mine = made.acquire(spec, Credentials({"userID": "a", "userKey": "right"}))[0]
    mounts.refuse = lambda options: mounts.secrets[-1] != "right"
    for key in ("wrong", "right "):
        with pytest.raises(SourceError, match="is not mounted"):
            made.acquire(spec, Credentials({"userID": "a", "userKey": key + "x"}))
    assert mounts.mounted == [mine]
    assert made.acquire(spec, Credentials({"userID": "a", "userKey": "right"}))[0] == mine
    assert "right" not in str(mine)
    other = KernelMounts(mounts, tmp_path / "m", local=True)
    assert other.acquire(spec, Credentials({"userID": "a", "userKey": "right"}))[0] != mine, (
        "no key is guessed by it"
    )


@pytest.mark.parametrize(
    ("text", "kind", "source"),
    [
        ("lustre://10.0.0.1@tcp/fs/set", "lustre", "10.0.0.1@tcp:/fs/set"),
        ("cephfs://mon1,mon2/set", "ceph", "mon1,mon2:/set"),
    ],
)
def test_other_kinds(mounts, tmp_path, text, kind, source):
    opened(mounts, tmp_path, text)
    assert mounts.calls[0][:2] == (kind, source)


def test_a_path_of_beegfs_is_below_its_mount(mounts, tmp_path):
    assert opened(mounts, tmp_path, "beegfs://manager/sub") == [b"file"]
    assert "sysMgmtdHost=manager" in mounts.calls[0][2]
    with pytest.raises(RequestError, match="cfgfile"):
        opened(mounts, tmp_path, "beegfs://manager/sub", {"cfgfile": "/etc/shadow"})


def test_a_secret_of_ceph_is_in_no_option(mounts, tmp_path):
    opened(mounts, tmp_path, "cephfs://mon/set", credentials={"userID": "me", "userKey": "AQBsecret=="})
    assert mounts.secrets == ["AQBsecret=="]
    assert "AQBsecret" not in str(mounts.calls)
    assert "name=me" in mounts.calls[0][2]


def test_rdma_is_used_where_it_is_asked_for_and_there():
    spec = SourceSpec.parse("nfs://server/x", {"proto": "rdma", "vers": "4.2"})
    first, second = nfs_options(spec, rdma=True)
    assert {"proto=rdma", "port=20049", "vers=4.2"} <= set(first)
    assert not any(one.startswith("nconnect") for one in first)
    assert "proto=tcp" in second
    assert "port=20049" not in second
    assert [one[0] for one in nfs_options(spec, rdma=False)] == ["proto=tcp"]
    assert [one[0] for one in nfs_options(SourceSpec.parse("nfs://server/x"), rdma=True)] == ["proto=tcp"]
    with pytest.raises(RequestError, match="proto"):
        nfs_options(SourceSpec.parse("nfs://server/x", {"proto": "udp"}), rdma=True)


def test_without_an_answer_over_rdma_it_is_tcp(mounts, tmp_path):
    (tmp_path / "infiniband/mlx5_0").mkdir(parents=True)
    mounts.refuse = lambda options: "proto=rdma" in options
    devices = tmp_path / "infiniband"
    opened(mounts, tmp_path / "m", "nfs://server/x", {"proto": "rdma"}, rdma_devices=devices)
    assert [options[0] for _, _, options in mounts.calls] == ["proto=rdma", "proto=tcp"]


def test_what_cannot_be_mounted_is_a_text_and_leaves_nothing(mounts, tmp_path):
    mounts.refuse = lambda options: True
    with pytest.raises(SourceError, match="nfs://server/x is not mounted: Connection refused"):
        opened(mounts, tmp_path / "m", "nfs://server/x")
    assert list((tmp_path / "m").iterdir()) == []


def test_options_cannot_smuggle_others(mounts, tmp_path):
    with pytest.raises(RequestError):
        opened(mounts, tmp_path, "nfs://server/x", {"sec": "sys suid"})


def test_texts_of_credentials_show_no_value():
    found = Credentials({"access_key": "AKIAAA", "secretKey": "hunter2"})
    assert "hunter2" not in repr(found)
    assert "AKIAAA" not in f"{found}"
    assert (found.get("access_key"), found.get("secret_key")) == ("AKIAAA", "hunter2")
    with pytest.raises(TypeError):
        __import__("pickle").dumps(found)
    with pytest.raises(RequestError, match="twice") as failure:
        Credentials({"secret_key": "one-value", "secretKey": "another"})
    assert "one-value" not in str(failure.value)


@pytest.mark.parametrize(
    "key", ["access_key", "accessKey", "AWS_ACCESS_KEY_ID", "access-key-id", "accesskey", "ACCESS_KEY"]
)
def test_usual_names_of_keys(key):
    assert Credentials({key: " value\n"}).get("access_key") == "value"


@pytest.mark.parametrize("options", [{"hard": "true"}, {"soft": "false"}, {"hard": "1", "soft": "true"}])
def test_an_nfs_mount_is_soft_whatever_a_pod_asks_for(options):
    with pytest.raises(RequestError, match="leave hard and soft out"):
        nfs_options(SourceSpec.parse("nfs://server/export", options), rdma=False)


def test_an_nfs_mount_may_be_asked_to_be_soft():
    (chosen,) = nfs_options(
        SourceSpec.parse("nfs://server/export", {"soft": "true", "hard": "false"}), rdma=False
    )
    assert "soft" in chosen and "hard" not in chosen


def test_a_server_that_does_not_answer_delays_the_mounts_of_no_other(mounts, tmp_path):
    made, gone = KernelMounts(mounts, tmp_path, local=True), threading.Event()
    real = mounts.network

    def network(kind, source, where, options):
        if source.startswith("dead"):
            gone.wait(20)
        real(kind, source, where, options)

    mounts.network = network
    none = Credentials({})
    with ThreadPoolExecutor(2) as pool:
        try:
            dead = pool.submit(made.acquire, SourceSpec.parse("nfs://dead/export"), none)
            where, _ = pool.submit(made.acquire, SourceSpec.parse("nfs://server/export"), none).result(5)
            pool.submit(made.release, where).result(5)
            assert not dead.done()
        finally:
            gone.set()
        made.release(dead.result(5)[0])
    assert not mounts.mounted


def test_what_an_earlier_process_has_left_is_unmounted_and_nothing_else(tmp_path):
    """The last one first: several may stand at one point."""
    here, other = tmp_path / "sources", tmp_path / "sources2"
    points = [here / "a", other / "b", here, here / "a" / "below", here / "c", here / "a"]
    table = [
        MountEntry(number, "0:1", "/", str(one), frozenset(), "nfs", "s:/x")
        for number, one in enumerate(points)
    ]
    mounts = RecordedMounts()
    mounts.table = lambda: tuple(table)
    gone = []

    def unmount(where):
        gone.append(where)
        if where == here / "c":
            raise MountError("busy")

    mounts.unmount = unmount
    KernelMounts(mounts, here, local=True).reconcile()
    assert gone == [here / "a", here / "c", here / "a"]
