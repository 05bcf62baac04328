# SPDX-License-Identifier: Apache-2.0
"""The records of a node's allocations: those of every API that hands allocations out."""

from __future__ import annotations

from agent.claims.records import ClaimRecords
from agent.deviceplugin.records import DevicePluginRecords
from agent.persistence.codec import Codec

__all__ = ["CODEC"]

CODEC = Codec([DevicePluginRecords(), ClaimRecords()])
"""How the state directory is written and read, whatever API serves new pods."""
