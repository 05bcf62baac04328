# SPDX-License-Identifier: Apache-2.0
"""Connects to servers of sources: never to the node itself, and never to the cloud's metadata service.

The service runs with rights of the node, and a source is text that a pod's author wrote. Without this check
http://169.254.169.254/ would be a dataset, namely the credentials of the node's machine. A name is resolved once, and
the addresses that were checked are those that are connected to: a name that resolves differently the second time passes
nothing. Clients of others that connect by themselves get addresses in place of the name (`checked_addresses`), have
their connect(2) replaced (`object_connections`), or connect through `checked_proxy`, which connects by this module.

Addresses of the network that the service runs in are its own. In a pod that is the pod's: the node's addresses are then
those of any other machine, and a NetworkPolicy is what keeps the service from them.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.text import plain
from gigaslice.roles.dataset_node.sources.forbidden_addresses import IPAddress, is_forbidden, meanings

__all__ = ["FORBIDDEN", "checked_addresses", "connect", "may_connect", "resolved"]

_IPV4, _ANY_PORT = 4, 9


FORBIDDEN = (
    "is an address of the node itself or of its cloud's metadata; datasets are not read from there "
    "(an administrator may allow it: --local-addresses on)"
)
"""Why a source is refused, after the name of its server."""


def may_connect(address: str) -> bool:
    """Whether a source may be at ADDRESS, which is one as the kernel is given it. No name is resolved."""
    return not _is_local(address)


def _is_local(address: str) -> bool:
    return is_forbidden(address) or any(map(_is_own, meanings(ip_address(address.partition("%")[0]))))


def _is_own(address: IPAddress) -> bool:
    """Whether this process's network has ADDRESS: the kernel would then speak to it from itself. Nothing is sent."""
    family = socket.AF_INET if address.version == _IPV4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _ANY_PORT))
            return str(probe.getsockname()[0]) == str(address)
    except OSError:
        return False


def resolved(host: str, port: int) -> list[str]:
    """The addresses of HOST, best first, unchecked. Raises SourceError."""
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a name of a host"
        raise SourceError(
            f"host {plain(host)} cannot be resolved: {reason}; check the source's address", retry=True
        ) from None
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def checked_addresses(host: str, port: int) -> list[str]:
    """The addresses of HOST that a source may be at, best first. At least one.

    Raises:
        SourceError: There is none, or it cannot be resolved.
    """
    allowed = [address for address in resolved(host, port) if may_connect(address)]
    if not allowed:
        raise SourceError(f"{plain(host)} {FORBIDDEN}")
    return allowed


def connect(host: str, port: int, timeout: float, *, local: bool) -> socket.socket:
    """Connects to HOST, trying its addresses in turn. LOCAL: also to addresses of the node.

    Raises:
        SourceError: No address is left that may be connected to, or none answers.
    """
    failure: OSError | None = None
    for address in resolved(host, port) if local else checked_addresses(host, port):
        try:
            connection = socket.create_connection((address, port), timeout)
        except OSError as error:
            failure = error
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    reason = (failure.strerror if failure else None) or "it does not answer"
    raise SourceError(
        f"{plain(host)}:{port} cannot be connected to: {reason}; check the source's address", retry=True
    )
