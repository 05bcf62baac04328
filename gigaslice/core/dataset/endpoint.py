# SPDX-License-Identifier: Apache-2.0
"""Where a server is, parsed strictly: text that two parsers could take for two servers is refused. Pure.

What is checked and what is connected to are read by different programs: this one, obstore's and rclone's. They differ
about backslashes, percent signs, tabs, user names, other alphabets and numbers that are no usual address, so nothing
of that is let through: a host is a name of letters, digits, "-", "_" and dots, or an address as it is usually written,
and a port is a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

__all__ = ["ServerAddress", "ServerUrl"]

_MOST_NAME, _MOST_PORT = 253, 65535
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")  # clients take a name that ends so for an address
_URL = re.compile(r"(?:([A-Za-z]+)://)?([^/]*)((?:/.*)?)", re.DOTALL)
_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A host and its port."""

    host: str
    """A name, or an address; one of IPv6 without brackets."""
    port: int | None = None
    """From 1 to 65535; none where the text has none."""

    @staticmethod
    def parse(text: str) -> ServerAddress:
        """The server that "host", "host:port" or "[address]:port" names. Raises ValueError for anything else."""
        parts = _HOST_AND_PORT.fullmatch(text)
        if parts is None:
            raise ValueError("not a host and a port")
        port = int(parts[2]) if parts[2] else None
        if port is not None and not 0 < port <= _MOST_PORT:
            raise ValueError("not a port")
        if parts[1].startswith("["):
            return ServerAddress(_ipv6(parts[1][1:-1]), port)
        return ServerAddress(_host(parts[1]), port)

    @staticmethod
    def parse_host(text: str) -> ServerAddress:
        """The server that a name or an address alone names; IPv6 needs no brackets here. Raises ValueError."""
        return ServerAddress(_ipv6(text) if ":" in text else _host(text))


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """A server that is spoken to by HTTP, and a path on it."""

    scheme: str
    """In lower case; "" where the text has none."""
    server: ServerAddress
    path: str
    """With its leading "/", or empty. Percent signs stand as they were."""

    @staticmethod
    def parse(text: str) -> ServerUrl:
        """The endpoint that TEXT is, as "https://host:port/path"; only the host must be there. Raises ValueError."""
        parts = _URL.fullmatch(text)
        if parts is None or not _PATH.fullmatch(parts[3]):
            raise ValueError("not an address")
        return ServerUrl((parts[1] or "").lower(), ServerAddress.parse(parts[2]), parts[3])


def _host(text: str) -> str:
    labels = text.removesuffix(".").split(".")
    if _NUMBER.fullmatch(labels[-1]):
        IPv4Address(text)
    elif len(text) > _MOST_NAME or not all(map(_NAME.fullmatch, labels)):
        raise ValueError("not a name of a host")
    return text


def _ipv6(text: str) -> str:
    if "%" in text:  # a zone: which interface of this machine
        raise ValueError("not an address")
    IPv6Address(text)
    return text
