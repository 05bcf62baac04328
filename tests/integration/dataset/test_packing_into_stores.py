# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset pack` from and into object stores, against servers that are not ours."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
from obstore.exceptions import PermissionDeniedError

from gigaslice.core.dataset.errors import CacheFullError, DatasetError, ImageError, RequestError, SourceError
from gigaslice.core.dataset.image import plan
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node import packing
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.packing import (
    RemoteLocation,
    check_pack,
    image_file,
    make_pack,
    object_store_target,
)
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.opening import open_source
from gigaslice_cli import frame
from tests.fakes.dataset_layout import PartFiles
from tests.fakes.hostile_files import HostileFiles
from tests.fakes.storage_servers import KEY, SECRET, moto_s3, put
from tests.integration.dataset.pack_stores import SECRETS, at, client, objects, scratch, small_parts, uploads

__all__ = ["scratch", "small_parts"]  # fixtures

FILES = {f"set/{i % 7}/file {i}": os.urandom(20_000 + i) for i in range(400)} | {
    "set/large": os.urandom(9 << 20),
    "set/small": b"small",
    "set/empty": b"",
}


@pytest.fixture(scope="module")
def moto():
    with moto_s3() as endpoint:
        put(endpoint, "raw", FILES)
        put(endpoint, "packs", {})
        yield endpoint


@pytest.fixture
def prefix(request):
    """A place of the test's own in the bucket of packs."""
    return f"s3://packs/{request.node.name.replace('[', '-').replace(']', '').replace(' ', '-')}"


def forms(found):
    return sorted(name.rpartition(".")[2] for name in found)


def fetched(endpoint, where, directory, secrets=SECRETS):
    """Fetches a pack as a node does. The digest of the image."""

    async def run():
        spec = SourceSpec.parse(where, {"endpoint": endpoint})
        source = await open_source(spec, secrets, mounts=None, local_addresses=True)
        try:
            listing = await source.list()
            assert source.image is not None, "the node does not see a pack"
            layout = plan(listing)
            part = PartFiles.begin(directory, layout.size)
            return await fetch(layout, listing, source, part, bounds=FetchLimits())
        finally:
            await source.close()

    return asyncio.run(run())


def test_a_pack_from_bucket_to_bucket_is_what_a_node_fetches(moto, tmp_path, scratch, prefix):
    told = []
    made = make_pack(
        at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch, progress=lambda *one: told.append(one)
    )
    assert forms(objects(moto, prefix)) == ["img", "json", "listing"]
    assert uploads(moto) == [] and list(scratch.iterdir()) == []
    assert {what for what, _, _ in told} >= {"hashed", "uploaded"}
    assert told[-1] == ("uploaded", made.size, made.size)
    head = client(moto).head_object(Bucket="packs", Key=f"{prefix.removeprefix('s3://packs/')}/{made.image}")
    assert head["ETag"].endswith('-4"'), "the image went up in one part"

    local = make_pack(at(moto, "s3://raw/set"), tmp_path / "directory")
    assert (local.image_digest, local.listing_digest) == (made.image_digest, made.listing_digest)
    assert fetched(moto, prefix, tmp_path) == made.image_digest
    image = (tmp_path / "directory" / local.image).read_bytes()
    assert (tmp_path / "part.img").read_bytes() == image
    assert check_pack(at(moto, prefix), at(moto, "s3://raw/set")) == made


def test_a_directory_into_a_bucket(moto, tmp_path, scratch, prefix):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_bytes(b"content" * 1000)
    made = make_pack(tmp_path / "source", at(moto, prefix), scratch=scratch)
    assert made.image_digest == make_pack(tmp_path / "source", tmp_path / "local").image_digest
    assert made.source == str(tmp_path / "source")
    assert fetched(moto, prefix, tmp_path) == made.image_digest


def test_a_web_server_into_a_bucket(moto, tmp_path, scratch, prefix):
    server = HostileFiles()
    server.files = {f"/data/{name}": body for name, body in FILES.items()}
    server.index()
    source = RemoteLocation(SourceSpec.parse(f"http://127.0.0.1:{server.port}/data"), Credentials({}))
    try:
        made = make_pack(source, at(moto, prefix), scratch=scratch)
    finally:
        server.close()
    assert made.files == len(FILES) and made.source == f"http://127.0.0.1:{server.port}/data"
    assert fetched(moto, prefix, tmp_path) == made.image_digest


