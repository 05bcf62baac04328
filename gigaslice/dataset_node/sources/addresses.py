"""Which addresses a pod's source may be at: not the node itself, and not the cloud's metadata service.

The service runs with rights of the node, and a source is text that a pod's author wrote. Without this check
http://169.254.169.254/ would be a dataset, namely the credentials of the node's machine. The check is made on the
address that is connected to, not on the name, so that a name which resolves differently the second time passes nothing.

Addresses of the network that the service runs in are its own. In a pod that is the pod's: the node's addresses are then
those of any other machine, and a NetworkPolicy is what keeps the service from them.
"""

from __future__ import annotations

import ipaddress
import socket

from gigaslice.dataset.errors import SourceError

__all__ = ["connect", "refuse_local"]

_IPV4, _ANY_PORT = 4, 9
_METADATA = frozenset(("fd00:ec2::254", "100.100.100.200", "168.63.129.16"))


def _local(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return (
        found.is_loopback
        or found.is_link_local
        or found.is_unspecified
        or found.is_multicast
        or str(found) in _METADATA
        or _own(found)
    )


def _own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether this process's network has ADDRESS: the kernel would then speak to it from itself. Nothing is sent."""
    family = socket.AF_INET if address.version == _IPV4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _ANY_PORT))
            return str(probe.getsockname()[0]) == str(address)
    except OSError:
        return False


def _refused(host: str) -> SourceError:
    return SourceError(
        f"{host} is an address of the node itself or of its cloud's metadata; datasets are not read from there "
        "(an administrator may allow it: --local-addresses on)"
    )


def _resolved(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a name of a host"
        raise SourceError(
            f"host {host} cannot be resolved: {reason}; check the source's address", retry=True
        ) from None
    return [str(one[4][0]) for one in found]


def refuse_local(host: str, port: int) -> None:
    """Refuses HOST if it resolves to an address of the node. For clients whose connections cannot be checked.

    Raises:
        SourceError: It does, or it cannot be resolved.
    """
    if any(_local(one) for one in _resolved(host, port)):
        raise _refused(host)


def connect(host: str, port: int, timeout: float, *, local: bool) -> socket.socket:
    """Connects to HOST, trying its addresses in turn. LOCAL: also to addresses of the node.

    Raises:
        SourceError: No address is left that may be connected to, or none answers.
    """
    allowed = [one for one in _resolved(host, port) if local or not _local(one)]
    if not allowed:
        raise _refused(host)
    failure: OSError | None = None
    for address in allowed:
        try:
            found = socket.create_connection((address, port), timeout)
        except OSError as error:
            failure = error
        else:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return found
    reason = (failure.strerror if failure else None) or "it does not answer"
    raise SourceError(
        f"{host}:{port} cannot be connected to: {reason}; check the source's address", retry=True
    )
