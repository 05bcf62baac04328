# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset pack` into stores that refuse, fail, or serve no ranges."""

from __future__ import annotations

import os

import pytest

from gigaslice.core.dataset.errors import SourceError
from gigaslice.roles.dataset_node.packing import check_pack, make_pack
from tests.fakes.hostile_files import HostileFiles
from tests.fakes.storage_servers import KEY, SECRET, rclone_s3
from tests.integration.dataset.pack_stores import at, scratch, small_parts

__all__ = ["scratch", "small_parts"]  # fixtures


class TestServersOfRclone:
    @pytest.fixture
    def root(self, tmp_path):
        (tmp_path / "root/packs").mkdir(parents=True)
        return tmp_path / "root"

    @pytest.fixture
    def source(self, tmp_path):
        (tmp_path / "source").mkdir()
        (tmp_path / "source/file").write_bytes(os.urandom(12 << 20))
        return tmp_path / "source"

    def test_a_pack_there_is_the_one_of_a_directory(self, root, source, tmp_path, scratch):
        with rclone_s3(root) as endpoint:
            made = make_pack(source, at(endpoint, "s3://packs/deep/er"), scratch=scratch)
            assert make_pack(source, at(endpoint, "s3://packs/deep/er"), scratch=scratch) == made
            small = make_pack(source.parent / "scratch", at(endpoint, "s3://packs/small"), scratch=tmp_path)
            assert check_pack(at(endpoint, "s3://packs/small")) == small
        assert check_pack(root / "packs/deep/er", source) == made

    def test_wrong_credentials(self, root, source, scratch, capfd):
        with rclone_s3(root) as endpoint:
            target = at(endpoint, "s3://packs/x", secret_key="wrong-" + SECRET)
            with pytest.raises(SourceError, match="check the credentials in DIR") as caught:
                make_pack(source, target, scratch=scratch)
        text = str(caught.value) + repr(target) + "".join(capfd.readouterr())
        assert KEY not in text and SECRET not in text
        assert list(scratch.iterdir()) == []


def test_a_bucket_that_may_only_be_read(tmp_path, scratch):
    """Found before a file is read."""
    server = HostileFiles()
    try:
        asked = refusing(server, "PUT", 403, b"<Error><Code>AccessDenied</Code></Error>")
        (tmp_path / "source").mkdir()
        (tmp_path / "source/file").write_bytes(b"1")
        with pytest.raises(
            SourceError, match=r"refuses writing \w+\.listing \(AccessDenied\); check the cred"
        ):
            make_pack(
                tmp_path / "source", at(f"http://127.0.0.1:{server.port}", "s3://packs/x"), scratch=scratch
            )
    finally:
        server.close()
    assert [method for method, _ in asked] == ["GET", "GET", "HEAD", "PUT"]
    assert list(scratch.iterdir()) == []


def refusing(server, method, status, body):
    """Makes SERVER an empty bucket that refuses METHOD. What it is asked, as it comes in."""
    asked = []

    def trick(path, handler):
        asked.append((handler.command, path))
        size = int(handler.headers.get("Content-Length") or 0)
        handler.rfile.read(size)
        if handler.command == method:
            server.plain(handler, status, body)
        elif "list-type" in path:
            server.plain(
                handler, 200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
            )
        elif handler.command == "POST" and "uploads" in path:
            server.plain(handler, 200, b"<InitiateMultipartUploadResult><UploadId>17</UploadId>"
                         b"</InitiateMultipartUploadResult>")  # fmt: skip
        elif handler.command == "PUT" and "partNumber" in path:
            server.plain(handler, 403, b"<Error><Code>SlowDeath</Code></Error>")
        else:
            server.plain(handler, 200 if handler.command in ("PUT", "DELETE") else 404, ETag='"1"')
        return True

    server.trick = trick
    handler = server.server.RequestHandlerClass
    handler.do_PUT = handler.do_POST = handler.do_DELETE = handler.do_GET
    return asked


def test_an_upload_that_fails_is_aborted(tmp_path, scratch):
    server = HostileFiles()
    try:
        asked = refusing(server, "never", 0, b"")
        (tmp_path / "source").mkdir()
        (tmp_path / "source/file").write_bytes(os.urandom(11 << 20))
        with pytest.raises(SourceError, match=r"refuses writing \w+\.img \(SlowDeath\)"):
            make_pack(
                tmp_path / "source", at(f"http://127.0.0.1:{server.port}", "s3://packs/x"), scratch=scratch
            )
    finally:
        server.close()
    assert any(method == "DELETE" and "uploadId=17" in path for method, path in asked)
    assert not any(path.endswith("dataset.json") for method, path in asked if method == "PUT")
    assert len(list(next(scratch.iterdir()).glob(".*.image"))) == 1, "the image is not kept"
