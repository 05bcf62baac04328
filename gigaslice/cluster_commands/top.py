"""`gigaslice top`: shows who holds how much GPU memory in the cluster."""

from __future__ import annotations

import argparse
import json

from gigaslice.cluster_commands.target_flags import add_target, cluster_target, tell_notes
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
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="table (default) or JSON"
    )
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
    if arguments.format == "json":
        print(json.dumps(totals_document(spaces), indent=2))
    elif arguments.what == "pods":
        print(cluster_tables.pods_table(spaces))
    else:
        print(cluster_tables.namespaces_table(spaces))
    return OK
