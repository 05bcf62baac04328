# SPDX-License-Identifier: Apache-2.0
"""`gigaslice explain`: says why a pod has no GPUs, and what would help."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from gigaslice.cluster_commands.target_flags import (
    add_cluster_watch,
    add_target,
    cluster_target,
    notes_of,
    show_format,
)
from gigaslice.core.errors import ConfigError
from gigaslice.core.model import AnnotationRights, annotation_rights
from gigaslice.runtime import settings
from gigaslice.runtime.command_line.manual import offer
from gigaslice.runtime.command_line.output import add_format
from gigaslice.runtime.command_line.watch import Picture
from gigaslice.runtime.progress import StepProgress

if TYPE_CHECKING:
    from gigaslice.cluster_commands.cluster import ClusterContent
    from gigaslice.core.model import Pod
    from gigaslice.kubeapi.client import KubeClient

HELP = "say why a pod waits for GPUs, or which it has"
DESCRIPTION = "gigaslice explain pod NAME, or pod/NAME: node by node and GPU by GPU, and what would help."
_PODS = ("pod", "pods", "po")
_RIGHTS = "GIGASLICE_ANNOTATION_RIGHTS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which pod, and which cluster."""
    offer(
        parser.add_argument("kind", metavar="pod", help="what is explained; pod/NAME is one word"), ("pod",)
    )
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the pod's name")
    parser.add_argument("--namespace", "-n", metavar="NS", default="", help="default: the context's")
    add_format(parser, ("text", "json"), "text (default) or JSON")
    parser.add_argument(
        "--annotation-rights",
        choices=[rights.value for rights in AnnotationRights],
        help=f"which annotations count; default: ${_RIGHTS}, then as most agents are set",
    )
    add_cluster_watch(parser)
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the explanation; fails where there is no such pod."""
    name = _pod_name(arguments.kind, arguments.name)
    where = cluster_target(arguments)
    from gigaslice.cluster_commands import cluster
    from gigaslice.core.cluster.moves import freeing_plans
    from gigaslice.core.views.explain import explain
    from gigaslice.core.views.move_lines import move_lines

    namespace = arguments.namespace or where.namespace
    rights_text = arguments.annotation_rights or settings.environment().get(_RIGHTS)
    try:
        rights = annotation_rights(rights_text) if rights_text else None
    except ValueError as error:
        raise ConfigError([f'environment {_RIGHTS} "{rights_text}": {error}']) from None

    async def read(client: KubeClient, progress: StepProgress) -> tuple[Pod | None, ClusterContent, str]:
        content = await cluster.read_cluster(client, rights, progress=progress)
        pod = await cluster.read_pod(client, namespace, name)
        missing = "" if pod else await cluster.no_such_pod(client, content, namespace, name)
        return pod, content, missing

    def shown() -> Picture:
        with StepProgress("reading the cluster") as progress:
            pod, content, missing = cluster.with_client(where, lambda client: read(client, progress))
            if pod is None:
                return Picture("", notes_of(content), (missing,))
            progress.show(f"looking for room for {pod}")
            plans = [] if pod.node else freeing_plans(content.state, content.pods, most=1, tries=10)
            explanation = explain(content.state, pod, move_lines(content.state, plans, content.pods))
        if arguments.format == "json":
            indent = None if arguments.watch is not None else 2
            return Picture(json.dumps(explanation.as_json(), indent=indent), notes_of(content))
        return Picture(explanation.text(), notes_of(content))

    return show_format(shown, arguments)


def _pod_name(kind: str, name: str) -> str:
    """The pod's name, of "pod NAME" or "pod/NAME" as kubectl has them. Raises ConfigError for anything else."""
    kind, _, joined = kind.partition("/")
    if kind not in _PODS or not (joined or name) or (joined and name):
        raise ConfigError(["what is explained is one pod: gigaslice explain pod NAME, or pod/NAME"])
    return joined or name
