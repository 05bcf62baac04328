# SPDX-License-Identifier: Apache-2.0
"""Sources that rclone reads, against servers of rclone's own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.opening import open_source
from gigaslice.roles.dataset_node.sources.rclone_remote import remote_of
from tests.fakes.eventually import wait_until
from tests.fakes.storage_servers import rclone, rclone_serve

PASSWORD = "correct-horse-battery"


@pytest.fixture(autouse=True)
def _rclone_on_path(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(rclone()).parent}:{os.environ['PATH']}")


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    for index in range(40):
        path = root / f"data/{index % 4}/file #{index} ü"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1000 + index))
    (root / "data/void").mkdir()
    return root


def with_source(text, credentials, work, *, local=True):
    async def run():
        source = await open_source(SourceSpec.parse(text), credentials, mounts=None, local_addresses=local)
        try:
            return await work(source)
        finally:
            await source.close()

    return asyncio.run(run())


async def everything(source):
    listing = await source.list()
    found = {}
    for entry in listing.entries:
        if entry.size:
            data = bytearray()
            source.read_into(entry, 0, entry.size, lambda at, piece, data=data: data.extend(piece))
            part = bytearray()
            source.read_into(entry, 10, 100, lambda at, piece, part=part: part.extend(piece))
            assert part == data[10:110]
            found[entry.path.decode()] = bytes(data)
    return found, source.spec.canonical


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_webdav_with_a_password(tree):
    with rclone_serve("webdav", tree, "--user", "me", "--pass", PASSWORD) as port:
        secrets = {"username": "me", "password": PASSWORD}
        found, canonical = with_source(f"webdav://127.0.0.1:{port}/data", secrets, everything)
        assert found == contents(tree / "data")
        assert PASSWORD not in canonical
        with pytest.raises(SourceError, match="check the credentials") as failure:
            with_source(f"webdav://127.0.0.1:{port}/data", {**secrets, "password": "wrong-word"}, everything)
        assert "wrong-word" not in str(failure.value)
        with pytest.raises(SourceError, match="has no such directory"):
            with_source(f"webdav://127.0.0.1:{port}/none", secrets, everything)


def test_a_remote_that_the_secret_describes(tree):
    with rclone_serve("http", tree) as port:
        found, _ = with_source(
            "rclone:web:data", {"type": "http", "url": f"http://127.0.0.1:{port}/"}, everything
        )
        assert found == contents(tree / "data")
        with pytest.raises(SourceError, match="address of the node"):
            with_source(
                "rclone:web:data",
                {"type": "http", "url": f"http://127.0.0.1:{port}/"},
                everything,
                local=False,
            )


def test_a_password_is_nowhere_but_in_the_environment_of_a_process_without_rights(tree):
    with rclone_serve("webdav", tree, "--user", "me", "--pass", PASSWORD) as port:

        async def look(source):
            process = psutil.Process(source.inner._process.pid)
            assert PASSWORD not in " ".join(process.cmdline())
            environment = process.environ()
            assert set(environment) <= {"PATH", "HOME", "TZ"} | {
                name for name in environment if name.startswith("RCLONE_")
            }
            assert all(PASSWORD not in value for value in environment.values()), "obscured"
            if os.geteuid() == 0:
                assert process.uids().effective >= 0x70000000, "no other process runs as it"
            return process

        process = with_source(
            f"webdav://127.0.0.1:{port}/data", {"username": "me", "password": PASSWORD}, look
        )
        assert not process.is_running()


def test_rclone_ends_with_us_however_we_end(tree, tmp_path):
    with rclone_serve("http", tree) as port:
        code = (
            "import asyncio, sys\n"
            "from gigaslice.core.dataset.source_spec import SourceSpec\n"
            "from gigaslice.roles.dataset_node.sources.opening import open_source\n"
            "async def run():\n"
            "    source = await open_source(SourceSpec.parse('rclone:web:data'),\n"
            "        {'type': 'http', 'url': sys.argv[1]}, mounts=None, local_addresses=True)\n"
            "    print(source.inner._process.pid, flush=True)\n"
            "    await asyncio.sleep(600)\n"
            "asyncio.run(run())\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, f"http://127.0.0.1:{port}/"], stdout=subprocess.PIPE, text=True
        )
        with process:
            child = psutil.Process(int(process.stdout.readline()))
            process.kill()

        def ended() -> bool:
            try:
                return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:  # between the two
                return True

        wait_until(ended)


def test_a_missing_rclone_is_a_text(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SourceError, match="rclone is not installed"):
        with_source("rclone:web:data", {"type": "http", "url": "http://127.0.0.1/"}, everything)


@pytest.mark.parametrize(
    ("secret", "match"),
    [
        ({"type": "local"}, "type 'local' are not read"),
        ({"type": "alias", "remote": "/etc"}, "type 'alias'"),
        ({"type": "sftp", "host": "h", "ssh": "sh -c id"}, "may not have 'ssh'"),
        (
            {"type": "webdav", "url": "http://h", "bearer_token_command": "id"},
            "may not have 'bearer_token_command'",
        ),
        ({"type": "sftp", "host": "h", "key_file": "/root/.ssh/id_rsa"}, "may not have 'key_file'"),
        ({"type": "s3", "env_auth": "true"}, "may not have 'env_auth'"),
        ({"rclone.conf": "[web]\ntype = local\n"}, "type 'local'"),
        ({"rclone.conf": "[other]\ntype = http\n"}, r"section \[web\]"),
        ({"RCLONE_CONFIG_WEB_TYPE": "local"}, "type 'local'"),
        ({"user": "x"}, "does not describe"),
        ({"type": "sftp", "host": "a\0b"}, "NUL"),
    ],
)
def test_a_remote_cannot_have_more_rights_than_a_pod(secret, match):
    with pytest.raises(RequestError, match=match):
        remote_of(SourceSpec.parse("rclone:web:data"), Credentials(secret))


def test_which_storage_a_secret_names_is_a_part_of_the_source(tree):
    spec = SourceSpec.parse("rclone:web:data")

    def identity(**secret):
        return remote_of(spec, Credentials(secret)).identity

    one = identity(type="sftp", host="a", user="me", **{"pass": "1"})
    assert one == identity(type="sftp", host="a", user="me", **{"pass": "2"})
    assert one != identity(type="sftp", host="b", user="me", **{"pass": "1"})
    assert one != identity(type="sftp", host="a", user="you", **{"pass": "1"})
