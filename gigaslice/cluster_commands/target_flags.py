"""What the commands that show the whole cluster have in common: which cluster, and how a list is printed."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from gigaslice.runtime import settings
from gigaslice.runtime.command_line.command import OK, report

if TYPE_CHECKING:
    from gigaslice.cluster_commands.cluster import ClusterContent, Target

__all__ = ["add_format", "add_target", "as_text", "cluster_target", "tell_notes"]


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


def add_format(parser: argparse.ArgumentParser, *more: str) -> None:
    """Adds how a list is printed. MORE: formats that only this command has."""
    formats = ("table", "wide", "json", "yaml", "name", *more)
    parser.add_argument(
        "--format", "-o", "--output", choices=formats, default="table",
        help=f"{', '.join(formats)}; wide: a table with nothing cut; name: as kubectl takes them (default: table)",
    )  # fmt: skip


def as_text(document: object, form: str) -> str:
    """DOCUMENT as FORM, json or yaml."""
    if form == "json":
        return json.dumps(document, indent=2)
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True)).rstrip("\n")


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
