"""`gigaslice doctor`: checks whether a node agent would work here, or which Namespaces need labels."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent.config import Config
from gigaslice.cluster_commands.target_flags import cluster_target
from gigaslice.core.model.gpu import CORES_PER_GPU
from gigaslice.role_settings import SETTINGS_DESCRIPTION, from_command_line
from gigaslice.runtime.command_line.command import FAILED, OK
from gigaslice.runtime.progress import StepProgress
from gigaslice.runtime.settings import add_flags
from vcuda.finding import coloured

if TYPE_CHECKING:
    from gigaslice.kubeapi.client import KubeClient
    from vcuda.doctor import Finding

HELP = "check whether an agent with these settings would work here"
DESCRIPTION = SETTINGS_DESCRIPTION
SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every setting of the node agent, and what is asked about the cluster instead."""
    add_flags(parser, Config)
    parser.add_argument(
        "--namespaces",
        action="store_true",
        help="instead: list the Namespaces whose pods have annotations that need a label, anywhere with a kubeconfig",
    )
    parser.add_argument(
        "--free-cores",
        metavar="N",
        type=int,
        default=CORES_PER_GPU,
        help="with --namespaces: the chart's admission.freeCores (default: 100)",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        default="",
        help="with --namespaces: an API server without TLS, such as http://127.0.0.1:8001 of `kubectl proxy`",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints one line per finding, as soon as there is one."""
    from agent.commands import node_checks

    failed = False
    for finding, line in node_checks.as_lines(
        _namespaces(arguments) if arguments.namespaces else _node(arguments)
    ):
        failed = failed or finding.level == "fail"
        print(coloured(finding, line), flush=True)
    return FAILED if failed else OK


def _node(arguments: argparse.Namespace) -> Iterator[Finding]:
    config = from_command_line(Config, arguments)
    from agent.commands import node_checks
    from agent.roles import discovery

    yield from node_checks.examine(config, discovery.scan_once)


def _namespaces(arguments: argparse.Namespace) -> Iterator[Finding]:
    where = cluster_target(
        argparse.Namespace(kubeconfig=arguments.kubeconfig or "", context="", server=arguments.server)
    )
    from agent.commands import namespace_labels
    from gigaslice.cluster_commands import cluster

    async def read(client: KubeClient) -> dict[str, namespace_labels.Needs]:
        return await namespace_labels.read_needs(client, arguments.free_cores)

    with StepProgress("reading pods and Namespaces"):
        needs = cluster.with_client(where, read)
    yield from namespace_labels.as_findings(needs)
