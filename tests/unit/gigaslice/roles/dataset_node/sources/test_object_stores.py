# SPDX-License-Identifier: Apache-2.0
"""What a client of an object store is made of, and what of it would have the library panic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.core.dataset.listing import Entry, EntryKind
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.packing.object_store_target import ObjectStoreTarget
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.roles.dataset_node.sources.object_stores import ObjectStores, object_stores
from gigaslice.roles.dataset_node.sources.objects import ObjectSource
from gigaslice.roles.dataset_node.sources.opening import effective_spec, open_source
from tests.fakes.hostile_files import HostileFiles

NOWHERE = "http://127.0.0.1:1"


def unchecked(kind: str, bucket: str = "b", endpoint: str = NOWHERE) -> SourceSpec:
    options = {"endpoint": endpoint} | ({"account": "acct"} if kind == "az" else {})
    return SourceSpec(kind, f"{bucket}/p", tuple(options.items()))


@pytest.fixture
def panicking() -> ObjectStores:
    """Of a bucket whose name `SourceSpec.parse` refuses, for which the library panics at every request."""
    return object_stores(unchecked("s3", "a b"), Credentials({}), local=True)


def test_a_panic_of_the_library_is_an_answer_wherever_it_is_called(
    panicking: ObjectStores, tmp_path: Path
) -> None:
    source, place = (
        ObjectSource(panicking, "p"),
        ObjectStoreTarget(panicking, unchecked("s3", "a b"), tmp_path),
    )
    entry = Entry(b"x", EntryKind.FILE, 1, '"tag"')
    with pytest.raises(SourceError, match="the listing"):
        asyncio.run(source.list())
    with pytest.raises(SourceError, match='"x"'):
        source.read_into(entry, 0, 1, lambda *_: None)
    calls = [
        place.manifest,
        place.other_file,
        lambda: place.size("x"),
        lambda: place.begin("x", b"listing"),
        lambda: place._put("x", b"x"),
        lambda: place.remove(["x"]),
    ]
    for call in calls:
        with pytest.raises(SourceError, match=r"has failed for .*; check bucket, endpoint and credentials"):
            call()
    place.abandon()


def test_what_ends_a_process_is_no_panic(panicking: ObjectStores, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ObjectSource(panicking, "p")
    entry = Entry(b"x", EntryKind.FILE, 1, '"tag"')
    for kind in (KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit):

        def ended(*_: object, kind: type[BaseException] = kind, **__: object) -> None:
            raise kind

        monkeypatch.setattr("obstore.get", ended)
        with pytest.raises(kind):
            source.read_into(entry, 0, 1, lambda *_: None)


ENDPOINTS = [
    f"{NOWHERE}/a b", f"{NOWHERE}\\@10.0.0.1", "http://127.0.0.1%2f:1", "http://[::1", "http://a:1:2",
    "http://a:99999",
    "http://a b", f"{NOWHERE}/\x7f", "http://10.0.0.1\\@store:9000", "http://a%40b", "http://127.1:9000",
    "ftp://a", "a:1",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_that_is_no_address_has_no_client(kind: str, endpoint: str) -> None:
    with pytest.raises(RequestError, match="is no address; write it as https://host:port"):
        object_stores(unchecked(kind, endpoint=endpoint), Credentials({}), local=True)
    with pytest.raises(RequestError):
        SourceSpec.parse(f"{kind}://b/p", {"endpoint": endpoint})


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if one not in ("ftp://a", "a:1")])
def test_an_endpoint_of_a_secret_is_no_other(endpoint: str) -> None:
    with pytest.raises(RequestError, match="endpoint"):
        effective_spec(SourceSpec.parse("s3://b/p"), Credentials({"endpoint": endpoint}))


VALUES = ["a\nb", "a\r\nX: y", "a\x00", "a\x7f", "a b", "é"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    ("kind", "name", "others"),
    [
        ("s3", "access_key", {"secret_key": "s"}),
        ("s3", "session_token", {"access_key": "k", "secret_key": "s"}),
        ("gs", "token", {}),
        ("az", "token", {}),
        ("az", "tenant_id", {"client_id": "c", "client_secret": "s"}),
        ("az", "client_id", {"tenant_id": "t", "client_secret": "s"}),
    ],
)
def test_a_credential_that_no_header_takes_is_a_mistake_with_its_name(
    kind: str, name: str, others: dict[str, str], value: str
) -> None:
    with pytest.raises(RequestError, match=f"{name} in the volume's Secret") as caught:
        object_stores(unchecked(kind), Credentials({name: value, **others}), local=True)
    assert value not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["http://a:b/x", "https://a b/x", "http://[::1/x", "http://a:0/x", "http://127.1/x"]
)
def test_a_server_of_files_that_is_no_address_is_a_mistake(text: str) -> None:
    with pytest.raises(RequestError, match="write it as"):
        SourceSpec.parse(text)
    kind, _, location = text.partition("://")
    with pytest.raises(RequestError, match="write it as"):
        asyncio.run(open_source(SourceSpec(kind, location), {}, mounts=None))


ANSWERS = [(400, "UnsupportedAlgorithm"), (400, "MissingSecurityHeader"), (403, "AccessDenied"), (401, "")]


@pytest.mark.parametrize(("status", "code"), ANSWERS)
@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_a_store_that_wants_credentials_is_told_apart_from_wrong_ones(
    kind: str, status: int, code: str
) -> None:
    server = HostileFiles()
    server.trick = lambda _, handler: server.plain(
        handler, status, f"<Error><Code>{code}</Code></Error>".encode()
    )
    spec = unchecked(kind, endpoint=f"http://127.0.0.1:{server.port}")
    secret = {"s3": {"access_key": "k", "secret_key": "s"}}.get(kind, {"token": "t"})
    texts = []
    try:
        for given in ({}, secret):
            source = ObjectSource(object_stores(spec, Credentials(given), local=True), "p")
            with pytest.raises(SourceError) as caught:
                asyncio.run(source.list())
            texts.append(str(caught.value))
            assert caught.value.denied or (given and status == 400)
    finally:
        server.close()
    assert "to requests without credentials" in texts[0] and "the volume's Secret has none" in texts[0]
    assert "without credentials" not in texts[1] and "check" in texts[1]
