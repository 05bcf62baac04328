# SPDX-License-Identifier: Apache-2.0
"""`--watch`: what a command shows, shown again and again until it is interrupted.

On a terminal a picture that is drawn over, without a flicker, on a screen of its own; else one after the other. Once
something was shown, an error of a later attempt is said and does not end it: an API server that is restarted is back in
a moment.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass

from gigaslice.core.errors import GigasliceError
from gigaslice.core.text import plain, plural
from gigaslice.runtime.command_line.command import FAILED, OK, report
from gigaslice.runtime.terminal import terminal

__all__ = ["Picture", "add_watch", "interval", "show"]

_LEAST, _MOST = 0.1, 3600.0


@dataclass(frozen=True, slots=True)
class Picture:
    """What a command shows at one moment. text: on standard output; "": nothing. notes: lines beside it; errors: lines
    that say what could not be shown, for which the exit code is 1.
    """

    text: str
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def add_watch(parser: argparse.ArgumentParser, seconds: str = "2") -> None:
    """Adds --watch. SECONDS: between two pictures, where nothing is said."""
    parser.add_argument(
        "--watch",
        "-w",
        nargs="?",
        const=seconds,
        type=interval,
        metavar="SECONDS",
        help=f"show it again every SECONDS (default {seconds}) until interrupted",
    )


def interval(text: str) -> float:
    """The seconds of --watch. Raises argparse's error with what to write."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _LEAST <= seconds <= _MOST:
        raise argparse.ArgumentTypeError(
            f"cannot repeat every {plain(text)!r} seconds; write a number from {_LEAST:g} to {_MOST:g}, or --watch last"
        )
    return seconds


def show(picture: Callable[[], Picture], seconds: float | None, *, documents: bool = False) -> int:
    """Shows it: once, or every SECONDS until interrupted, which is the normal end.

    Args:
        picture: Reads what there is to show. Where it fails, the first time ends the command.
        seconds: Between the end of one picture and the next; None: it is shown once.
        documents: Whether it is for programs: then one comes after the other, on a terminal too.

    Returns:
        The exit code.
    """
    first = picture()
    if seconds is None:
        return _printed(first, ())
    try:
        if documents or not terminal(sys.stdout).live:
            _one_after_the_other(picture, first, seconds)
        else:
            _drawn_over(picture, first, seconds)
    except KeyboardInterrupt:
        pass
    return OK


def _printed(picture: Picture, said: tuple[str, ...]) -> int:
    """Prints it, without the lines that were SAID before."""
    if picture.text:
        print(picture.text, flush=True)
    report(OK, *(note for note in picture.notes if note not in said))
    return report(FAILED, *(line for line in picture.errors if line not in said)) if picture.errors else OK


def _one_after_the_other(picture: Callable[[], Picture], first: Picture, seconds: float) -> None:
    now = first
    said: tuple[str, ...] = ()
    while True:
        _printed(now, said)
        said = (*now.notes, *now.errors)
        time.sleep(seconds)
        try:
            now = picture()
        except GigasliceError as error:
            now = Picture("", errors=(str(error),))


def _drawn_over(picture: Callable[[], Picture], first: Picture, seconds: float) -> None:
    from rich.console import Console  # a tenth of a second that only this waits for
    from rich.live import Live
    from rich.text import Text

    now, at, failed = first, time.monotonic(), ""
    with Live(console=Console(highlight=False), auto_refresh=False, screen=True) as live:
        while True:
            age = f"{time.monotonic() - at:.0f} s"
            trouble = (f"error: {failed}; below is what was there {age} ago",) if failed else ()
            beside = [
                part
                for line in (*trouble, *now.errors, *now.notes)
                for part in textwrap.wrap(plain(line), live.console.width)  # sentences, which have no columns
            ]
            text = "\n".join(_fitting([*beside, *now.text.splitlines()], live.console.height))
            live.update(Text.from_ansi(text, no_wrap=True), refresh=True)
            time.sleep(seconds)
            try:
                now, at, failed = picture(), time.monotonic(), ""
            except GigasliceError as error:
                failed = str(error)


def _fitting(lines: list[str], height: int) -> list[str]:
    """LINES, as many as the window has; the last says how many more there are."""
    if len(lines) <= height:
        return lines
    return [*lines[: height - 1], f"({plural(len(lines) - height + 1, 'more line')})"]
