# SPDX-License-Identifier: Apache-2.0
"""Structured logs on stderr: one JSON object or one readable line per event.

Events are constants ("allocated", "registered") and everything that varies is a field, so a log can be searched
without parsing sentences. Fields named like credentials are masked; the agent logs none, and a library's exception
might. Standard output belongs to commands and is never logged to. Text of others is made harmless, and what repeats is
counted (`log_flood`): both here, for every line.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import Any

from gigaslice.core.text import plain
from gigaslice.runtime.failures import describe_exception, mask_credentials
from gigaslice.runtime.log_flood import Flood, subject
from gigaslice.runtime.structlog_lean import structlog

__all__ = ["chosen", "get_logger", "internal_error", "set_up"]

_SECRET_WORDS = ("password", "secret", "authorization", "credential", "bearer")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_chosen = "info", "console"


def chosen() -> tuple[str, str]:
    """Level and style, as they were set up."""
    return _chosen


def set_up(level: str, style: str) -> None:
    """Configures logging for the whole process. LEVEL: debug, info, warning or error. STYLE: json or console."""
    global _chosen  # noqa: PLW0603
    _chosen = level, style
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _Counted(),
            _mask_secrets,
            _plain_text,
            _with_exception if style == "json" else _with_stack,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )


def internal_error(error: BaseException) -> None:
    """Logs an unforeseen ERROR, once however many borders it passes."""
    if getattr(error, "_logged", False):
        return
    with contextlib.suppress(AttributeError, TypeError):
        error._logged = True  # type: ignore[attr-defined]
    get_logger("node").error("internal error", exc_info=error)


def get_logger(part: str) -> Any:
    """A logger whose events carry PART, the name of the agent's part that logs."""
    return structlog.get_logger(part=part)


class _Lines:
    """Writes to standard error and never fails: a full disk or a closed pipe behind it must not fail a pod."""

    def __init__(self, *_: object) -> None:
        pass

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(message + "\n")  # at once: the front writes to the same place
            sys.stderr.flush()

    debug = info = warning = error = critical = exception = log = msg


class _Counted:
    """Drops lines that repeat too often; `--log-level debug` is never cut."""

    def __init__(self) -> None:
        self._flood = Flood()

    def __call__(self, _logger: Any, method: str, event: Any) -> Any:
        if method == "debug":
            return event
        left_out = self._flood.left_out(subject(event), time.monotonic())
        if left_out is None:
            raise structlog.DropEvent
        return {**event, "left_out": left_out} if left_out else event


def _plain_text(_logger: Any, _method: str, event: Any) -> Any:
    return {key: _plain(value) for key, value in event.items()}


def _with_exception(_logger: Any, _method: str, event: Any) -> Any:
    """The exception as fields of its own: type, message, stacktrace."""
    error = _exception(event)
    return event if error is None else {**event, "exception": describe_exception(error)}


def _with_stack(_logger: Any, _method: str, event: Any) -> Any:
    """The exception as the lines that people read."""
    error = _exception(event)
    return event if error is None else {**event, "exception": describe_exception(error)["stacktrace"]}


def _exception(event: Any) -> BaseException | None:
    exc_info = event.pop("exc_info", None)
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, list | tuple):
        return next((part for part in exc_info if isinstance(part, BaseException)), None)
    return sys.exc_info()[1] if exc_info else None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(mask_credentials(value))
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(part) for key, part in value.items()}
    return value


def _mask_secrets(_logger: Any, _method: str, event: Any) -> Any:
    for key in event:
        if any(word in key.lower() for word in _SECRET_WORDS):
            event[key] = "***"
    return event
