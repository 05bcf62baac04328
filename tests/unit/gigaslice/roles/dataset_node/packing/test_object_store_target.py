# SPDX-License-Identifier: Apache-2.0
"""How a pack goes into an object store: parts, memory, patience, and the stores of Google and Azure."""

from __future__ import annotations

import http.server
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest

from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.packing import RemoteLocation, make_pack
from gigaslice.roles.dataset_node.packing.object_store_target import (
    ObjectStoreTarget,
    part_bytes,
    parts_at_once,
)
from gigaslice.roles.dataset_node.sources import object_stores
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from tests.fakes.hostile_files import HostileFiles

MIB, TIB = 1 << 20, 1 << 40


@pytest.mark.parametrize(
    ("size", "part", "at_once"),
    [
        (0, 16 * MIB, 16),
        (16 * MIB, 16 * MIB, 16),
        (160_000 * MIB, 16 * MIB, 16),
        (160_000 * MIB + 1, 17 * MIB, 15),
        (1 * TIB, 105 * MIB, 2),
        (5 * TIB, 525 * MIB, 1),
        (8 * TIB, 839 * MIB, 1),
    ],
)
def test_the_size_of_parts(size: int, part: int, at_once: int) -> None:
    assert (part_bytes(size), parts_at_once(part)) == (part, at_once)
    assert -(-size // part) <= 10_000
    assert part % MIB == 0 and part < 5 << 30, "S3 takes parts of 5 GiB at most"


PROGRAM = """
import resource, sys
from pathlib import Path
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.packing import object_store_target
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.object_stores import object_stores
from gigaslice.roles.dataset_node.sources.protocol import CancelFlag
object_store_target._LEAST_PART, object_store_target._MEMORY = 4 << 20, 16 << 20
spec = SourceSpec.parse("s3://packs/x", {"endpoint": sys.argv[1]})
place = object_store_target.ObjectStoreTarget(object_stores(spec, Credentials({}), local=True), spec, Path("/"))
class Manifest:
    image, size = "image", Path(sys.argv[2]).stat().st_size
place._put("warm", b"x" * (4 << 20))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
place._upload(Path(sys.argv[2]), Manifest, lambda *_: None, CancelFlag())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def bucket(server: HostileFiles) -> list[tuple[str, str, int]]:
    """Makes SERVER take everything. What it is sent: method, path, size."""
    asked = []

    def trick(path: str, handler: http.server.BaseHTTPRequestHandler) -> bool:
        size = left = int(handler.headers.get("Content-Length") or 0)
        while left:
            left -= len(handler.rfile.read(min(left, MIB)))
        asked.append((handler.command, path, size))
        body = b""
        if handler.command == "POST":
            body = (
                b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
                if "uploads" in path
                else b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
            )
        return server.plain(handler, 200, body, ETag='"1"')

    server.trick = trick
    handler = server.server.RequestHandlerClass
    handler.do_PUT = handler.do_POST = handler.do_DELETE = handler.do_GET  # type: ignore[attr-defined]
    return asked


def test_the_memory_of_an_upload_is_bounded(tmp_path: Path) -> None:
    server = HostileFiles()
    asked = bucket(server)
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(400 * MIB)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"http://127.0.0.1:{server.port}", str(image)],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    finally:
        server.close()
    parts = [size for method, path, size in asked if method == "PUT" and "partNumber" in path]
    assert sum(parts) == 400 * MIB and max(parts) == 4 * MIB
    assert int(done.stdout) * 1024 < 80 * MIB, "much more than the parts that are sent at once"


def test_a_server_may_be_silent_while_it_takes_a_part(tmp_path: Path) -> None:
    """The silence that ends a read would end every part that takes longer, again and again."""
    server = HostileFiles()
    asked = bucket(server)
    take = server.trick

    def slowly(path: str, handler: http.server.BaseHTTPRequestHandler) -> bool:
        if handler.command == "PUT":
            server.stop.wait(0.6)
        return take(path, handler)

    server.trick = slowly
    try:
        spec = SourceSpec.parse("s3://packs/x", {"endpoint": f"http://127.0.0.1:{server.port}"})
        silence = timedelta(seconds=0.2)
        stores = object_stores.object_stores(spec, Credentials({}), local=True, silence=silence)
        ObjectStoreTarget(stores, spec, tmp_path)._put("name", b"data")
    finally:
        server.close()
    assert [(method, size) for method, _, size in asked] == [("PUT", 4)]


EMPTY = {
    "gs": b"<ListBucketResult></ListBucketResult>",
    "az": b'<EnumerationResults ServiceEndpoint="x" ContainerName="packs"><Blobs></Blobs><NextMarker/>'
    b"</EnumerationResults>",
}


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_the_stores_of_google_and_azure(kind: str, tmp_path: Path) -> None:
    """Against a server of ours that keeps what it is sent, since there is none of others that installs here."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_bytes(b"content" * 1000)
    (tmp_path / "scratch").mkdir()
    server = HostileFiles()
    kept: dict[str, bytes] = {}

    def trick(path: str, handler: http.server.BaseHTTPRequestHandler) -> bool:
        place, _, query = path.partition("?")
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        name = unquote(place).rpartition("/")[2]
        headers = {"ETag": '"1"', "Last_Modified": "Mon, 23 Nov 2026 12:00:00 GMT"}
        assert handler.headers["Authorization"] == "Bearer TOKEN"
        if handler.command == "PUT":
            kept[name] = body
            return server.plain(handler, 201, **headers, Content_Length="0")
        if "list" in query:
            return server.plain(handler, 200, EMPTY[kind])
        if name not in kept:
            return server.plain(handler, 404)
        handler.send_response(200)
        for header, value in {**headers, "Content_Length": str(len(kept[name]))}.items():
            handler.send_header(header.replace("_", "-"), value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(kept[name])
        return True

    server.trick = trick
    handler = server.server.RequestHandlerClass
    handler.do_PUT = handler.do_DELETE = handler.do_GET  # type: ignore[attr-defined]
    options = {"endpoint": f"http://127.0.0.1:{server.port}"} | ({"account": "acct"} if kind == "az" else {})
    target = RemoteLocation(SourceSpec.parse(f"{kind}://packs/x", options), Credentials({"token": "TOKEN"}))
    try:
        made = make_pack(tmp_path / "source", target, scratch=tmp_path / "scratch")
        assert make_pack(tmp_path / "source", target, scratch=tmp_path / "scratch") == made
    finally:
        server.close()
    local = tmp_path / "local"
    assert make_pack(tmp_path / "source", local).image_digest == made.image_digest
    assert kept[made.image] == (local / made.image).read_bytes()
    assert set(kept) == {made.image, made.listing, "dataset.json"}
