# SPDX-License-Identifier: Apache-2.0
"""`gigaslice exec`: runs a command in the agent's container of one node, which is found by the node's name.

kubectl runs it: what an exec needs of the API server (an upgraded connection, a terminal, logins by a command) is what
kubectl is for.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from gigaslice.cluster_commands.target_flags import add_target, cluster_target
from gigaslice.core.errors import GigasliceError, MissingError
from gigaslice.core.text import plain
from gigaslice.runtime.command_line.command import did_you_mean

if TYPE_CHECKING:
    from gigaslice.kubeapi.client import KubeClient

HELP = "run a command beside the agent of a node: gigaslice exec NODE -- gigaslice status"
DESCRIPTION = "Finds the agent's pod by the name of its node, and has kubectl run the command in it."
AGENT_CONTAINER = "node"
AGENT_LABELS = "app.kubernetes.io/name=gigaslice,app.kubernetes.io/component=node"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which node, what to run there, and which cluster."""
    parser.add_argument(
        "--namespace", "-n", metavar="NS", default="gigaslice", help="of the agents; default: gigaslice"
    )
    add_target(parser)
    parser.add_argument("node", metavar="NODE", help="the node's name")
    parser.add_argument(
        "words", metavar="COMMAND", nargs=argparse.REMAINDER, help="what to run; default: gigaslice status"
    )


def run(arguments: argparse.Namespace) -> int:
    """Becomes kubectl, which runs the command. Fails where the node has no agent, or this machine no kubectl."""
    where = cluster_target(arguments)
    from gigaslice.cluster_commands import cluster

    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise MissingError("kubectl is not in $PATH: it is what runs a command in a pod")

    async def find(client: KubeClient) -> str:
        return await _agent_pod(client, arguments.namespace, arguments.node)

    pod = cluster.with_client(where, find)
    words = [word for at, word in enumerate(arguments.words) if at or word != "--"]
    _become([kubectl, *_target_flags(arguments), "-n", arguments.namespace, "exec", *_terminal(), pod], words)


def _become(kubectl: list[str], words: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(kubectl[0], [*kubectl, "-c", AGENT_CONTAINER, "--", *(words or ["gigaslice", "status"])])


def _target_flags(arguments: argparse.Namespace) -> list[str]:
    return [
        f"--{name}={value}"
        for name in ("kubeconfig", "context", "server")
        if (value := getattr(arguments, name))
    ]


def _terminal() -> list[str]:
    return ["-it"] if sys.stdin.isatty() and sys.stdout.isatty() else ["-i"]


async def _agent_pod(client: KubeClient, namespace: str, node: str) -> str:
    """The name of the agent's pod that serves a node: the oldest, while one is being replaced.

    Raises:
        GigasliceError: There is none, or it does not run.
    """
    from gigaslice.cluster_commands.cluster import listed
    from gigaslice.kubeapi.client import object_path

    path = object_path("api", "v1", "namespaces", namespace, "pods")
    pods = [pod async for pod in listed(client, path, {"labelSelector": AGENT_LABELS})]
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    for pod in pods:
        by_node.setdefault(str((pod.get("spec") or {}).get("nodeName") or ""), []).append(pod)
    running = [pod for pod in by_node.get(node, ()) if (pod.get("status") or {}).get("phase") == "Running"]
    if running:
        oldest = min(running, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
        return str(oldest["metadata"]["name"])
    if node in by_node:
        name = by_node[node][0]["metadata"]["name"]
        raise GigasliceError(
            plain(f"the agent of {node} does not run: kubectl -n {namespace} describe pod {name}")
        )
    if not pods:
        raise GigasliceError(f"namespace {namespace} has no agents; name theirs with -n")
    question = did_you_mean(node, filter(None, by_node))
    raise GigasliceError(f"no agent is on a node {node}" + (f"; {question}" if question else ""))
