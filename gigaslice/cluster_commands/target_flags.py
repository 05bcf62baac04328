"""What the commands that show the whole cluster have in common: which cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gigaslice.runtime import settings
from gigaslice.runtime.command_line.command import OK, report

if TYPE_CHECKING:
    from gigaslice.cluster_commands.cluster import ClusterContent, Target

__all__ = ["add_target", "cluster_target", "tell_notes"]


def add_target(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say which cluster is meant."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help="default: the files of $KUBECONFIG, else ~/.kube/config",
    )
    parser.add_argument(
        "--context", metavar="NAME", default="", help="of the kubeconfig; default: its current one"
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        default="",
        help="an API server without TLS, such as http://127.0.0.1:8001 of `kubectl proxy`; for logins by a command",
    )


def cluster_target(arguments: argparse.Namespace) -> Target:
    """The cluster that is meant.

    Raises:
        ConfigError: There is none.
    """
    from gigaslice.cluster_commands import cluster

    return cluster.target(arguments.kubeconfig, arguments.context, arguments.server, settings.environment())


def tell_notes(content: ClusterContent) -> None:
    """Prints what is missing in the answer on standard error."""
    report(OK, *(f"note: {note}" for note in content.notes))