def test_a_pack_on_a_web_server_is_checked_as_nodes_read_it(tmp_path, moto, scratch, prefix):
    made = make_pack(at(moto, "s3://raw/set"), tmp_path / "pack")
    server = HostileFiles()
    server.files = {f"/p/{one.name}": one.read_bytes() for one in (tmp_path / "pack").iterdir()}
    where = RemoteLocation(SourceSpec.parse(f"http://127.0.0.1:{server.port}/p"), Credentials({}))
    try:
        assert check_pack(where, at(moto, "s3://raw/set")) == made
        with pytest.raises(RequestError, match="is a pack already"):
            make_pack(where, at(moto, prefix), scratch=scratch)
        data = bytearray(server.files[f"/p/{made.image}"])
        data[5000] ^= 1
        server.files[f"/p/{made.image}"] = bytes(data)
        with pytest.raises(ImageError, match="differs from its manifest"):
            check_pack(where)
    finally:
        server.close()


def without_progress(err: str) -> list[str]:
    """The lines on standard error but those of a step that takes longer than some seconds."""
    told = r", [0-9]+ s( left)?$|: (read|hashed|uploaded|checked) \S+ \w+ of \S+ \w+"
    return [line for line in err.splitlines() if not re.search(told, line)]


def test_the_command_takes_its_credentials_from_the_environment(moto, scratch, prefix, monkeypatch, capfd):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto)
    monkeypatch.setenv("TMPDIR", str(scratch))
    assert frame.main(["dataset", "pack", "s3://raw/set", prefix]) == 0
    assert frame.main(["dataset", "pack", "--check", "s3://raw/set", prefix]) == 0
    assert frame.main(["dataset", "pack", "s3://raw/set/0", prefix]) == 1
    assert frame.main(["dataset", "pack", "s3://raw/none", prefix]) == 1
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert frame.main(["dataset", "pack", "s3://raw/set", prefix]) == 1
    out, err = capfd.readouterr()
    assert [line.partition(": ")[0] for line in out.splitlines()] == [prefix, prefix]
    lines = without_progress(err)
    assert "--force replaces it" in lines[0] and "has nothing at" in lines[1]
    assert lines[2].startswith(
        "gigaslice dataset pack: error: the environment has only one of access_key and secret_key"
    )
    assert len(lines) == 3
    assert KEY not in out + err and SECRET not in out + err


def test_the_command_says_where_the_image_is_made_unless_the_user_has(
    moto, scratch, prefix, monkeypatch, capfd
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(packing, "SCRATCH", scratch)
    assert frame.main(["dataset", "pack", "s3://raw/set", prefix]) == 0
    (line,) = without_progress(capfd.readouterr().err)
    assert line.startswith(f"gigaslice dataset pack: the image is made in {scratch}/gigaslice-pack-")
    assert frame.main(["dataset", "pack", "s3://raw/set", f"{prefix}-2", "--scratch", str(scratch)]) == 0
    assert not without_progress(capfd.readouterr().err)


def test_a_pack_that_is_there_is_left_alone(moto, scratch, prefix, monkeypatch):
    made = make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch)
    with monkeypatch.context() as patched:
        patched.setattr(
            object_store_target.obstore, "put", lambda *_, **__: pytest.fail("something is written")
        )
        assert make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch) == made
    key = f"{prefix.removeprefix('s3://packs/')}/{made.image}"
    client(moto).delete_object(Bucket="packs", Key=key)
    assert make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch) == made
    assert check_pack(at(moto, prefix)) == made


