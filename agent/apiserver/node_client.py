# SPDX-License-Identifier: Apache-2.0
"""The node agent's client of the API server: that of the cluster's roles, with the agent's bounds."""

from __future__ import annotations

import vcuda
from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.client import KubeClient

__all__ = ["node_client"]

_MOST_BYTES = (
    1 << 20
)  # no list and no watch is read by this bound; the answer to a change of the node is the longest
_PIECE_BYTES = 64 << 10


def node_client(access: Access, **seconds: float) -> KubeClient:
    """Returns a client. SECONDS: how long it waits, as of `KubeClient`."""
    agent = f"gigaslice-node/{vcuda.__version__}"
    return KubeClient(access, agent, most=_MOST_BYTES, piece=_PIECE_BYTES, **seconds)
