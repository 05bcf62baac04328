# SPDX-License-Identifier: Apache-2.0
"""`gigaslice doctor`: would an agent work here, does an installation work, which labels are missing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent.commands.installation import PARTS
from agent.config import Config
from gigaslice.cluster_commands.target_flags import cluster_target
from gigaslice.core.model.gpu import CORES_PER_GPU
from gigaslice.role_settings import SETTINGS_DESCRIPTION, from_command_line, kubernetes_service
from gigaslice.runtime import settings
from gigaslice.runtime.command_line.command import FAILED, MISTAKE, OK, report
from gigaslice.runtime.progress import StepProgress
from gigaslice.runtime.settings import add_flags
from vcuda.finding import coloured

if TYPE_CHECKING:
    from gigaslice.cluster_commands.cluster import Target
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
        "--cluster",
        metavar="NAMESPACE",
        nargs="?",
        const="gigaslice",
        help="instead: ask what a user would ask of the installation in this namespace, anywhere with a kubeconfig: do "
        "nodes offer GPUs, is the scheduler at work, does the webhook answer (without a name: gigaslice)",
    )
    parser.add_argument(
        "--parts",
        metavar="PART,...",
        type=_parts,
        default=(),
        help=f"with --cluster: what must be there, of {', '.join(PARTS)} (default: what is found)",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        default="",
        help="with --cluster or --namespaces: an API server without TLS, such as http://127.0.0.1:8001 of "
        "`kubectl proxy`",
    )


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no part; write some of {', '.join(PARTS)}")
    return parts


def run(arguments: argparse.Namespace) -> int:
    """Prints one line per finding, as soon as there is one."""
    from agent.commands import node_checks

    if arguments.namespaces and arguments.cluster is not None:
        return report(MISTAKE, "--namespaces and --cluster are two questions; ask one at a time")
    if arguments.parts and arguments.cluster is None:
        return report(MISTAKE, "--parts goes with --cluster")
    question = _namespaces if arguments.namespaces else _node if arguments.cluster is None else _cluster
    failed = False
    for finding, line in node_checks.as_lines(question(arguments)):
        failed = failed or finding.level == "fail"
        print(coloured(finding, line), flush=True)
    return FAILED if failed else OK


def _node(arguments: argparse.Namespace) -> Iterator[Finding]:
    config = from_command_line(Config, arguments)
    from agent.commands import node_checks
    from agent.roles import discovery

    yield from node_checks.examine(config, discovery.scan_once)


def _target(arguments: argparse.Namespace) -> Target:
    return cluster_target(
        argparse.Namespace(kubeconfig=arguments.kubeconfig or "", context="", server=arguments.server)
    )


def _cluster(arguments: argparse.Namespace) -> Iterator[Finding]:
    where, config = _target(arguments), from_command_line(Config, arguments)
    from agent.commands import cluster_checks
    from gigaslice.cluster_commands import cluster

    inside = bool(kubernetes_service(settings.environment()))

    async def read(client: KubeClient) -> list[Finding]:
        return await cluster_checks.read_findings(
            client, arguments.cluster, arguments.parts, config.resource, inside
        )

    yield from cluster.with_client(where, read)


def _namespaces(arguments: argparse.Namespace) -> Iterator[Finding]:
    where = _target(arguments)
    from agent.commands import namespace_labels
    from gigaslice.cluster_commands import cluster

    async def read(client: KubeClient) -> dict[str, namespace_labels.Needs]:
        return await namespace_labels.read_needs(client, arguments.free_cores)

    with StepProgress("reading pods and Namespaces"):
        needs = cluster.with_client(where, read)
    yield from namespace_labels.as_findings(needs)
