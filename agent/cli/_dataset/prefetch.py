"""`gigaslice dataset prefetch`: has a dataset fetched to nodes before the pods that need it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from agent.cli._cluster import add_target, cluster_target
from agent.cli._dataset._bar import Bar
from agent.cli._shared import FAILED, OK, report
from gigaslice.dataset.prefetch import IMAGE
from gigaslice.errors import ConfigError
from gigaslice.runtime import setting_values as values
from gigaslice.text import plain

if TYPE_CHECKING:
    from agent.commands.dataset_prefetch import PrefetchOrder, PrefetchOutcome, PrefetchProgress
    from agent.commands.prefetch_nodes import ChosenNodes, NodeChoice

HELP = "have a dataset fetched to nodes before the pods that need it"
DESCRIPTION = (
    "Makes one small pod on each node with the rights of the user, which mounts the dataset, waits until the data are "
    "there, and deletes the pods. What a node has already is compared with the source, and not fetched again."
)
SETTINGS = False

_PARALLEL = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what is fetched, and where to."""
    parser.add_argument(
        "name",
        metavar="NAME",
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
    parser.add_argument("--timeout", metavar="TIME", default="60m", help="how long is waited (default: 60m)")
    parser.add_argument(
        "--parallel",
        metavar="N",
        default=str(_PARALLEL),
        help=f"how many nodes fetch at a time (default: {_PARALLEL})",
    )
    parser.add_argument("--keep", action="store_true", help="leave the pods there")
    parser.add_argument("--dry-run", action="store_true", help="only show the nodes; with -o yaml, the pods")
    parser.add_argument(
        "--output",
        "-o",
        choices=("text", "yaml"),
        default="text",
        help="with --dry-run: text (default) or YAML",
    )
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prefetches; fails where a node does not have the dataset in the end."""
    where = cluster_target(arguments)
    from agent.commands import dataset_prefetch

    order = _order(arguments, arguments.namespace or where.namespace)
    nodes = dataset_prefetch.chosen(where, order)
    report(OK, *(f"note: {note}" for note in nodes.notes))
    if arguments.dry_run:
        return _shown(order, nodes, arguments.output)
    with Bar() as bar:
        told: dict[str, str] = {}
        ended = dataset_prefetch.prefetch(where, order, nodes, lambda progress: _show(bar, progress, told))
    failed = [outcome for outcome in ended if not outcome.done]
    if not failed:
        return OK
    return report(
        FAILED,
        *(f"{outcome.node}: {outcome.text or 'failed'}" for outcome in failed),
        f"{len(failed)} of {len(ended)} nodes do not have it; what they have fetched is kept: run it again to go on",
    )


def _order(arguments: argparse.Namespace, namespace: str) -> PrefetchOrder:
    from agent.commands import dataset_prefetch

    mistakes: list[str] = []
    seconds, parallel = 0.0, 0
    try:
        seconds = values.seconds(arguments.timeout)
    except ValueError as error:
        mistakes.append(f'--timeout "{plain(arguments.timeout)}": {error}')
    try:
        parallel = _number("--parallel", arguments.parallel)
    except ValueError as error:
        mistakes.append(str(error))
    if arguments.output != "text" and not arguments.dry_run:
        mistakes.append("-o yaml shows the pods that would be made; write --dry-run too")
    choice = _choice(arguments, mistakes)
    if mistakes:
        raise ConfigError(mistakes)
    attributes, request = dataset_prefetch.order_of(arguments.name, arguments.options)
    return dataset_prefetch.PrefetchOrder(
        namespace,
        attributes,
        request,
        choice,
        arguments.secret,
        arguments.image,
        tuple(arguments.tolerate),
        seconds,
        parallel,
        arguments.keep,
    )


def _choice(arguments: argparse.Namespace, mistakes: list[str]) -> NodeChoice:
    from agent.commands.prefetch_nodes import NodeChoice

    count = None
    names = tuple(filter(None, (name.strip() for name in arguments.nodes.split(","))))
    if arguments.count:
        try:
            count = _number("--count", arguments.count)
        except ValueError as error:
            mistakes.append(str(error))
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
    return NodeChoice(names, arguments.selector, count)


def _number(flag: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ValueError(f'{flag} "{plain(text)}": write a whole number from 1')
    return int(text)


def _shown(order: PrefetchOrder, nodes: ChosenNodes, output: str) -> int:
    """What would be done. Fails where a node that was named cannot be used."""
    refused = nodes.refused or {}
    if output == "yaml":
        import yaml

        from gigaslice.dataset.prefetch import pod_manifest

        pod = order.pod()
        print(yaml.safe_dump_all([pod_manifest(pod, name) for name in nodes.names], sort_keys=False), end="")
    else:
        for name in nodes.names:
            print(f"{plain(name)}{': has it, or is fetching it' if name in nodes.holders else ''}")
    return report(FAILED, *(f"{name}: {why}" for name, why in refused.items())) if refused else OK


def _show(bar: Bar, progress: PrefetchProgress, told: dict[str, str]) -> None:
    """Prints what has ended, and draws the bar or, where there is none, prints what is new of the others."""
    for outcome in progress.ended:
        if f"ended {outcome.node}" not in told:
            told[f"ended {outcome.node}"] = ""
            _print_outcome(bar, outcome)
    under_way = [f"{node}: {text}" for node, text in sorted(progress.told.items())]
    there = sum(outcome.done for outcome in progress.ended)
    bar.draw(progress.share, f"{there} of {progress.total} nodes; {' | '.join(under_way)}")
    if bar.shown:
        return
    for node, text in progress.told.items():
        if told.get(node) != text:
            told[node] = text
            print(f"gigaslice: {plain(node)}: {plain(text)}", file=sys.stderr, flush=True)


def _print_outcome(bar: Bar, outcome: PrefetchOutcome) -> None:
    if outcome.done:
        bar.clear()
        print(f"{plain(outcome.node)}: ready after {outcome.seconds:.1f} s", flush=True)
