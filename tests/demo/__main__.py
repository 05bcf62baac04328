# SPDX-License-Identifier: Apache-2.0
"""The command `python -m tests.demo`, run by `make demo`. Exit code 0 when every claim held, else 1."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.demo.clients import DemoError
from tests.demo.report import Report
from tests.demo.stage import Stage
from tests.demo.story import Story
from tests.demo.supervise import prefix, supervise
from tests.fakes.kubelet import StartError


def positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of times; write 1 or more")
    return number


def once(report: Report, arguments: argparse.Namespace, seed: int) -> None:
    """One telling; what keeps it from going on is a failed claim."""
    try:
        with Stage(report, arguments.simulate, arguments.namespaces, seed, arguments.prefix) as stage:
            try:
                Story(stage, report).tell()
            finally:
                if report.failed:
                    report.block("The end of the agent's log", stage.log_tail(30))
    except (DemoError, StartError, TimeoutError) as error:
        report.claim("the demo runs to its end", False, str(error))
    except Exception as error:  # noqa: BLE001 - a program gave an unexpected answer: that claim does not hold
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} in {where.name}, line {where.lineno}: {error}"
        report.claim("the demo runs to its end", False, text)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description="A node, two pods, real programs in them.")
    parser.add_argument(
        "--repeat", type=positive, default=1, metavar="N", help="tell it N times, one line each"
    )
    parser.add_argument(
        "--simulate", action="store_true", help="use simulated GPUs even where there is a real one"
    )
    modes = ("auto", "root", "user", "plain")
    text = "how containers are made: auto finds out what the machine allows, plain is without namespaces"
    parser.add_argument("--namespaces", choices=modes, default="auto", help=text)
    parser.add_argument("--prefix", default="", help=argparse.SUPPRESS)  # the child that tells has one
    return parser.parse_args(argv)


def tell(arguments: argparse.Namespace) -> int:
    """Tells it as often as asked; returns the exit code."""
    passed, failed = 0, []
    started = time.monotonic()
    for number in range(arguments.repeat):
        report = Report(quiet=arguments.repeat > 1)
        begun = time.monotonic()
        once(report, arguments, number)
        report.close()
        passed += report.passed
        failed += report.failed
        if arguments.repeat > 1:
            outcome = "; ".join(report.failed) or f"{report.passed} claims held"
            print(
                f"{number + 1}/{arguments.repeat}  {time.monotonic() - begun:4.1f} s  {outcome}", flush=True
            )
    print(f"\n{passed} claims held, {len(failed)} did not, in {time.monotonic() - started:.1f} s")
    for text in failed:
        print(f"FAIL  {text}")
    return 1 if failed else 0


def main(argv: list[str]) -> int:
    """Tells it in a child, so that Ctrl-C at any instant leaves nothing behind; returns the exit code."""
    arguments = parse(argv)
    if arguments.prefix:
        return tell(arguments)
    return supervise([sys.executable, "-m", "tests.demo", *argv, "--prefix", prefix()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
