# SPDX-License-Identifier: Apache-2.0
"""Which addresses are a machine's own or a cloud's metadata, in every form that they can be written in."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from gigaslice.roles.dataset_node.sources.forbidden_addresses import is_forbidden, meanings

# What each cloud documents for its metadata, and for credentials that are had the same way.
METADATA = [
    "169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.42.42", "169.254.0.23", "100.100.100.200",
    "168.63.129.16", "192.0.0.192",
    "fd00:ec2::254", "fd00:ec2::23", "fd00:0ec2:0:0:0:0:0:0254", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42",
    "fe80::a9fe:a9fe", "fe80::a9fe:a9fe%eth0", "fe80::1%2",
]  # fmt: skip
OWN = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "255.255.255.255", "224.0.0.1", "::", "::1", "ff02::1",
    "169.254.1.1",
]  # fmt: skip
FREE = [
    "10.0.0.1", "172.16.9.9", "192.168.1.1", "100.64.0.1", "192.0.2.1", "203.0.113.7", "8.8.8.8", "168.63.129.17",
    "100.100.100.201", "2001:db8::1", "fd00::1", "fd00:1234::254", "fc00::a9fe:1", "2606:4700::1111",
    "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::", "::ffff:10.0.0.1", "fec0::1", "2001:db8::5efe:a00:1",
]  # fmt: skip


@pytest.mark.parametrize("address", [*METADATA, *OWN])
def test_metadata_and_the_machine_itself(address):
    assert is_forbidden(address)


@pytest.mark.parametrize("address", FREE)
def test_private_networks_and_all_others_stay(address):
    assert not is_forbidden(address)


@pytest.mark.parametrize(
    "text", ["", "localhost", "0xa9fea9fe", "2852039166", "169.254.43518", "010.0.0.1", "1.2.3.4."]
)
def test_what_is_no_address_is_refused(text):
    """Names and old spellings are resolved before; what comes here is what a connection is made to."""
    assert is_forbidden(text)


def forms(ipv4: str) -> dict[str, IPv6Address]:
    """IPV4 in every form of IPv6 that has one, each built from its definition."""
    low = int(IPv4Address(ipv4))
    halves = f"{low >> 16:x}:{low & 0xFFFF:x}"
    octets = IPv4Address(ipv4).packed.hex()
    o1, o2, o3, o4 = (octets[at : at + 2] for at in range(0, 8, 2))
    texts = {
        "mapped": f"::ffff:{ipv4}",
        "compatible": f"::{ipv4}",
        "translated": f"::ffff:0:{ipv4}",
        "nat64": f"64:ff9b::{halves}",
        "nat64, /48": f"64:ff9b:1:{o1}{o2}:00{o3}:{o4}00::",
        "nat64, /56": f"64:ff9b:1:ab{o1}:00{o2}:{o3}{o4}::",
        "nat64, /64": f"64:ff9b:1:abcd:00{o1}:{o2}{o3}:{o4}00:0",
        "nat64, /96": f"64:ff9b:1:abcd:0:cdef:{halves}",
        "6to4": f"2002:{halves}::",
        "6to4, a host": f"2002:{halves}:1::7",
        "teredo, relay": f"2001:0:{halves}:8000:63bf:f5ff:fffe",
        "teredo, host": f"2001:0:c000:201:8000:63bf:{(low >> 16) ^ 0xFFFF:x}:{(low & 0xFFFF) ^ 0xFFFF:x}",
        "isatap": f"2001:db8::5efe:{halves}",
        "isatap, global": f"2001:db8:1:2:200:5efe:{halves}",
        "isatap, unique local": f"fd12::5efe:{halves}",
    }
    return {name: IPv6Address(text) for name, text in texts.items()}


@pytest.mark.parametrize(
    "ipv4", ["169.254.169.254", "127.0.0.1", "100.100.100.200", "168.63.129.16", "169.254.7.7"]
)
def test_an_ipv4_address_is_refused_in_every_form(ipv4):
    for name, address in forms(ipv4).items():
        assert IPv4Address(ipv4) in meanings(address), name
        assert is_forbidden(str(address)), name


@pytest.mark.parametrize("ipv4", ["10.1.2.3", "192.168.7.9", "8.8.4.4"])
def test_an_ipv4_address_that_is_allowed_is_in_every_form(ipv4):
    for name, address in forms(ipv4).items():
        assert IPv4Address(ipv4) in meanings(address), name
        assert not is_forbidden(str(address)), name


def test_metadata_behind_a_gateway_with_a_prefix_of_its_operators():
    assert is_forbidden("2001:db8:64::a9fe:a9fe") and is_forbidden("fd99::100.100.100.200")
    assert not is_forbidden("2001:db8:64::a9fe:707"), (
        "link-local IPv4 as a whole is 65,536 hosts of any network"
    )


def test_an_address_means_itself_first():
    for text in (*FREE, *OWN):
        assert meanings(ip_address(text))[0] == ip_address(text)
