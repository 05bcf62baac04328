# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset prefetch`: prints the pods that have a dataset fetched to nodes, and judges them afterwards."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
from typing import TYPE_CHECKING

from gigaslice.cluster_commands.target_flags import add_target, cluster_target
from gigaslice.core.dataset.prefetch import IMAGE, RUN_LABEL, PrefetchPod, PrefetchState
from gigaslice.core.errors import ConfigError
from gigaslice.core.text import plain
from gigaslice.runtime import setting_values as values
from gigaslice.runtime.command_line.command import FAILED, OK, report

if TYPE_CHECKING:
    from gigaslice.roles.dataset_node.subcommands.prefetch_nodes import ChosenNodes, NodeChoice

HELP = "print the pods that fetch a dataset to nodes before the pods that need it"
DESCRIPTION = (
    "Prints one small pod for each node, which mounts the dataset: kubectl makes them, waits for them and deletes "
    "them. With --judge, says of such pods whether the data are on their nodes."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what is fetched, and where to."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        default="",
        help="a Dataset object, NAMESPACE/NAME, or a source such as s3://bucket/prefix",
    )
    parser.add_argument(
        "--options", metavar="A=B,C=D", default="", help="options of a source, as in a volume's attributes"
    )
    parser.add_argument(
        "--secret",
        metavar="NAME",
        default="",
        help="the Secret with the credentials, in the namespace of the pods",
    )
    parser.add_argument(
        "--namespace", "-n", metavar="NS", default="", help="of the pods (default: the context's)"
    )
    parser.add_argument("--nodes", metavar="A,B", default="", help="these nodes")
    parser.add_argument(
        "--selector", "-l", metavar="LABELS", default="", help="nodes with these labels, as a=b,c=d"
    )
    parser.add_argument(
        "--count",
        metavar="N",
        default="",
        help="so many nodes, those that have the dataset first; the same ones each time",
    )
    parser.add_argument("--all-nodes", action="store_true", help="every node with the dataset service")
    parser.add_argument(
        "--tolerate", metavar="KEY", action="append", default=[], help="a taint's key, besides nvidia.com/gpu"
    )
    parser.add_argument("--image", metavar="IMAGE", default=IMAGE, help=f"of the pods (default: {IMAGE})")
    parser.add_argument(
        "--timeout", metavar="TIME", default="60m", help="after which the pods end (default: 60m)"
    )
    parser.add_argument(
        "--output",
        "-o",
        choices=("yaml", "text"),
        default="yaml",
        help="the pods as YAML (default), or the names of the nodes",
    )
    parser.add_argument(
        "--judge",
        action="store_true",
        help="read pods of a prefetch from standard input, as kubectl get pods -o json prints them, and say of each "
        "node whether it has the data",
    )
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the pods; fails where a node that was named cannot be used. With --judge, where one lacks the data."""
    if arguments.judge:
        return _judge(arguments)
    if not arguments.name:
        raise ConfigError(["NAME is missing: a Dataset object, or a source such as s3://bucket/prefix"])
    where = cluster_target(arguments)
    choice, seconds = _choice(arguments)
    from gigaslice.roles.dataset_node.subcommands import prefetch_pods

    namespace = arguments.namespace or where.namespace
    attributes, request = prefetch_pods.volume_of(arguments.name, arguments.options)
    nodes = prefetch_pods.chosen(where, namespace, request, choice)
    report(OK, *(f"note: {note}" for note in nodes.notes))
    if arguments.output == "text":
        for name in nodes.names:
            print(f"{plain(name)}{_holding(name, nodes)}")
    else:
        pod = PrefetchPod(
            namespace,
            attributes,
            secrets.token_hex(4),
            seconds,
            arguments.secret,
            arguments.image,
            tuple(arguments.tolerate),
        )
        _print_pods(pod, nodes)
    refused = nodes.refused or {}
    return report(FAILED, *(f"{name}: {reason}" for name, reason in refused.items())) if refused else OK


def _choice(arguments: argparse.Namespace) -> tuple[NodeChoice, int]:
    """The nodes, and after how many seconds their pods end. Raises ConfigError."""
    from gigaslice.roles.dataset_node.subcommands.prefetch_nodes import NodeChoice

    mistakes: list[str] = []
    seconds = 0.0
    try:
        seconds = values.seconds(arguments.timeout)
    except ValueError as error:
        mistakes.append(f'--timeout "{plain(arguments.timeout)}": {error}')
    names = tuple(filter(None, (name.strip() for name in arguments.nodes.split(","))))
    count = int(arguments.count) if re.fullmatch("0*[1-9][0-9]*", arguments.count) else None
    if arguments.count and count is None:
        mistakes.append(f'--count "{plain(arguments.count)}": write a whole number from 1')
    if names and (arguments.selector or arguments.count or arguments.all_nodes):
        mistakes.append(
            "--nodes names the nodes, so --selector, --count and --all-nodes mean nothing with it"
        )
    elif arguments.all_nodes and (arguments.selector or arguments.count):
        mistakes.append("--all-nodes is every node; leave out --selector and --count")
    elif not (names or arguments.selector or arguments.count or arguments.all_nodes):
        mistakes.append(
            "no nodes are named; write --nodes a,b, --selector key=value, --count N or --all-nodes"
        )
    if mistakes:
        raise ConfigError(mistakes)
    return NodeChoice(names, arguments.selector, count), max(1, int(seconds))


def _holding(node: str, nodes: ChosenNodes) -> str:
    return ": has it, or is fetching it" if node in nodes.holders else ""


def _print_pods(pod: PrefetchPod, nodes: ChosenNodes) -> None:
    """The pods on standard output; on standard error which nodes they are for, and what to do with them."""
    import yaml

    from gigaslice.core.dataset.prefetch import pod_manifest

    if not nodes.names:
        return
    print(yaml.safe_dump_all([pod_manifest(pod, name) for name in nodes.names], sort_keys=False), end="")
    pods = f"pods -n {pod.namespace} -l {RUN_LABEL}={pod.run}"
    report(
        OK,
        *(f"{name}{_holding(name, nodes) or ': is to fetch it'}" for name in nodes.names),
        "make the pods: kubectl apply -f -",
        f"see whether the data are there: kubectl get {pods} -o json | gigaslice dataset prefetch --judge",
        f"delete the pods: kubectl delete {pods}",
    )


def _judge(arguments: argparse.Namespace) -> int:
    """Says of every node whether it has the data. Fails where one has not, or not yet."""
    if arguments.name or arguments.nodes or arguments.selector or arguments.count or arguments.all_nodes:
        raise ConfigError(["--judge reads pods from standard input; leave NAME and the nodes out"])
    from gigaslice.roles.dataset_node.subcommands import prefetch_pods

    judgements = prefetch_pods.judgements(sys.stdin.buffer.read())
    for judgement in judgements:
        text = f": {judgement.text}" if judgement.text else ""
        print(plain(f"{judgement.node}: {judgement.state.value}{text}"))
    missing = sum(judgement.state is not PrefetchState.DONE for judgement in judgements)
    if not missing:
        return OK
    return report(
        FAILED,
        f"{missing} of {len(judgements)} nodes do not have it; what they have fetched is kept, and "
        "kubectl describe pod says how far each is",
    )
