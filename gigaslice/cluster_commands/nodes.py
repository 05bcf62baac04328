"""`gigaslice nodes`: shows the GPUs of all nodes of the cluster."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gigaslice.cluster_commands.target_flags import (
    add_format,
    add_target,
    as_text,
    cluster_target,
    tell_notes,
)
from gigaslice.core.text import plain
from gigaslice.runtime.command_line.command import FAILED, OK, did_you_mean, report

if TYPE_CHECKING:
    from gigaslice.cluster_commands.cluster import ClusterContent
    from gigaslice.kubeapi.client import KubeClient

HELP = "show the GPUs of the cluster: what is free, who holds what, what is unhealthy"
DESCRIPTION = (
    "As a table, as JSON or YAML, or as a picture (SVG). "
    "gigaslice topology shows how GPUs of one node are joined."
)
_NAME = re.compile(r"[a-z0-9.-]+")  # anything else is a selector: all of those have a sign that no name has


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which nodes, the format, and which cluster."""
    parser.add_argument(
        "nodes",
        nargs="?",
        metavar="NAME|SELECTOR",
        default="",
        help="only this node, or those with these labels, such as pool=a100,zone!=b (default: all)",
    )
    add_format(parser, "svg")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table or the picture; fails where there is no node of the name."""
    where = cluster_target(arguments)
    from gigaslice.cluster_commands import cluster, cluster_tables
    from gigaslice.core.views.as_json import cluster_document
    from gigaslice.core.views.collect import picture
    from gigaslice.core.views.svg import cluster_svg

    name = arguments.nodes if _NAME.fullmatch(arguments.nodes) else ""
    selector = "" if name else arguments.nodes

    async def read(client: KubeClient) -> ClusterContent:
        return await cluster.read_cluster(client, selector=selector)

    content = cluster.with_client(where, read)
    tell_notes(content)
    view = picture(content.state, names=content.names)
    if name:
        names = [node.name for node in view.nodes]
        if name not in names:
            question = did_you_mean(name, names)
            return report(FAILED, f"there is no node {name}" + (f"; {question}" if question else ""))
        view = replace(view, nodes=tuple(node for node in view.nodes if node.name == name))
    if selector and not view.nodes:
        report(OK, f"no node has the labels {selector}")
    if arguments.format in ("json", "yaml"):
        print(as_text(cluster_document(view), arguments.format))
    elif arguments.format == "name":
        for node in view.nodes:
            print(plain(f"node/{node.name}"))
    elif arguments.format == "svg":
        print(cluster_svg(view))
    else:
        print(cluster_tables.nodes_table(view, wide=arguments.format == "wide"))
    return OK
