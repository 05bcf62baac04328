"""`gigaslice nodes`: shows the GPUs of all nodes of the cluster."""

from __future__ import annotations

import argparse
import json

from gigaslice.cluster_commands.target_flags import add_target, cluster_target, tell_notes
from gigaslice.runtime.command_line.command import OK

HELP = "show the GPUs of the cluster: what is free, who holds what, what is unhealthy"
DESCRIPTION = (
    "As a table, as JSON or as a picture (SVG). gigaslice topology shows how GPUs of one node are joined."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the format, and which cluster."""
    parser.add_argument(
        "--format", choices=("table", "json", "svg"), default="table", help="table (default), JSON or SVG"
    )
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table or the picture."""
    where = cluster_target(arguments)
    from gigaslice.cluster_commands import cluster, cluster_tables
    from gigaslice.core.views.as_json import cluster_document
    from gigaslice.core.views.collect import picture
    from gigaslice.core.views.svg import cluster_svg

    content = cluster.with_client(where, cluster.read_cluster)
    tell_notes(content)
    view = picture(content.state, names=content.names)
    if arguments.format == "json":
        print(json.dumps(cluster_document(view), indent=2))
    else:
        print(cluster_svg(view) if arguments.format == "svg" else cluster_tables.nodes_table(view))
    return OK
