# SPDX-License-Identifier: Apache-2.0
"""Which commands `gigaslice` has, and where each is: a new command is a module and a line here.

Only the command that is asked for is imported (`gigaslice.runtime.command_line.command` says what it offers). A plain
table, and no entry points: to look those up takes 2 to 3 MiB and reads the file of every installed package.
"""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = {
    "completion": "gigaslice.runtime.command_line.completion",
    "controller": "gigaslice.roles.controller.command",
    "cordon": "agent.commands.cordon",
    "dataset": "gigaslice.roles.dataset_node.command",
    "doctor": "agent.commands.doctor",
    "driver-limits": "gigaslice.roles.driver_limits.command",
    "exec": "gigaslice.cluster_commands.exec_on_node",
    "explain": "gigaslice.cluster_commands.explain",
    "man": "gigaslice.runtime.command_line.man",
    "node": "agent.commands.node",
    "nodes": "gigaslice.cluster_commands.nodes",
    "resize": "agent.commands.resize",
    "rewrite": "gigaslice.cluster_commands.rewrite",
    "scheduler": "gigaslice.roles.scheduler.command",
    "status": "agent.commands.status",
    "top": "gigaslice.cluster_commands.top",
    "topology": "agent.commands.topology",
    "uncordon": "agent.commands.uncordon",
    "version": "gigaslice_cli.version",
}
"""Name -> module, in the order of --help."""