def test_another_pack_replaces_one_only_by_force(moto, scratch, prefix):
    put(moto, "changing", {"set/a": b"one"})
    old = make_pack(at(moto, "s3://changing/set"), at(moto, prefix), scratch=scratch)
    put(moto, "changing", {"set/a": b"three", "set/b": b"b"})
    put(moto, "packs", {f"{prefix.removeprefix('s3://packs/')}/README.img": b"a user's"})
    with pytest.raises(RequestError, match=r"1 files.*2 files.*--force"):
        make_pack(at(moto, "s3://changing/set"), at(moto, prefix), scratch=scratch)
    assert check_pack(at(moto, prefix)) == old
    with pytest.raises(ImageError, match="has changed since"):
        check_pack(at(moto, prefix), at(moto, "s3://changing/set"))
    new = make_pack(at(moto, "s3://changing/set"), at(moto, prefix), force=True, scratch=scratch)
    assert set(objects(moto, prefix)) == {"README.img", "dataset.json", new.image, new.listing}
    assert new.image != old.image
    assert check_pack(at(moto, prefix), at(moto, "s3://changing/set")) == new


def test_what_was_replaced_and_cannot_be_removed_is_said(moto, scratch, prefix, monkeypatch):
    put(moto, "other", {"set/a": os.urandom(5)})
    make_pack(at(moto, "s3://other/set"), at(moto, prefix), scratch=scratch)
    put(moto, "other", {"set/a": os.urandom(6)})

    def refuse(*_):
        raise PermissionDeniedError("status code: 403 <Code>AccessDenied</Code>")

    monkeypatch.setattr(object_store_target.obstore, "delete", refuse)
    notes: list[str] = []
    made = make_pack(
        at(moto, "s3://other/set"), at(moto, prefix), force=True, scratch=scratch, note=notes.append
    )
    assert check_pack(at(moto, prefix)) == made
    assert "complete" in notes[0] and "AccessDenied" in notes[0] and len(notes) == 1


def test_a_prefix_with_other_files_is_not_used(moto, scratch, prefix):
    put(moto, "packs", {f"{prefix.removeprefix('s3://packs/')}/thesis.tex": b"x"})
    with pytest.raises(RequestError, match=r"thesis\.tex"):
        make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch)
    assert set(objects(moto, prefix)) == {"thesis.tex"}


@pytest.mark.parametrize(
    ("source", "pack", "says"),
    [
        ("s3://raw/set", "s3://raw/set", "packed with it"),
        ("s3://raw/set", "s3://raw/set/packs/1", "packed with it"),
        ("s3://raw", "s3://raw/packs", "packed with it"),
        ("s3://raw/set/0", "s3://raw/set", "which would have other files"),
        ("s3://raw/set", "s3://raw", "which would have other files"),
        ("s3://raw/set", "https://server/packs", "cannot be written to"),
        ("s3://raw/set", "rclone:remote:packs", "cannot be written to"),
    ],
)
def test_places_that_no_pack_is_put_into(source, pack, says, scratch):
    endpoint = "http://127.0.0.1:9"  # nothing is asked before
    target = (
        at(endpoint, pack) if pack[:2] == "s3" else RemoteLocation(SourceSpec.parse(pack), Credentials({}))
    )
    with pytest.raises(RequestError, match=says):
        make_pack(at(endpoint, source), target, scratch=scratch)


def test_prefixes_that_only_begin_alike(moto, scratch):
    put(moto, "alike", {"set/a": b"a"})
    make_pack(at(moto, "s3://alike/set"), at(moto, "s3://alike/setpack"), scratch=scratch)


def test_a_scratch_directory_that_is_not_there(moto, scratch, prefix):
    with pytest.raises(DatasetError, match=r"No such file.*--scratch"):
        make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch / "gone")
    assert objects(moto, prefix) == {}


def test_what_another_process_takes_away_is_noticed(moto, scratch, prefix, monkeypatch):
    write = object_store_target.ObjectStoreTarget._put

    def then_remove(self, name, data):
        write(self, name, data)
        if name == "dataset.json":
            self.remove([json.loads(data)["listing"]["file"]])

    with monkeypatch.context() as patched:
        patched.setattr(object_store_target.ObjectStoreTarget, "_put", then_remove)
        with pytest.raises(SourceError, match=r"no bytes of \w+\.listing.*pack again"):
            make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch)
    made = make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch)
    assert check_pack(at(moto, prefix)) == made


