# SPDX-License-Identifier: Apache-2.0
"""`gigaslice node`: runs the node agent."""

from __future__ import annotations

import argparse
import gc

from agent.config import Config, made_by
from gigaslice.role_settings import SETTINGS_DESCRIPTION, from_command_line, refuse_unmade
from gigaslice.runtime.command_line.command import OK
from gigaslice.runtime.settings import add_flags

HELP = "serve the GPUs of this node to the kubelet"
DESCRIPTION = SETTINGS_DESCRIPTION
SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every setting of the node agent."""
    add_flags(parser, Config)


def run(arguments: argparse.Namespace) -> int:
    """Runs the agent until it is asked to end."""
    config = from_command_line(Config, arguments)
    refuse_unmade(config, *made_by(config))
    if config.standby == "on":  # now: the rest of the program takes seconds to load on a busy machine
        from agent.front import supervise
        from agent.front.handover import HANDOVER

        supervise.announce(str(config.state_dir / HANDOVER))
    gc.disable()  # collections between imports find nothing and take a tenth of their time
    from agent.roles import node

    gc.enable()
    node.run(config)
    return OK
