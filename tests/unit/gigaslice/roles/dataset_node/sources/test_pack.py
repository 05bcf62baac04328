# SPDX-License-Identifier: Apache-2.0
"""A prepared pack as a source: the same image by large ranges, and nothing of it that is not a file's bytes."""

from __future__ import annotations

import asyncio
import json
import os
from urllib.parse import urlsplit

import pytest

from gigaslice.core.dataset.digest import hasher
from gigaslice.core.dataset.errors import ListingError, SourceError
from gigaslice.core.dataset.image import LAYOUT_VERSION, plan, ranges
from gigaslice.core.dataset.pack_manifest import MANIFEST_NAME, PackManifest, PackRange
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.sources.http_client import HttpClient
from gigaslice.roles.dataset_node.sources.opening import OpenedSource
from gigaslice.roles.dataset_node.sources.posix import PosixSource
from gigaslice.roles.dataset_node.sources.web_files import WebSource
from tests.fakes.dataset_layout import PartFiles
from tests.fakes.hostile_files import HostileFiles

SIZES = {f"{index % 5}/small {index}": index * 37 % 3000 for index in range(200)} | {
    f"middle/{index}": 5000 + index * 4096 for index in range(30)
} | {"large": 20 << 20, "empty": 0}  # fmt: skip


def opened(source):
    return OpenedSource(SourceSpec.parse("/data"), source)


def fetched(source, where, *, listing=None):
    async def run():
        found = listing or await source.list()
        layout = plan(found)
        part = PartFiles.begin(where, layout.size)
        meters = []
        try:
            digest = await fetch(layout, found, source, part, bounds=FetchLimits(), started=meters.append)
        finally:
            await source.close()
        return found, digest, part.image, meters[0].now().fetched

    return asyncio.run(run())


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    where = tmp_path_factory.mktemp("packed")
    root, pack, part = where / "root", where / "pack", where / "part"
    for name, size in SIZES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(os.urandom(size))
    (root / "link").symlink_to("large")
    pack.mkdir()
    part.mkdir()
    listing, digest, image, _ = fetched(PosixSource(root), part)
    body = image.read_bytes()
    layout = plan(listing)
    (pack / "a.img").write_bytes(body)
    (pack / "a.listing").write_bytes(listing.encoded())
    parts = tuple(
        PackRange(
            one.offset, one.size, one.files, hasher(body[one.offset : one.offset + one.size]).hexdigest()
        )
        for one in ranges(layout, max_bytes=4 << 20)
    )
    manifest = PackManifest(
        source="test", layout=LAYOUT_VERSION, image="a.img", size=len(body), image_digest=digest, listing="a.listing",
        listing_size=len(listing.encoded()), listing_digest=listing.digest.hex(), files=listing.files,
        bytes=listing.bytes, ranges=parts,
    )  # fmt: skip
    (pack / MANIFEST_NAME).write_text(manifest.text())
    return pack, body


@pytest.fixture
def pack(packed, tmp_path):
    made = tmp_path / "pack"
    made.mkdir()
    for path in packed[0].iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    return made


def test_a_pack_gives_the_image_that_was_packed(packed, tmp_path):
    pack, body = packed
    listing, _, image, read = fetched(opened(PosixSource(pack)), tmp_path)
    assert image.read_bytes() == body
    assert read < len(body)
    assert {one.path.decode() for one in listing.entries if one.size and one.version} == {
        name for name, size in SIZES.items() if size
    }


def test_over_http_it_takes_a_few_requests(packed, tmp_path):
    pack, body = packed
    server = HostileFiles()
    server.files = {f"/p/{path.name}": path.read_bytes() for path in pack.iterdir()}
    try:
        client = HttpClient(urlsplit(f"http://127.0.0.1:{server.port}"), local=True)
        _, _, image, _ = fetched(opened(WebSource(client, "/p")), tmp_path)
        assert image.read_bytes() == body
        assert sum(server.asked.values()) < 60
    finally:
        server.close()


def test_a_fetch_from_a_pack_is_resumed(packed, tmp_path):
    pack, body = packed
    source = PosixSource(pack, parallel=1)
    inner, reads = source.read_into, []

    def read_into(entry, offset, size, sink):
        if entry.path == b"a.img":
            reads.append(size)
            if len(reads) == 3:
                raise SourceError("the network is gone")
        inner(entry, offset, size, sink)

    source.read_into = read_into
    with pytest.raises(SourceError, match="gone"):
        fetched(opened(source), tmp_path)
    _, _, image, read = fetched(opened(PosixSource(pack)), tmp_path)
    assert image.read_bytes() == body
    assert read < 0.99 * len(body)


