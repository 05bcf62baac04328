# SPDX-License-Identifier: Apache-2.0
"""What an API server that was not reached or refused is to all who ask it, and the paths of its objects."""

from __future__ import annotations

from urllib.parse import quote

from gigaslice.core.errors import GigasliceError
from gigaslice.core.text import whole_characters

__all__ = [
    "CONFLICT",
    "GONE",
    "LONGEST_RETRY_AFTER",
    "NOT_FOUND",
    "TOO_MANY",
    "ApiFailure",
    "NameFailure",
    "object_path",
]

CONFLICT, GONE, NOT_FOUND, TOO_MANY = 409, 410, 404, 429
LONGEST_RETRY_AFTER = 300.0


class ApiFailure(GigasliceError):  # noqa: N818  (an answer that is often foreseen, and handled by its status)
    """The API server was not reached, or refused.

    Attributes:
        status: The answer's status; 0 where there was no complete answer, and the request may have had its effect.
        reason: The API's own word, such as "AlreadyExists"; empty where there is none.
        retry_after: Seconds that the server asks to be left alone, at most five minutes.
        sent: Whether the server may have received the request.
    """

    def __init__(
        self, text: str, status: int = 0, *, reason: str = "", retry_after: float = 0.0, sent: bool = True
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.sent = sent


class NameFailure(ApiFailure):
    """Nothing was asked: there is no object of such a name, and never will be."""


def object_path(*segments: str) -> str:
    """Returns the path of these segments, each quoted: a name can never become another path.

    Raises:
        NameFailure: A segment is a name that no quoting makes one segment.
    """
    for segment in segments:
        if segment in ("", ".", "..") or segment != whole_characters(segment):
            raise NameFailure(f"{segment!a} is no name", sent=False)
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)
