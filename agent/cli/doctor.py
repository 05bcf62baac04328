"""`gigaslice doctor`: checks whether a node agent would work here."""

from __future__ import annotations

import argparse

from agent.cli._shared import FAILED, OK, SETTINGS_DESCRIPTION, loaded
from agent.config import Config
from gigaslice.runtime.settings import add_flags

HELP = "check whether an agent with these settings would work here"
DESCRIPTION = SETTINGS_DESCRIPTION
SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every setting of the node agent."""
    add_flags(parser, Config)


def run(known: argparse.Namespace) -> int:
    """Prints one line per finding, as soon as there is one."""
    config = loaded(known)
    from agent.commands import doctor
    from agent.roles import discovery

    failed = False
    for finding, line in doctor.as_lines(doctor.examine(config, discovery.scan_once)):
        failed = failed or finding.level == "fail"
        print(line, flush=True)
    return FAILED if failed else OK
