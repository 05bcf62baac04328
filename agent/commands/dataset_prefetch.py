"""What `gigaslice dataset prefetch` says: the pods that fetch a dataset to nodes, and what has become of them.

It makes, watches and deletes nothing: kubectl does, with the rights of whoever runs it. What kubectl cannot tell is
whether the data are there, since a pod that failed to pull its image has fetched them: `judgements` tells it from what
`kubectl get pods -o json` prints.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from agent.commands.cluster import Target
from agent.commands.prefetch_nodes import ChosenNodes, NodeChoice, choose_nodes
from gigaslice.dataset.errors import RequestError
from gigaslice.dataset.prefetch import NodeJudgement, PrefetchPod, judge_all
from gigaslice.dataset.request import VolumeRequest, parse_attributes
from gigaslice.errors import ConfigError, GigasliceError
from gigaslice.kube.json_text import read_json
from gigaslice.kubeapi.client import ApiFailure, KubeClient

__all__ = ["PrefetchOrder", "chosen", "judgements", "order_of"]


@dataclass(frozen=True, slots=True)
class PrefetchOrder:
    """What the user asks for.

    Attributes:
        namespace: Of the pods.
        attributes: Of their volume.
        request: The same, parsed.
        choice: The nodes.
        secret, image, tolerated: As in `PrefetchPod`.
        seconds: After which the pods end.
    """

    namespace: str
    attributes: Mapping[str, str]
    request: VolumeRequest
    choice: NodeChoice
    secret: str
    image: str
    tolerated: tuple[str, ...]
    seconds: float

    def pod(self) -> PrefetchPod:
        """The pods of a new run."""
        return PrefetchPod(
            self.namespace,
            self.attributes,
            secrets.token_hex(4),
            max(1, int(self.seconds)),
            self.secret,
            self.image,
            self.tolerated,
        )


def order_of(name: str, options: str) -> tuple[dict[str, str], VolumeRequest]:
    """The volume's attributes for NAME, a source or the names of Dataset objects. Raises ConfigError."""
    source = "://" in name or name.startswith(("/", "rclone:"))
    attributes = {"source" if source else "dataset": name, **({"options": options} if options else {})}
    if options and not source:
        raise ConfigError(["--options goes with a source; a Dataset has its own (kubectl edit dataset)"])
    try:
        return attributes, parse_attributes(attributes)
    except RequestError as error:
        raise ConfigError([str(error)]) from None


def chosen(where: Target, order: PrefetchOrder) -> ChosenNodes:
    """The nodes that ORDER stands for now. Raises GigasliceError."""

    async def run() -> ChosenNodes:
        async with KubeClient(where.access, "gigaslice-cli") as client:
            return await choose_nodes(client, order.namespace, order.request, order.choice)

    try:
        return asyncio.run(run())
    except ApiFailure as failure:
        raise GigasliceError(f"{failure} ({where.whence})") from failure


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
