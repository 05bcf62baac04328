# SPDX-License-Identifier: Apache-2.0
"""`gigaslice nodes`: shows the GPUs of all nodes of the cluster."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
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
from gigaslice.core.errors import GigasliceError
from gigaslice.core.text import plain
from gigaslice.runtime.command_line.command import did_you_mean
from gigaslice.runtime.command_line.watch import Picture

if TYPE_CHECKING:
    from gigaslice.core.views.cluster_picture import ClusterPicture

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
    add_list_format(parser, "svg")
    add_cluster_watch(parser)
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table or the picture; fails where there is no node of the name."""
    where = cluster_target(arguments)
    from gigaslice.cluster_commands import cluster
    from gigaslice.core.views.collect import picture

    name = arguments.nodes if _NAME.fullmatch(arguments.nodes) else ""
    selector = "" if name else arguments.nodes

    def shown() -> Picture:
        content = cluster.content_of(where, selector=selector)
        view = picture(content.state, names=content.names)
        notes = notes_of(content)
        if name:
            view = _of_node(view, name)
        if selector and not view.nodes:
            notes += (f"no node has the labels {selector}",)
        return Picture(_text(view, arguments.format, watched=arguments.watch is not None), notes)

    return show_format(shown, arguments)


def _of_node(view: ClusterPicture, name: str) -> ClusterPicture:
    """Raises GigasliceError where there is no node of the NAME."""
    names = [node.name for node in view.nodes]
    if name not in names:
        question = did_you_mean(name, names)
        raise GigasliceError(f"there is no node {name}" + (f"; {question}" if question else ""))
    return replace(view, nodes=tuple(node for node in view.nodes if node.name == name))


def _text(view: ClusterPicture, form: str, *, watched: bool) -> str:
    from gigaslice.cluster_commands import cluster_tables
    from gigaslice.core.views.as_json import cluster_document
    from gigaslice.core.views.svg import cluster_svg

    if form in ("json", "yaml"):
        return as_text(cluster_document(view), form, one_of_many=watched)
    if form == "name":
        return "\n".join(plain(f"node/{node.name}") for node in view.nodes)
    return cluster_svg(view) if form == "svg" else cluster_tables.nodes_table(view, wide=form == "wide")
