# SPDX-License-Identifier: Apache-2.0
"""`gigaslice top`: shows who holds how much GPU memory in the cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gigaslice.cluster_commands.target_flags import (
    add_cluster_watch,
    add_list_format,
    add_target,
    as_text,
    cluster_target,
    notes_of,
    show_format,
)
from gigaslice.core.text import plain
from gigaslice.runtime.command_line.watch import Picture

if TYPE_CHECKING:
    from gigaslice.core.views.totals import NamespaceTotals

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
    add_list_format(parser)
    add_cluster_watch(parser)
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    where = cluster_target(arguments)
    from gigaslice.cluster_commands import cluster
    from gigaslice.core.views.collect import picture
    from gigaslice.core.views.totals import totals

    def shown() -> Picture:
        content = cluster.content_of(where)
        spaces = totals(picture(content.state, names=content.names))
        spaces = [space for space in spaces if arguments.namespace in ("", space.namespace)]
        return Picture(_text(spaces, arguments), notes_of(content))

    return show_format(shown, arguments)


def _text(spaces: list[NamespaceTotals], arguments: argparse.Namespace) -> str:
    from gigaslice.cluster_commands import cluster_tables
    from gigaslice.core.views.as_json import totals_document

    pods, form = arguments.what == "pods", arguments.format
    if form in ("json", "yaml"):
        return as_text(totals_document(spaces), form, one_of_many=arguments.watch is not None)
    if form == "name":
        names = [
            name
            for space in spaces
            for name in (
                [f"pod/{pod.pod}" for pod in space.pods] if pods else [f"namespace/{space.namespace}"]
            )
        ]
        return "\n".join(map(plain, names))
    table = cluster_tables.pods_table if pods else cluster_tables.namespaces_table
    return table(spaces, wide=form == "wide")
