# SPDX-License-Identifier: Apache-2.0
"""Unforeseen exceptions as log lines like all others, with type, message and stack, wherever they happen.

An exception can end in places where no code of ours catches it: a thread, a task that is not awaited, a finalizer, a
callback of grpc or asyncio, the end of the interpreter. Each has a hook that prints a traceback on standard error, or
a logger of the standard library's that does; `catch_all` puts our log behind all of them. Local variables are never
shown: they may be credentials.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import re
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from gigaslice.core.text import plain

__all__ = ["catch_all", "describe_exception", "mask_credentials"]

_LONGEST = 16 << 10  # characters of a stack; the end says most
_CREDENTIALS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",;]+"), r"\1 ***"),
    (re.compile(r"://[^\s/@'\"]+@"), "://***@"),
)


def mask_credentials(text: str) -> str:
    """TEXT with everything masked that has the form of a credential."""
    for pattern, instead in _CREDENTIALS:
        text = pattern.sub(instead, text)
    return text


def describe_exception(error: BaseException) -> dict[str, str]:
    """ERROR as a log has it: type, message and stacktrace, as OpenTelemetry calls them."""
    kind = type(error)
    return {
        "type": kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}",
        "message": plain(mask_credentials(_words(error))),
        "stacktrace": _stack(error),
    }


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001  (an exception whose text fails is one all the same)
        return f"its text cannot be had: {type(other).__name__}"


def _stack(error: BaseException) -> str:
    try:
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
    except Exception as other:  # noqa: BLE001
        return f"its stack cannot be had: {type(other).__name__}"
    text = "\n".join(
        " " * (len(line) - len(line.lstrip(" "))) + plain(mask_credentials(line)) for line in lines
    )
    return text if len(text) <= _LONGEST else "…" + text[-_LONGEST:]


def catch_all(log: Any) -> None:
    """Logs to LOG, from now on, every exception and library message that would be printed on standard error."""

    def ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            return
        log.error("internal error", where="main thread", exc_info=(kind, error, trace))

    def thread_ended(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        name = args.thread.name if args.thread else ""
        error = args.exc_value or args.exc_type()
        log.error(
            "internal error", where=f"thread {name}", exc_info=(args.exc_type, error, args.exc_traceback)
        )

    def not_raised(args: Any) -> None:
        error = args.exc_value or args.exc_type()
        where = args.err_msg or "a finalizer"
        log.error("internal error", where=where, exc_info=(args.exc_type, error, args.exc_traceback))

    sys.excepthook = ended
    threading.excepthook = thread_ended
    sys.unraisablehook = not_raised
    root = logging.getLogger()
    for bridge in [bridge for bridge in root.handlers if isinstance(bridge, _Bridge)]:
        root.removeHandler(bridge)
    root.addHandler(_Bridge(log))
    logging.captureWarnings(True)
    if not faulthandler.is_enabled():
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
            faulthandler.enable()  # a crash inside of a C library has no other stack


class _Bridge(logging.Handler):
    """Takes what asyncio, grpc and other libraries log by the standard library's means."""

    def __init__(self, log: Any) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Hands RECORD on."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001  (a library's mistake in its own format)
            text = str(record.msg)
        failed = record.exc_info is not None and record.exc_info[1] is not None
        say = self._log.error if failed or record.levelno >= logging.ERROR else self._log.warning
        # asyncio puts a task's repr and, in debug mode, a stack behind the first line
        say(
            "library message",
            library=record.name,
            detail=text[:2000],
            exc_info=record.exc_info if failed else None,
        )
