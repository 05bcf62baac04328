# SPDX-License-Identifier: Apache-2.0
"""``vcuda doctor``: prints the findings of ``vcuda.doctor``, one line each. Exit code 1 when a check failed."""

from __future__ import annotations

import argparse

from vcuda import settings
from vcuda.finding import coloured

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "check whether limits hold on this machine"
DESCRIPTION = "Checks driver, NVML, C library, permissions and library, and gives a remedy for each problem."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.epilog = "exit codes: 0 no check failed, 1 a check failed"
    parser.add_argument(
        "program", nargs="?", default="", metavar="PROGRAM", help="also check this program's file"
    )


def run(parsed: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from vcuda import doctor

    failed = False
    for finding in doctor.examine(settings.read_settings(), parsed.program):
        failed = failed or finding.level == "fail"
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        print(
            coloured(finding, f"{finding.level:<5} {finding.subject:<20} {finding.text}{remedy}"), flush=True
        )
    return 1 if failed else 0
