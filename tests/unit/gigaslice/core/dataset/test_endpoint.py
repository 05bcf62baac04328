# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers, of which two parsers must never make two servers."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.endpoint import ServerAddress, ServerUrl

SERVERS = [
    ("minio", "minio", None),
    ("minio:9000", "minio", 9000),
    ("MinIO.storage.svc.cluster.local.:1", "MinIO.storage.svc.cluster.local.", 1),
    ("my_store-1:65535", "my_store-1", 65535),
    ("10.0.0.1", "10.0.0.1", None),
    ("xn--bcher-kva.example:443", "xn--bcher-kva.example", 443),
    ("[fd12::7]", "fd12::7", None),
    ("[::ffff:10.0.0.1]:9000", "::ffff:10.0.0.1", 9000),
]
NO_SERVERS = [
    *("", ":", ":9000", "a:", "a:0", "a:65536", "a:99999", "a:x", "a:-1", "a:+1", "a:\u0663", "a:1:2",
      "a b", " a", "a\t", "a\n"),
    *("u@a", "u:p@a", "a\\@b", "a\\b", "a%2fb", "a%40b",
      "a%", "a/b", "a?b", "a#b", "a,b", "a;b", "a..b", ".a", ".", "-a"),
    *("a-", "é", "ß.de", "a\u3002b", "\uff41", "a\x00", "a\x7f", "a" * 64, "a." * 127 + "b",
      "<a>", "{a}", "a|b", "a^b", "`a`"),
    *("1", "2130706433", "127.1", "127.0.0.01", "0x7f.0.0.1", "a.0x7f", "0x",
      "1.2.3.4.5", "256.0.0.1", "10.0.0.1.", "a.1"),
    *("::1", "[::1", "::1]", "[]", "[a]", "[::1%eth0]", "[::1%25eth0]", "[::1]a",
      "[::1]:", "[[::1]]", "[10.0.0.1]", "[v1.a]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "host", "port"), SERVERS)
def test_a_host_and_a_port(text: str, host: str, port: int | None) -> None:
    assert ServerAddress.parse(text) == ServerAddress(host, port)
    for path in ("", "/", "/minio/a%20b/"):
        assert ServerUrl.parse(f"HTTPS://{text}{path}") == ServerUrl("https", ServerAddress(host, port), path)
    assert ServerUrl.parse(text) == ServerUrl("", ServerAddress(host, port), "")


@pytest.mark.parametrize("text", NO_SERVERS)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ServerAddress.parse(text)
    for endpoint in (f"http://{text}", f"http://{text}:9000"):
        # what has a path or a port of its own is another endpoint, and a good one
        if text not in ("a/b", "a:"):
            with pytest.raises(ValueError):
                ServerUrl.parse(endpoint)


@pytest.mark.parametrize(
    "path", [" ", "/a b", "/a\\b", "/%zz", "/%", "/a?b", "/a#b", "/é", "/a\x7f", "/a\n", "/<a>", "/a`", "?x", "#x"]
)  # fmt: skip
def test_a_path_that_no_client_takes_as_it_is_is_refused(path: str) -> None:
    with pytest.raises(ValueError):
        ServerUrl.parse(f"http://minio:9000{path}")


def test_a_host_alone_may_be_an_address_without_brackets() -> None:
    assert ServerAddress.parse_host("::1").host == "::1"
    assert ServerAddress.parse_host("store").host == "store"
    for text in ("store:22", "[::1]", "::1%eth0", "a b", "u@store"):
        with pytest.raises(ValueError):
            ServerAddress.parse_host(text)


@given(st.text(st.sampled_from("ab1.:/@\\%[]#?-_ \t2e0x\ufb00\u3002")))
def test_what_is_taken_is_read_alike_by_another_parser(text: str) -> None:
    try:
        parsed = ServerUrl.parse(f"http://{text}")
    except ValueError:
        return
    other = urlsplit(f"http://{text}")
    assert (other.hostname, other.port) == (parsed.server.host.lower(), parsed.server.port)
    assert not other.username and not other.query and not other.fragment
    if parsed.server.host.rstrip(".").rpartition(".")[2].isdigit():
        ip_address(parsed.server.host)
