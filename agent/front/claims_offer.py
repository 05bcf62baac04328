# SPDX-License-Identifier: Apache-2.0
"""How the agent offers to prepare claims; the front passes its bytes on unread."""

from __future__ import annotations

import binascii
import json
from typing import Any, NamedTuple

__all__ = ["ClaimsOffer"]


class ClaimsOffer(NamedTuple):
    """The driver DRIVER: paths of its socket SERVICE, and of REGISTRATION, by which the kubelet finds it.

    info: a PluginInfo, as bytes.
    """

    service: str
    registration: str
    driver: str
    info: bytes

    @property
    def key(self) -> tuple[str, str]:
        """Where it is; what it is may change."""
        return self.registration, self.service

    def dump(self) -> dict[str, Any]:
        """As JSON can have it."""
        return {**self._asdict(), "info": binascii.b2a_hex(self.info).decode()}

    @classmethod
    def load(cls, document: dict[str, Any]) -> ClaimsOffer:
        """What `dump` made."""
        info = binascii.a2b_hex(document["info"])
        return cls(document["service"], document["registration"], document["driver"], info)

    def to_bytes(self) -> bytes:
        """As it goes to the front."""
        return json.dumps(self.dump()).encode()

    @classmethod
    def of_bytes(cls, raw: bytes) -> ClaimsOffer:
        """What `to_bytes` made."""
        return cls.load(json.loads(raw))
