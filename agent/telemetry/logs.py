"""Structured logs on stderr: one JSON object or one readable line per event.

Events are constants ("allocated", "registered") and everything that varies is a field, so a log can be searched
without parsing sentences. Fields named like credentials are masked; the agent logs none, and a library's exception
might. Standard output belongs to commands and is never logged to.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any

import structlog

__all__ = ["get_logger", "set_up"]

_SECRET_WORDS = ("password", "secret", "authorization", "credential", "bearer")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up(level: str, style: str) -> None:
    """Configures logging for the whole process. LEVEL: debug, info, warning or error. STYLE: json or console."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _mask_secrets,
            *([structlog.processors.format_exc_info] if style == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )


def get_logger(part: str) -> Any:
    """A logger whose events carry PART, the name of the agent's part that speaks."""
    return structlog.get_logger(part=part)


class _Lines:
    """Writes to standard error and never fails: a full disk or a closed pipe behind it must not fail a pod."""

    def __init__(self, *_: object) -> None:
        pass

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(message, file=sys.stderr, flush=True)  # noqa: T201

    debug = info = warning = error = critical = exception = log = msg


def _mask_secrets(_logger: Any, _method: str, event: Any) -> Any:
    for key in event:
        if any(word in key.lower() for word in _SECRET_WORDS):
            event[key] = "***"
    return event
