"""Which addresses are this machine's own."""

from __future__ import annotations

import socket

import psutil
import pytest

from gigaslice.dataset.errors import SourceError
from gigaslice.dataset_node.sources import addresses
from gigaslice.dataset_node.sources.addresses import refuse_local


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "::ffff:127.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "168.63.129.16",
        "224.0.0.1",
    ],
)
def test_addresses_of_no_other_machine_are_refused(address):
    with pytest.raises(SourceError, match="--local-addresses on"):
        refuse_local(address, 80)


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
            refuse_local(address, 80)


@pytest.mark.parametrize("address", ["192.0.2.1", "203.0.113.7", "2001:db8::1"])
def test_addresses_of_others_are_not(address):
    refuse_local(address, 80)


@pytest.mark.parametrize(("source", "own"), [("192.0.2.1", True), ("192.0.2.9", False)])
def test_an_address_is_own_where_the_kernel_speaks_to_it_from_itself(monkeypatch, source, own):
    """Also on a machine that has no other interface than lo."""

    class Probe:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def connect(self, where):
            assert where[0] == "192.0.2.1"

        def getsockname(self):
            return (source, 5)

    monkeypatch.setattr(addresses.socket, "socket", Probe)
    assert addresses._local("192.0.2.1") is own
