# SPDX-License-Identifier: Apache-2.0
"""What the agent offers to the kubelet under one name; the front passes its bytes on unread."""

from __future__ import annotations

import binascii
import json
from typing import Any, NamedTuple

__all__ = ["ResourceOffer"]


class ResourceOffer(NamedTuple):
    """RESOURCE at DIRECTORY/SOCKET. options: a DevicePluginOptions. register: a RegisterRequest. Both are bytes."""

    directory: str
    socket: str
    resource: str
    options: bytes
    register: bytes

    @property
    def key(self) -> tuple[str, str]:
        """Where it is; what it is may change."""
        return self.directory, self.socket

    def dump(self) -> dict[str, Any]:
        """As JSON can have it."""
        packed = {"options": binascii.b2a_hex(self.options), "register": binascii.b2a_hex(self.register)}
        return {**self._asdict(), **{name: value.decode() for name, value in packed.items()}}

    @classmethod
    def load(cls, document: dict[str, Any]) -> ResourceOffer:
        """What `dump` made."""
        options, register = binascii.a2b_hex(document["options"]), binascii.a2b_hex(document["register"])
        return cls(document["directory"], document["socket"], document["resource"], options, register)

    def to_bytes(self) -> bytes:
        """As it goes to the front."""
        return json.dumps(self.dump()).encode()

    @classmethod
    def of_bytes(cls, raw: bytes) -> ResourceOffer:
        """What `to_bytes` made."""
        return cls.load(json.loads(raw))