@pytest.mark.parametrize("digests", ["of the honest image", "of the hostile image"])
def test_no_byte_of_its_metadata_is_taken(pack, packed, tmp_path, digests):
    """An image whose metadata were replaced."""
    body = packed[1]
    listing, *_ = fetched(opened(PosixSource(pack)), tmp_path)
    layout = plan(listing)
    evil = bytearray(body)
    for offset, data in layout.metadata():
        evil[offset : offset + len(data)] = b"\xee" * len(data)
    (pack / "a.img").write_bytes(evil)
    again = tmp_path / "again"
    again.mkdir()
    if digests == "of the honest image":
        fetched(opened(PosixSource(pack)), again)
    else:
        change(pack, image__blake3=hasher(evil).hexdigest())
        with pytest.raises(SourceError, match="not the one of its manifest"):
            fetched(opened(PosixSource(pack)), again)
    assert (again / "part.img").read_bytes() == body, "what was written is ours all the same"


def test_a_damaged_part_is_named_and_nothing_of_it_kept(pack, tmp_path):
    with (pack / "a.img").open("r+b") as file:
        file.seek(10 << 20)
        file.write(b"damage")
    with pytest.raises(SourceError, match=r"damaged between bytes \d+ and \d+ of a\.img") as failure:
        fetched(opened(PosixSource(pack)), tmp_path)
    assert not failure.value.changed
    assert not (tmp_path / "part.bits").exists()


def change(pack, **values):
    path = pack / MANIFEST_NAME
    document = json.loads(path.read_text())
    for name, value in values.items():
        outer, _, inner = name.partition("__")
        if inner:
            document[outer][inner] = value
        else:
            document[outer] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"layout": 999}, "has layout 999"),
        ({"version": 7}, "another version"),
        ({"image__file": "b.img"}, "lacks b.img"),
        ({"image__file": "../a.img"}, "damaged"),
        ({"listing__size": 5}, "other sizes"),
        ({"listing__blake3": "0" * 64}, "another listing"),
        ({"parts": []}, "damaged"),
    ],
)
def test_a_manifest_that_lies_is_refused(pack, values, match):
    change(pack, **values)
    with pytest.raises(SourceError, match=match):
        asyncio.run(opened(PosixSource(pack)).list())


def test_a_hostile_listing_is_refused(pack):
    body = b"not a listing"
    (pack / "a.listing").write_bytes(body)
    change(pack, listing__size=len(body), listing__blake3=hasher(body).hexdigest())
    with pytest.raises(ListingError):
        asyncio.run(opened(PosixSource(pack)).list())


def test_another_image_is_another_version(pack):
    before = asyncio.run(opened(PosixSource(pack)).list()).digest
    change(pack, image__blake3="1" * 64)
    assert asyncio.run(opened(PosixSource(pack)).list()).digest != before


def test_a_users_file_of_that_name_is_a_file(tmp_path):
    (tmp_path / MANIFEST_NAME).write_text('{"images": []}')
    listing = asyncio.run(opened(PosixSource(tmp_path)).list())
    assert [one.path for one in listing.entries] == [MANIFEST_NAME.encode()]


def test_a_listing_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("gigaslice.roles.dataset_node.sources.opening.backoff", lambda *_: 0.001)
    (tmp_path / "a").write_bytes(b"a")
    source, times = PosixSource(tmp_path), []
    real = source.list

    async def listed(limits):
        times.append(1)
        if len(times) < 3:
            raise SourceError("busy", retry=True)
        return await real(limits)

    source.list = listed
    assert asyncio.run(opened(source).list()).files == 1
    times.clear()

    async def never(limits):
        times.append(1)
        raise SourceError("away", retry=True)

    source.list = never
    with pytest.raises(SourceError, match="away"):
        asyncio.run(opened(source).list())
    assert len(times) == 5


def test_a_listing_that_is_too_large_is_not_read(pack, tmp_path):
    os.truncate(pack / "a.listing", size := (256 << 20) + 1)
    change(pack, listing__size=size)
    with pytest.raises(ListingError, match=f"has {size} bytes, and may have {256 << 20}; split the dataset"):
        fetched(opened(PosixSource(pack)), tmp_path)
