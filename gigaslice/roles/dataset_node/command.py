# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset`: the dataset service of a node, and what else has to do with datasets as subcommands.

A subcommand is a module, as a command is; only the one that was asked for does more than add its arguments.
"""

from __future__ import annotations

import argparse

from gigaslice.role_settings import SETTINGS_DESCRIPTION, from_command_line, refuse_unmade
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.runtime.command_line import extras
from gigaslice.runtime.command_line.command import OK, add_commands
from gigaslice.runtime.settings import add_flags

HELP = (
    "fetch datasets to this node and mount them where pods ask; with a subcommand: see, pack and delete them"
)
DESCRIPTION = (
    "Without a subcommand: the dataset service of a node, a CSI driver of the kubelet. "
    + SETTINGS_DESCRIPTION
)
SETTINGS = True
SUBCOMMANDS = {
    "evict": "gigaslice.roles.dataset_node.subcommands.evict",
    "pack": "gigaslice.roles.dataset_node.subcommands.pack",
    "prefetch": "gigaslice.roles.dataset_node.subcommands.prefetch",
    "ps": "gigaslice.roles.dataset_node.subcommands.ps",
    "wait": "gigaslice.roles.dataset_node.subcommands.wait",
}
"""Name -> module."""
_COMMANDS = f"; the commands of this service are {', '.join(SUBCOMMANDS)}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the settings of the service, and the subcommands."""
    add_flags(parser, DatasetSettings)
    add_commands(parser, SUBCOMMANDS)


def run(arguments: argparse.Namespace) -> int:
    """Runs the service until it is asked to end."""
    config = from_command_line(DatasetSettings, arguments)
    from gigaslice.roles.dataset_node import service

    extras.need("obstore")  # loaded with the first bucket
    refuse_unmade(config, "state_dir", "kubelet_root", hint=_COMMANDS)
    service.run(config, arguments.frame.version)
    return OK
