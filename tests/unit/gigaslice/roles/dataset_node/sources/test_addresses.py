# SPDX-License-Identifier: Apache-2.0
"""Which addresses are this machine's own, and that what was checked is what is connected to."""

from __future__ import annotations

import contextlib
import socket

import psutil
import pytest

from gigaslice.core.dataset.errors import SourceError
from gigaslice.roles.dataset_node.sources import addresses
from gigaslice.roles.dataset_node.sources.addresses import checked_addresses, connect


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "169.254.169.254", "0.0.0.0", "168.63.129.16", "224.0.0.1",
        # spellings that the resolver takes for an address
        "127.1", "0x7f.1", "017700000001", "2130706433", "0xa9fea9fe", "2852039166", "169.254.43518",
        "0251.0376.0251.0376", "0", "localhost", "fe80::a9fe:a9fe%lo", "fd20:ce::254", "64:ff9b::a9fe:a9fe",
    ],
)  # fmt: skip
def test_addresses_of_no_other_machine_are_refused_however_they_are_written(host):
    with pytest.raises(SourceError, match="--local-addresses on"):
        checked_addresses(host, 80)


@pytest.mark.parametrize(
    "host", ["169.254.169.254.", "[::1]", "", "0x", "127.0.0.1:80", "a b", "\x00", "a" * 300, "ü" * 70]
)
def test_what_no_resolver_takes_is_said(host):
    """Or refused: a resolver may take more than others do."""
    with pytest.raises(SourceError, match=r"cannot be resolved|--local-addresses on"):
        checked_addresses(host, 80)


def test_every_address_of_an_interface_is_refused():
    found = {
        one.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for one in interface
        if one.family in (socket.AF_INET, socket.AF_INET6)
    }
    assert found
    for address in found:
        with pytest.raises(SourceError, match="--local-addresses on"):
            checked_addresses(address, 80)


@pytest.mark.parametrize("address", ["192.0.2.1", "10.1.2.3", "2001:db8::1", "fd12::1"])
def test_addresses_of_others_are_not(address):
    assert checked_addresses(address, 80) == [address]


@pytest.mark.parametrize(("source", "own"), [("192.0.2.1", True), ("192.0.2.9", False)])
@pytest.mark.parametrize("address", ["192.0.2.1", "64:ff9b::c000:201", "2002:c000:201::"])
def test_an_address_is_own_where_the_kernel_speaks_to_it_from_itself(monkeypatch, address, source, own):
    """Also on a machine that has no other interface than lo, and in every form that it may be written in."""

    class Probe:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def connect(self, where):
            self.asked = where[0]

        def getsockname(self):
            return (source if self.asked == "192.0.2.1" else "192.0.2.9", 5)

    monkeypatch.setattr(addresses.socket, "socket", Probe)
    assert addresses._is_local(address) is own


class Resolver:
    """Gives one list of addresses after the other, as a name does whose owner changes it at once."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def __call__(self, host, port, *_, **__):
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in answer]


@pytest.fixture
def connected(monkeypatch):
    """Where connections are made to; none is."""
    found = []

    def create(address, timeout):
        found.append(address[0])
        raise OSError(111, "Connection refused")

    monkeypatch.setattr(addresses.socket, "create_connection", create)
    return found


def test_a_name_is_resolved_once_and_what_was_checked_is_connected_to(monkeypatch, connected):
    rebinding = Resolver(["192.0.2.7"], ["169.254.169.254"])
    monkeypatch.setattr(addresses.socket, "getaddrinfo", rebinding)
    with pytest.raises(SourceError, match="cannot be connected to"):
        connect("rebinding.example", 80, 1.0, local=False)
    assert (rebinding.asked, connected) == (["rebinding.example"], ["192.0.2.7"])


def test_of_several_addresses_the_forbidden_ones_are_left_out(monkeypatch, connected):
    monkeypatch.setattr(
        addresses.socket, "getaddrinfo", Resolver(["169.254.169.254", "192.0.2.7", "127.0.0.1", "192.0.2.8"])
    )
    with contextlib.suppress(SourceError):
        connect("mixed.example", 80, 1.0, local=False)
    assert connected == ["192.0.2.7", "192.0.2.8"]
    connected.clear()
    with contextlib.suppress(SourceError):
        connect("mixed.example", 80, 1.0, local=True)
    assert connected == ["169.254.169.254", "192.0.2.7", "127.0.0.1", "192.0.2.8"]


def test_what_a_pod_wrote_is_shown_in_one_line():
    with pytest.raises(SourceError) as failure:
        checked_addresses("a\nb\x1b[31m", 80)
    assert str(failure.value).isprintable()
