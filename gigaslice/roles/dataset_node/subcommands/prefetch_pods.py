# SPDX-License-Identifier: Apache-2.0
"""What `gigaslice dataset prefetch` says: the pods that fetch a dataset to nodes, and what has become of them.

It makes, watches and deletes nothing: kubectl does, with the rights of whoever runs it. What kubectl cannot tell is
whether the data are there, since a pod that failed to pull its image has fetched them: `judgements` tells it from what
`kubectl get pods -o json` prints.
"""

from __future__ import annotations

from gigaslice.cluster_commands.cluster import Target, with_client
from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.prefetch import NodeJudgement, judge_all
from gigaslice.core.dataset.request import VolumeRequest, parse_attributes
from gigaslice.core.errors import ConfigError, GigasliceError
from gigaslice.core.kube.json_text import read_json
from gigaslice.roles.dataset_node.subcommands.prefetch_nodes import ChosenNodes, NodeChoice, choose_nodes
from gigaslice.runtime.progress import StepProgress

__all__ = ["chosen", "judgements", "volume_of"]


def volume_of(name: str, options: str) -> tuple[dict[str, str], VolumeRequest]:
    """The volume's attributes for NAME, a source or the names of Dataset objects. Raises ConfigError."""
    source = "://" in name or name.startswith(("/", "rclone:"))
    attributes = {"source" if source else "dataset": name, **({"options": options} if options else {})}
    if options and not source:
        raise ConfigError(["--options goes with a source; a Dataset has its own (kubectl edit dataset)"])
    try:
        return attributes, parse_attributes(attributes)
    except RequestError as error:
        raise ConfigError([str(error)]) from None


def chosen(where: Target, namespace: str, request: VolumeRequest, choice: NodeChoice) -> ChosenNodes:
    """The nodes that CHOICE stands for now. Raises GigasliceError."""
    with StepProgress("asking the cluster which nodes there are"):
        nodes: ChosenNodes = with_client(
            where, lambda client: choose_nodes(client, namespace, request, choice)
        )
    return nodes


def judgements(text: str | bytes) -> tuple[NodeJudgement, ...]:
    """What has become of the pods of TEXT, which is what `kubectl get pods -o json` prints.

    Raises:
        GigasliceError: It is something else, or there is no pod of a prefetch in it.
    """
    try:
        document = read_json(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise GigasliceError("standard input is no list of pods; write kubectl get pods -o json | …")
    judged = judge_all(document)
    if not judged:
        raise GigasliceError(
            "there is no pod of a prefetch among them; kubectl get pods -n NAMESPACE -l gigaslice.io/prefetch-run"
        )
    return judged
