# SPDX-License-Identifier: Apache-2.0
"""Which addresses no source may be at, whatever network the service runs in: judged by what an address is.

IPv6 has many ways to write an IPv4 address, and a gateway or the kernel takes several of them for the same machine:
every one is judged by all the addresses that it may lead to. Private networks are no part of this: storage is there.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

__all__ = ["IPAddress", "is_forbidden", "meanings"]

IPAddress = IPv4Address | IPv6Address

_METADATA_IPV4 = frozenset(
    IPv4Address(address)
    for address in (
        "169.254.169.254",  # AWS, Google Cloud, Azure, Oracle, OpenStack, Hetzner, DigitalOcean and most others
        "169.254.170.2",  # AWS ECS, credentials of a task
        "169.254.170.23",  # AWS EKS, credentials of a pod
        "169.254.42.42",  # Scaleway
        "169.254.0.23",  # Tencent Cloud
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure, the machine's agent
        "192.0.0.192",  # Oracle Cloud, classic
    )
)
_METADATA_IPV6 = tuple(
    IPv6Network(network)
    for network in (
        "fd00:ec2::/32",  # AWS: ::254 metadata, ::23 credentials of a pod, ::253 DNS, ::123 time
        "fd20:ce::/48",  # Google Cloud: ::254
        "fd00:c1::/48",  # Oracle Cloud: ::a9fe:a9fe
        "fd00:42::/48",  # Scaleway: ::42
    )
)
_THIS_NETWORK = IPv4Network("0.0.0.0/8")  # Linux connects 0.0.0.0 to itself
_BROADCAST = IPv4Address("255.255.255.255")

_IPV4_AT_THE_END = tuple(
    IPv6Network(network)
    for network in (
        "::ffff:0:0/96",  # mapped (RFC 4291): the kernel speaks IPv4 to it
        "::/96",  # compatible (RFC 4291)
        "::ffff:0:0:0/96",  # translated (RFC 2765)
        "64:ff9b::/96",  # NAT64 (RFC 6052)
    )
)
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")  # RFC 8215: prefixes of any length of RFC 6052 are made in it
_SIX_TO_FOUR = IPv6Network("2002::/16")  # RFC 3056
_TEREDO = IPv6Network("2001::/32")  # RFC 4380
_ISATAP = frozenset(
    (0x0000_5EFE, 0x0200_5EFE, 0x0100_5EFE, 0x0300_5EFE)
)  # RFC 5214, with both bits of an EUI-64


def is_forbidden(address: str) -> bool:
    """Whether ADDRESS, in any form, leads to this machine, to all machines of a network, or to a cloud's metadata.

    What is no address at all does.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return True
    return any(_is_special(meaning) for meaning in meanings(parsed))


def meanings(address: IPAddress) -> tuple[IPAddress, ...]:
    """ADDRESS, and every IPv4 address that it may stand for.

    A NAT64 gateway may have any prefix of the operator's. Where it has 96 bits, which nearly all have, the last 32 are
    the IPv4 address: those count where they spell a metadata service, which no other address does by chance.
    """
    if isinstance(address, IPv4Address):
        return (address,)
    low = IPv4Address(int(address) & 0xFFFF_FFFF)
    embedded: list[IPAddress] = [low] if low in _METADATA_IPV4 else []
    if any(address in network for network in _IPV4_AT_THE_END):
        embedded.append(low)
    if address in _LOCAL_NAT64:
        readings = (low, *(_translated(address, length) for length in (48, 56, 64)))
        # zeros are those of a longer prefix or of a suffix; no gateway passes them on
        embedded += [reading for reading in readings if reading not in _THIS_NETWORK]
    if address in _SIX_TO_FOUR:
        embedded.append(_bits(address, 16))
    if address in _TEREDO:  # the relay's, and the host's behind it, whose bits are turned
        embedded += [_bits(address, 32), IPv4Address(int(low) ^ 0xFFFF_FFFF)]
    if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        embedded.append(low)
    return (address, *embedded)


def _bits(address: IPv6Address, start: int) -> IPv4Address:
    """The 32 bits from bit START."""
    return IPv4Address((int(address) >> (96 - start)) & 0xFFFF_FFFF)


def _translated(address: IPv6Address, length: int) -> IPv4Address:
    """The IPv4 address behind a prefix of LENGTH bits (RFC 6052, 2.2): bits 64 to 71 are left out."""
    whole = int(address)
    without_gap = (
        ((whole >> 64) << 56 | (whole & ((1 << 56) - 1))) if length < 64 else whole & ((1 << 56) - 1)
    )
    width = 120 if length < 64 else 56
    start = length if length < 64 else 0
    return IPv4Address((without_gap >> (width - start - 32)) & 0xFFFF_FFFF)


def _is_special(address: IPAddress) -> bool:
    if isinstance(address, IPv6Address):
        special = any(address in network for network in _METADATA_IPV6)
    else:
        special = address in _METADATA_IPV4 or address in _THIS_NETWORK or address == _BROADCAST
    return (
        special
        or address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
    )
