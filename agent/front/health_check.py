# SPDX-License-Identifier: Apache-2.0
"""The two messages of grpc.health.v1.Health/Check, without the library that would decode them. Pure."""

from __future__ import annotations

from agent.front import grpc

__all__ = ["asked_service", "health"]

_SERVICE_FIELD = 0x0A  # number 1, a text
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # field 1, an enum
_LONGEST = 1 << 14


def asked_service(message: bytes) -> str:
    """The service that a HealthCheckRequest is about; empty where it is about all. Raises StatusError."""
    if not message:
        return ""
    if message[0] != _SERVICE_FIELD or len(message) > _LONGEST:
        raise _malformed()
    length = 0
    for at in range(1, min(len(message), 4)):
        length |= (message[at] & 0x7F) << 7 * (at - 1)
        if not message[at] & 0x80:
            service = message[at + 1 :]
            if len(service) == length:
                return service.decode("utf-8", "replace")
            break
    raise _malformed()


def health(*, serving: bool) -> bytes:
    """A HealthCheckResponse."""
    return _SERVING if serving else _NOT_SERVING


def _malformed() -> grpc.StatusError:
    return grpc.StatusError(grpc.INTERNAL, "the request is no HealthCheckRequest")
