"""`gigaslice top`: shows who holds how much GPU memory in the cluster."""

from __future__ import annotations

import argparse

from gigaslice.cluster_commands.target_flags import (
    add_format,
    add_target,
    as_text,
    cluster_target,
    tell_notes,
)
from gigaslice.core.text import plain
from gigaslice.runtime.command_line.command import OK

HELP = "show which namespaces and pods hold how much GPU memory in the cluster"
DESCRIPTION = "What pods hold, not what they use: gigaslice status and the metrics show that."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what is added up, and which cluster."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=("namespaces", "pods"),
        metavar="namespaces|pods",
        default="namespaces",
        help="what is added up (default: namespaces)",
    )
    parser.add_argument("--namespace", "-n", metavar="NS", default="", help="only this namespace")
    add_format(parser)
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    where = cluster_target(arguments)
    from gigaslice.cluster_commands import cluster, cluster_tables
    from gigaslice.core.views.as_json import totals_document
    from gigaslice.core.views.collect import picture
    from gigaslice.core.views.totals import totals

    content = cluster.with_client(where, cluster.read_cluster)
    tell_notes(content)
    spaces = totals(picture(content.state, names=content.names))
    spaces = [space for space in spaces if arguments.namespace in ("", space.namespace)]
    pods = arguments.what == "pods"
    if arguments.format in ("json", "yaml"):
        print(as_text(totals_document(spaces), arguments.format))
    elif arguments.format == "name":
        for space in spaces:
            for name in (
                [f"pod/{pod.pod}" for pod in space.pods] if pods else [f"namespace/{space.namespace}"]
            ):
                print(plain(name))
    else:
        table = cluster_tables.pods_table if pods else cluster_tables.namespaces_table
        print(table(spaces, wide=arguments.format == "wide"))
    return OK
