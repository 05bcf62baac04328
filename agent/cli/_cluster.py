"""What the commands that show the whole cluster have in common: which cluster, and the libraries for it."""

from __future__ import annotations

import argparse
import importlib.util
from typing import TYPE_CHECKING

from agent.cli._shared import OK, report
from gigaslice.errors import MissingError
from gigaslice.runtime import settings

if TYPE_CHECKING:
    from agent.commands.cluster import ClusterContent, Target

__all__ = ["add_target", "cluster_target", "tell_notes"]

_LIBRARIES = ("aiohttp", "orjson")


def add_target(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say which cluster is meant."""
    parser.add_argument(
        "--kubeconfig", metavar="FILE", default="", help="default: $KUBECONFIG, then ~/.kube/config"
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


def cluster_target(known: argparse.Namespace) -> Target:
    """The cluster that is meant.

    Raises:
        MissingError: The libraries for it are not installed.
        ConfigError: There is none.
    """
    if not all(map(importlib.util.find_spec, _LIBRARIES)):
        raise MissingError("this command needs the cluster's libraries; pip install 'gigaslice[cluster]'")
    from agent.commands import cluster

    return cluster.target(known.kubeconfig, known.context, known.server, settings.environment())


def tell_notes(content: ClusterContent) -> None:
    """Prints what is missing in the answer on standard error."""
    report(OK, *(f"note: {note}" for note in content.notes))
