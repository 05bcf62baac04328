# SPDX-License-Identifier: Apache-2.0
"""Object stores as sources, against servers that are not ours."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import traceback

import pytest

from gigaslice.core.dataset.errors import ListingError, RequestError, SourceError
from gigaslice.core.dataset.listing import EntryKind
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.sources.opening import open_source
from tests.fakes.dataset_layout import FlatLayout, PartFiles
from tests.fakes.hostile_files import HostileFiles
from tests.fakes.storage_servers import KEY, SECRET, moto_s3, put, rclone_s3

OBJECTS = {f"set/{i % 5}/object {i}": os.urandom(100 * i) for i in range(120)} | {
    "set/pc%20t": b"percent",
    "set/ünï": b"letters",
    "set/h#sh?x=[1]~": b"signs",
    "set/large": os.urandom(3 << 20),
    "set/0/": b"",
    "other/x": b"not this one",
}
SECRETS = {"access_key": KEY, "secret_key": SECRET}


@pytest.fixture(scope="module")
def moto():
    with moto_s3() as endpoint:
        put(endpoint, "bucket", OBJECTS)
        yield endpoint


def with_source(text, credentials, work, **options):
    async def run():
        source = await open_source(
            SourceSpec.parse(text, options), credentials, mounts=None, local_addresses=True
        )
        try:
            return await work(source)
        finally:
            await source.close()

    return asyncio.run(run())


async def listing_of(source):
    return await source.list()


def fetched(where, unit_bytes=1 << 20):
    async def work(source):
        listing = await source.list()
        plan = FlatLayout(listing)
        part = PartFiles.begin(where, plan.size)
        await fetch(plan, listing, source, part, bounds=FetchLimits(), unit_bytes=unit_bytes)
        image = part.image.read_bytes()
        entries = [one for one in listing.entries if one.kind is EntryKind.FILE]
        return {
            entry.path.decode(): image[offset : offset + size]
            for entry, (offset, size) in zip(entries, plan.extents(), strict=True)
        }

    return work


EXPECTED = {
    path.removeprefix("set/"): body
    for path, body in OBJECTS.items()
    if path[:4] == "set/" and path[-1] != "/"
}


@pytest.mark.parametrize("style", ["endpoint in options", "endpoint in the secret"])
def test_every_object_of_a_prefix_arrives(moto, tmp_path, style):
    options = {"endpoint": moto} if style == "endpoint in options" else {}
    secrets = (
        SECRETS if options else {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "endpoint": moto}
    )
    assert with_source("s3://bucket/set", secrets, fetched(tmp_path), **options) == EXPECTED


def test_an_endpoint_in_the_secret_is_part_of_what_is_named(moto):
    async def spec(source):
        return source.spec.canonical

    plain = SourceSpec.parse("s3://bucket/set")
    by_secret = with_source("s3://bucket/set", {**SECRETS, "endpoint": moto}, spec)
    by_option = with_source("s3://bucket/set", SECRETS, spec, endpoint=moto)
    assert by_secret == by_option != plain.canonical
    with pytest.raises(RequestError, match="different values for endpoint"):
        with_source("s3://bucket/set", {**SECRETS, "endpoint": "http://127.0.0.1:1"}, spec, endpoint=moto)


def test_an_endpoint_at_the_node_is_refused_by_default(moto):
    async def run():
        await open_source(SourceSpec.parse("s3://bucket/set", {"endpoint": moto}), SECRETS, mounts=None)

    with pytest.raises(SourceError, match="address of the node"):
        asyncio.run(run())


def test_a_key_alone_is_a_dataset_of_one_file(moto, tmp_path):
    found = with_source("s3://bucket/set/large", SECRETS, fetched(tmp_path), endpoint=moto)
    assert found == {"large": OBJECTS["set/large"]}


def test_nothing_there_is_said(moto):
    with pytest.raises(SourceError, match="has nothing at"):
        with_source("s3://bucket/none", SECRETS, listing_of, endpoint=moto)
    with pytest.raises(SourceError, match=r"status 404 \(NoSuchBucket\)"):
        with_source("s3://nobucket", SECRETS, listing_of, endpoint=moto)


def test_a_key_that_is_no_path_is_refused_by_name(moto):
    put(moto, "odd", {"a//b": b"1"})
    with pytest.raises(ListingError, match='"a//b"'):
        with_source("s3://odd", SECRETS, listing_of, endpoint=moto)


def test_a_replaced_object_is_noticed_when_it_is_read(moto):
    put(moto, "changing", {"a": b"one"})

    async def work(source):
        entry = (await source.list()).entries[0]
        put(moto, "changing", {"a": b"two"})
        with pytest.raises(SourceError) as failure:
            source.read_into(entry, 0, 3, lambda *_: None)
        return failure.value, entry.version, (await source.list()).entries[0].version

    error, before, after = with_source("s3://changing", SECRETS, work, endpoint=moto)
    assert error.changed
    assert before != after


def test_half_a_pair_of_keys_is_refused(moto):
    with pytest.raises(RequestError, match="both or none"):
        with_source("s3://bucket", {"access_key": KEY}, listing_of, endpoint=moto)


def test_wrong_credentials_are_said_and_not_shown(tmp_path):
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/a").write_bytes(b"a")
    with rclone_s3(tmp_path) as endpoint:
        listing = with_source("s3://bucket", SECRETS, listing_of, endpoint=endpoint)
        assert [one.path for one in listing.entries] == [b"a"]
        wrong = {"access_key": KEY, "secret_key": "wrong-" + SECRET}
        with pytest.raises(SourceError, match="check the credentials") as failure:
            with_source("s3://bucket", wrong, listing_of, endpoint=endpoint)
        with pytest.raises(SourceError, match="refuses the listing to requests without credentials"):
            with_source("s3://bucket", {}, listing_of, endpoint=endpoint)
    for secret in (KEY, SECRET):
        assert secret not in str(failure.value) + repr(failure.value.__dict__)
    assert failure.value.__cause__ is None


def test_a_store_of_rclone_is_fetched_too(tmp_path):
    root = tmp_path / "root"
    for path, body in EXPECTED.items():
        (root / "bucket/set" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "bucket/set" / path).write_bytes(body)
    with rclone_s3(root) as endpoint:
        found = with_source("s3://bucket/set", SECRETS, fetched(tmp_path, 8 << 20), endpoint=endpoint)
        assert found == EXPECTED
        (tmp_path / "part.img").unlink()
        with pytest.raises(SourceError, match="gives no ranges"):  # true of this server
            with_source("s3://bucket/set", SECRETS, fetched(tmp_path, 1 << 20), endpoint=endpoint)


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "NODEKEY",
    "AWS_SECRET_ACCESS_KEY": "NODESECRET",
    "AWS_SESSION_TOKEN": "NODETOKEN",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_REGION": "eu-node-1",
    "AWS_SKIP_SIGNATURE": "true",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/",
}


@pytest.mark.parametrize("credentials", [{}, SECRETS], ids=["without a secret", "with a secret"])
def test_the_nodes_own_credentials_are_never_used(credentials):
    """What a request carries when the service's environment has credentials of the node."""
    server = HostileFiles()
    code = (
        "import asyncio, json, sys\n"
        "from gigaslice.core.dataset.source_spec import SourceSpec\n"
        "from gigaslice.roles.dataset_node.sources.opening import open_source\n"
        "async def run():\n"
        "    spec = SourceSpec.parse('s3://bucket/x', {'endpoint': sys.argv[1]})\n"
        "    source = await open_source(spec, json.loads(sys.argv[2]), mounts=None, local_addresses=True)\n"
        "    await source.list()\n"
        "try:\n"
        "    asyncio.run(run())\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, f"http://127.0.0.1:{server.port}", json.dumps(credentials)],
            env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert server.headers, done.stdout + done.stderr
        sent = json.dumps(server.headers).lower()
        assert "node" not in sent
        assert ("authorization" in sent) == bool(credentials)
        assert "security-token" not in sent
        assert SECRET not in done.stdout + done.stderr
    finally:
        server.close()


@pytest.mark.parametrize(
    "how",
    [{"status": 500}, {"status": 503}, {"status": 403}, {"status": 400}],
    ids=lambda how: str(how["status"]),
)
def test_what_a_server_says_is_not_repeated(monkeypatch, capfd, how):
    """Servers put access keys and signatures into their errors."""
    monkeypatch.setattr("gigaslice.roles.dataset_node.sources.objects._LIST_TRIES", 0)
    server = HostileFiles()
    body = f"<Error><Code>Oops</Code><AWSAccessKeyId>{KEY}</AWSAccessKeyId><X>{SECRET}</X></Error>".encode()
    server.trick = lambda path, handler: server.plain(handler, how["status"], body)
    try:
        with pytest.raises(SourceError) as failure:
            with_source("s3://bucket/x", SECRETS, listing_of, endpoint=f"http://127.0.0.1:{server.port}")
    finally:
        server.close()
    text = str(failure.value)
    logged = "".join(capfd.readouterr())
    for secret in (KEY, SECRET):
        assert secret not in text
        assert secret not in logged
        assert secret not in "".join(traceback.format_exception(failure.value))
    assert "\n" not in text
    assert failure.value.retry == (how["status"] in (500, 503))


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_stores_of_google_and_azure_are_asked_without_a_signature_where_there_is_no_secret(kind):
    server = HostileFiles()
    options = {"endpoint": f"http://127.0.0.1:{server.port}"} | (
        {"account": "account"} if kind == "az" else {}
    )
    server.trick = lambda path, handler: server.plain(handler, 404, b"<Error><Code>None</Code></Error>")
    try:
        with pytest.raises(SourceError, match=rf"{kind}://bucket"):
            with_source(f"{kind}://bucket/x", {}, listing_of, **options)
        assert server.headers
        assert all("Authorization" not in one and "authorization" not in one for one in server.headers)
    finally:
        server.close()


def test_a_key_file_of_google_cannot_name_another_server():
    server, other = HostileFiles(), HostileFiles()
    account = {"type": "service_account", "client_email": "x@y", "private_key": "no key", "private_key_id": "1",
               "gcs_base_url": f"http://127.0.0.1:{other.port}", "disable_oauth": True}  # fmt: skip
    try:
        with pytest.raises((SourceError, RequestError)) as failure:
            with_source("gs://bucket/x", {"service_account": json.dumps(account)}, listing_of,
                        endpoint=f"http://127.0.0.1:{server.port}")  # fmt: skip
        assert "no key" not in str(failure.value)
        assert not other.asked
    finally:
        server.close()
        other.close()
