# SPDX-License-Identifier: Apache-2.0
"""The assignment that a scheduler has written on a pod, for one of its containers. Pure."""

from __future__ import annotations

from functools import lru_cache

from gigaslice.core.cluster.assignment import Assignment, AssignmentError
from gigaslice.core.model import Share

__all__ = ["decoded", "shares_in"]


def shares_in(text: str, container: str) -> tuple[Share, ...]:
    """Returns the shares of a container in an annotation; none where it does not say."""
    try:
        return decoded(text).containers.get(container, ())
    except AssignmentError:
        return ()


@lru_cache(maxsize=64)
def decoded(text: str) -> Assignment:
    """Returns an assignment; a pod's is read for each of its containers, and for each of their starts.

    Raises:
        AssignmentError: It makes no sense.
    """
    return Assignment.decode(text)
