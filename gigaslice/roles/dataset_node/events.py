# SPDX-License-Identifier: Apache-2.0
"""Every reason of an event that the dataset service reports on a pod, as one table. Values only."""

from __future__ import annotations

from gigaslice.core.kube.reasons import EventReason

__all__ = ["EVENTS", "FETCHING", "NOT_CACHED", "NOT_READY", "READY"]

FETCHING = EventReason(
    "DatasetFetching", "Normal", "how far the fetch is, at 0, 25, 50 and 75 %, and what takes long"
)
READY = EventReason("DatasetReady", "Normal", "the data are mounted, and how long that took")
NOT_READY = EventReason("DatasetNotReady", "Warning", "why not; it is tried again by itself")
NOT_CACHED = EventReason(
    "DatasetNotCached", "Warning", "the node has no room for the data: the pod reads the storage itself"
)
EVENTS = (FETCHING, READY, NOT_READY, NOT_CACHED)
"""In the order of a volume's life."""
