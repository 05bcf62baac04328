# SPDX-License-Identifier: Apache-2.0
"""What the API server stand-in refuses."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818
    """A request that a server refuses, with the status and reason of the answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason
