# SPDX-License-Identifier: Apache-2.0
"""Local mode: one mount per source and credentials, for as long as a volume's record names it."""

import asyncio

import pytest

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.store import Volume, VolumeRecord, VolumeSource
from gigaslice.roles.dataset_node.tasks.local_mounts import LocalMounts
from gigaslice.roles.dataset_node.tasks.threads import Threads
from tests.fakes.mounts import MemoryMounts

NFS = SourceSpec.parse("nfs://server/export")


class Local(LocalMounts):
    def __init__(self, root):
        self.table, self.made, self.threads = MemoryMounts(), [], Threads()
        super().__init__(root / "local", self.table, self._make, threads=self.threads)

    async def _make(self, spec, credentials, below):
        self.made.append((spec.canonical, dict(credentials)))
        await asyncio.sleep(0)
        where = below / "mounted"
        where.mkdir(parents=True)
        self.table.network(spec.kind, f"{spec.server}:{spec.path}", where, ())
        return f"{where}{spec.path}" if spec.kind == "beegfs" else str(where)


@pytest.fixture
def local(tmp_path):
    made = Local(tmp_path)
    yield made
    made.threads.close()


def record(path):
    return {"csi-1": VolumeRecord(Volume("csi-1", "/t", "u", "team", "p"), (VolumeSource(path=path),))}


def attach(local, *asked):
    async def all_of_them():
        try:
            return await asyncio.gather(*(local.attach(spec, secret, "csi-1") for spec, secret in asked))
        finally:
            local.release("csi-1")

    return asyncio.run(all_of_them())


def detach(local, records):
    asyncio.run(local.detach(lambda: records))


def test_a_source_is_mounted_once_for_all_who_may_read_it(local):
    first, second = attach(local, (NFS, {}), (NFS, {}))
    assert first == second and len(local.made) == 1
    (third,) = attach(local, (SourceSpec.parse("nfs://server/export", {"vers": "4.2"}), {}))
    assert third != first, "other options are another mount"


def test_the_mount_of_one_pods_credentials_is_lent_to_no_other(local):
    ceph = SourceSpec.parse("cephfs://mon/data")
    paths = attach(
        local, (ceph, {"userKey": "a"}), (ceph, {"userKey": "b"}), (ceph, {}), (ceph, {"userKey": "a"})
    )
    assert len(set(paths)) == 3 and paths[0] == paths[3]
    assert sorted(secret.get("userKey", "") for _, secret in local.made) == ["", "a", "b"]


def test_it_is_unmounted_when_no_record_names_it(local):
    (path,) = attach(local, (NFS, {}))
    detach(local, record(path))
    assert [one.point for one in local.table.mounts] == [path]
    detach(local, record(f"{path}/below"))
    assert local.table.mounts
    detach(local, {})
    assert not local.table.mounts
    (again,) = attach(local, (NFS, {}))
    assert again == path and len(local.made) == 2


def test_a_path_below_a_mount_is_the_same_when_it_is_mounted_already(local):
    beegfs = SourceSpec.parse("beegfs://manager/data")
    first, second = attach(local, (beegfs, {}), (beegfs, {}))
    assert first == second and first.endswith("/data")


def test_a_directory_of_the_node_is_itself(local, tmp_path):
    (tmp_path / "data").mkdir()
    assert attach(local, (SourceSpec.parse(str(tmp_path / "data")), {})) == [str(tmp_path / "data")]
    with pytest.raises(SourceError, match="is no directory of this node"):
        attach(local, (SourceSpec.parse(str(tmp_path / "none")), {}))


def test_what_a_task_has_attached_stays_until_it_is_released(local):
    async def story():
        path = await local.attach(NFS, {}, "csi-1")
        assert await local.attach(NFS, {}, "csi-2") == path
        local.release("csi-2")
        await local.detach(dict)
        assert [one.point for one in local.table.mounts] == [path], "the task of csi-1 is about to bind it"
        local.release("csi-1")
        await local.detach(lambda: record(path))
        assert local.table.mounts
        await local.detach(dict)
        assert not local.table.mounts and local._locks == {}

    asyncio.run(story())


def test_what_is_attached_while_it_is_unmounted_is_mounted_again(local):
    async def story():
        path = await local.attach(NFS, {}, "csi-1")
        local.release("csi-1")
        again = []

        def records():  # in the thread that is about to unmount
            again.append(asyncio.run_coroutine_threadsafe(local.attach(NFS, {}, "csi-2"), loop))
            return {}

        loop = asyncio.get_running_loop()
        await local.detach(records)
        assert await asyncio.wrap_future(again[0]) == path
        assert [one.point for one in local.table.mounts] == [path] and len(local.made) == 2

    asyncio.run(story())


def test_a_server_that_does_not_answer_holds_up_no_other_source(local):
    async def story():
        dead, never = SourceSpec.parse("nfs://dead/export"), asyncio.Event()
        real = local._mount_source

        async def mount(spec, credentials, below):
            if spec is dead:
                await never.wait()
            return await real(spec, credentials, below)

        local._mount_source = mount
        waiting = asyncio.ensure_future(local.attach(dead, {}, "csi-1"))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(local.attach(NFS, {}, "csi-2"), 5)
        await asyncio.wait_for(local.detach(dict), 5)
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(story())
