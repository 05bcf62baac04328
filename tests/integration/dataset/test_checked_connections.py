# SPDX-License-Identifier: Apache-2.0
"""Clients of others connect to what was checked: not to what a name means later, nor where a server sends them."""

from __future__ import annotations

import asyncio
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources import addresses, object_connections, object_stores
from gigaslice.roles.dataset_node.sources.opening import open_source
from gigaslice.roles.dataset_node.sources.rclone_remote import RcloneRemote
from tests.fakes.storage_servers import KEY, SECRET, put, rclone, rclone_s3, rclone_serve

SERVER, NODE = "127.0.0.1", "127.0.0.2"
"""In place of a server's address and one of the node: both are loopback, and the tests say which is allowed."""
PASSWORD = "correct-horse-battery"
SECRETS = {"access_key": KEY, "secret_key": SECRET}


class Site:
    """An HTTP server at ADDRESS that notes who asks. location: where it redirects to."""

    def __init__(self, address: str) -> None:
        self.asked: list[str] = []
        self.location = ""
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.asked.append(self.path)
                body = b"credentials of the node"
                self.send_response(302 if site.location else 200)
                if site.location:
                    self.send_header("Location", site.location)
                self.send_header("Last-Modified", "Tue, 24 Nov 2020 00:00:00 GMT")
                self.send_header("ETag", '"a"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815
            do_PROPFIND = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def node():
    site = Site(NODE)
    yield site
    site.close()


@pytest.fixture
def hostile(node):
    """A server that may be connected to, and sends its clients to the node."""
    site = Site(SERVER)
    site.location = f"{node.url}/latest/meta-data/"
    yield site
    site.close()


@pytest.fixture(autouse=True)
def _only_the_server_is_allowed(monkeypatch):
    monkeypatch.setattr(addresses, "_is_local", lambda address: address != SERVER)
    monkeypatch.setattr(object_connections, "_permitted", set())
    monkeypatch.setenv("PATH", f"{Path(rclone()).parent}:{os.environ['PATH']}")


@pytest.fixture(params=["its own connect(2)", "the proxy"])
def way(request, monkeypatch):
    """Both ways in which obstore is kept to checked addresses."""
    if request.param == "the proxy":
        monkeypatch.setattr(object_stores, "keep_to_checked", lambda: False)
    else:
        assert object_connections.keep_to_checked()
    return request.param


def with_source(text, credentials, work, **options):
    async def run():
        source = await open_source(SourceSpec.parse(text, options), credentials, mounts=None)
        try:
            return await work(source)
        finally:
            await source.close()

    return asyncio.run(run())


def read_of(name):
    async def work(source):
        data = bytearray()
        entry = Entry(name.encode(), EntryKind.FILE, 23, '"a"')
        source.read_into(entry, 0, 23, lambda _, piece: data.extend(piece))
        return bytes(data)

    return work


async def everything(source):
    listing = await source.list()
    found = {}
    for entry in listing.entries:
        if entry.kind is EntryKind.FILE:
            data = bytearray()
            source.read_into(entry, 0, entry.size, lambda _, piece, data=data: data.extend(piece))
            found[entry.path.decode()] = bytes(data)
    return found


def test_an_object_store_that_redirects_leads_no_client_to_the_node(way, hostile, node):
    with pytest.raises(SourceError, match="redirects to") as failure:
        with_source("s3://bucket/set", {}, read_of("x"), endpoint=hostile.url)
    assert not failure.value.retry
    assert hostile.asked and not node.asked


def test_a_name_that_leads_elsewhere_the_second_time_leads_no_object_store_to_the_node(
    way, node, monkeypatch
):
    monkeypatch.setattr(
        object_stores, "checked_addresses", lambda *_: [SERVER]
    )  # as it was resolved when it was checked
    with pytest.raises(SourceError, match="--local-addresses on"):
        with_source("s3://bucket/set", {}, read_of("x"), endpoint=node.url)
    assert not node.asked


def test_object_stores_are_read_either_way(way, tmp_path):
    with rclone_s3(tmp_path) as endpoint:
        files = {f"set/{index}": os.urandom(1000 * index) for index in range(1, 30)} | {
            "set/large": os.urandom(5 << 20)
        }
        put(endpoint, "bucket", files)
        found = with_source("s3://bucket/set", SECRETS, everything, endpoint=endpoint)
    assert {f"set/{name}": data for name, data in found.items()} == files


def test_an_endpoint_that_was_allowed_stays_so(node):
    """Who packs may name addresses of the machine, whatever the process has read before."""
    assert object_connections.keep_to_checked()
    host = node.url.removeprefix("http://").partition(":")[0]
    object_connections.permit(host)
    stores = object_stores.object_stores(
        SourceSpec.parse("s3://bucket", {"endpoint": node.url}), object_stores.Credentials({}), local=True
    )
    assert stores.client(0).head("x")["size"] == 23


def test_where_the_pointer_is_not_the_librarys_it_is_noticed(monkeypatch):
    """Of a build that calls the kernel by itself: nothing is called, and a proxy is used."""
    monkeypatch.setattr(object_connections, "_outcome", [])
    monkeypatch.setattr(object_connections.CheckedConnects, "replace_in", lambda *_: None)
    assert object_connections.keep_to_checked() is False
    assert object_connections.keep_to_checked() is False


# --- rclone -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    for index in range(20):
        path = root / f"data/{index % 4}/file {index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1000 + index))
    return root


REMOTES = {
    "http": ("rclone:web:data", lambda port: {"type": "http", "url": f"http://{SERVER}:{port}/"}),
    "webdav": ("webdav://{at}/data", lambda _: {"username": "me", "password": PASSWORD}),
    "sftp": ("sftp://{at}/data", lambda _: {"username": "me", "password": PASSWORD}),
    "ftp": ("ftp://{at}/data", lambda _: {"username": "me", "password": PASSWORD}),
}


@pytest.mark.parametrize("kind", sorted(REMOTES))
def test_rclone_reads_through_the_proxy_alone(kind, tree, monkeypatch):
    source, secrets = REMOTES[kind]
    login = () if kind == "http" else ("--user", "me", "--pass", PASSWORD)
    with rclone_serve(kind, tree, *login) as port:
        text = source.format(at=f"{SERVER}:{port}")
        expected = {str(path.relative_to(tree / "data")): path.read_bytes() for path in tree.rglob("file*")}
        assert with_source(text, secrets(port), everything) == expected
        monkeypatch.setattr(RcloneRemote, "at_checked_addresses", lambda remote: remote)
        monkeypatch.setattr(addresses, "_is_local", lambda _: True)  # the name leads elsewhere by now
        with pytest.raises(SourceError, match="--local-addresses on"):
            with_source(text, secrets(port), everything)


@pytest.mark.parametrize("kind", ["http", "webdav"])
def test_a_server_that_redirects_leads_no_rclone_to_the_node(kind, hostile, node):
    secret = {"type": kind, "url": f"{hostile.url}/"}
    with pytest.raises(SourceError):
        with_source("rclone:web:data", secret, everything)
    assert hostile.asked and not node.asked


def test_an_rclone_without_the_flag_reads_nothing(tmp_path, monkeypatch):
    """Of a version that would connect by itself without a word."""
    old = tmp_path / "rclone"
    old.write_text("#!/bin/sh\necho '--bind string'\n")
    old.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(old))
    with pytest.raises(SourceError, match="has no --http-proxy"):
        with_source("rclone:web:data", {"type": "http", "url": f"http://{SERVER}:1/"}, everything)


def test_the_check_is_there_without_the_tests_own_changes(node):
    """In a process of its own: the real check, the real addresses, the first source of the process."""
    code = (
        "import asyncio, sys\n"
        "from gigaslice.core.dataset.source_spec import SourceSpec\n"
        "from gigaslice.roles.dataset_node.sources import object_connections as c, object_stores as o\n"
        "from gigaslice.roles.dataset_node.sources.opening import open_source\n"
        "o.checked_addresses = lambda *_: []\n"
        "source = asyncio.run(open_source(SourceSpec.parse('s3://b/x', {'endpoint': sys.argv[1]}), {}, mounts=None))\n"
        "assert c._outcome == [True]\n"
        "try: asyncio.run(source.list())\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, node.url], capture_output=True, text=True, check=True, timeout=120
    )
    assert "--local-addresses on" in done.stdout and not node.asked