def test_a_scratch_directory_in_the_source(tmp_path, moto, prefix):
    (tmp_path / "source/scratch").mkdir(parents=True)
    with pytest.raises(RequestError, match="scratch"):
        make_pack(tmp_path / "source", at(moto, prefix), scratch=tmp_path / "source/scratch")


def test_a_pack_is_not_packed_again(moto, tmp_path, scratch, prefix):
    make_pack(at(moto, "s3://raw/set/0"), at(moto, prefix), scratch=scratch)
    with pytest.raises(RequestError, match="is a pack already"):
        make_pack(at(moto, prefix), tmp_path / "again")
    make_pack(at(moto, "s3://raw/set/0"), tmp_path / "directory")
    with pytest.raises(RequestError, match="is a pack already"):
        make_pack(tmp_path / "directory", at(moto, f"{prefix}-again"), scratch=scratch)


def test_a_bucket_that_is_not_there(moto, scratch):
    with pytest.raises(SourceError, match=r"nobucket.*NoSuchBucket"):
        make_pack(at(moto, "s3://raw/set"), at(moto, "s3://nobucket/pack"), scratch=scratch)
    assert list(scratch.iterdir()) == []


def test_no_room_in_the_scratch_directory(moto, scratch, prefix, monkeypatch):
    def full(fd, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CacheFullError, match="no room for the image"):
        make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch)
    assert list(scratch.iterdir()) == [] and objects(moto, prefix) == {}


@pytest.mark.parametrize("how", ["a link", "open to all"])
def test_a_scratch_directory_that_another_user_has_prepared(moto, scratch, prefix, how, monkeypatch):
    def then(self, *_):
        raise KeyboardInterrupt  # the directory is there now

    with monkeypatch.context() as patched:
        patched.setattr(image_file.ImageFile, "__init__", then)
        patched.setattr(Path, "rmdir", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch)
    (own,) = scratch.iterdir()
    assert own.stat().st_mode & 0o777 == 0o700
    if how == "a link":
        own.rmdir()
        own.symlink_to(scratch.parent)
    else:
        own.chmod(0o777)
    with pytest.raises(DatasetError, match="not this user's own"):
        make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch)


def test_a_source_that_changes_meanwhile(moto, scratch, prefix, monkeypatch):
    put(moto, "moving", {"set/a": b"one", "set/b": b"b"})
    allocate = image_file.ImageFile._allocate

    def then_change(self):
        allocate(self)
        put(moto, "moving", {"set/a": b"two"})

    with monkeypatch.context() as patched:
        patched.setattr(image_file.ImageFile, "_allocate", then_change)
        with pytest.raises(SourceError, match="was changed") as caught:
            make_pack(at(moto, "s3://moving/set"), at(moto, prefix), scratch=scratch)
    assert caught.value.changed
    assert objects(moto, prefix) == {} and list(scratch.iterdir()) == []


def test_an_object_that_was_damaged_is_found_by_the_check_and_by_the_node(moto, tmp_path, scratch, prefix):
    made = make_pack(at(moto, "s3://raw/set"), at(moto, prefix), scratch=scratch)
    key = f"{prefix.removeprefix('s3://packs/')}/{made.image}"
    data = bytearray(client(moto).get_object(Bucket="packs", Key=key)["Body"].read())
    data[len(data) // 2] ^= 1
    put(moto, "packs", {key: bytes(data)})
    with pytest.raises(ImageError, match=f"{made.image} of s3://packs.*differs from its manifest"):
        check_pack(at(moto, prefix))
    with pytest.raises(SourceError, match="damaged between bytes"):
        fetched(moto, prefix, tmp_path)
    put(moto, "packs", {key: bytes(data[:-1])})
    with pytest.raises(ImageError, match=r"has \d+ bytes, and its listing needs"):
        check_pack(at(moto, prefix))
    client(moto).delete_object(Bucket="packs", Key=key)
    with pytest.raises(ImageError, match="is not there"):
        check_pack(at(moto, prefix))
    client(moto).delete_object(Bucket="packs", Key=f"{key.rpartition('/')[0]}/dataset.json")
    with pytest.raises(RequestError, match="is no pack"):
        check_pack(at(moto, prefix))
