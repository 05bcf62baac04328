# SPDX-License-Identifier: Apache-2.0
"""What the demo needs of a control plane, whichever it is: the tests' stand-ins (stand_ins) or a real one (real).

The rest of the demo speaks to the API server over HTTP (objects) and does not know which one it is.
"""

from __future__ import annotations

import abc
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gigaslice.kubeapi.client import KubeClient
from tests.fakes.ports import free_port

NAMESPACE = "gigaslice"
WEBHOOK = "gigaslice-webhook"
"""The name of the webhook's Service, Secret and configurations in the chart."""
Document = dict[str, Any]


class Refused(Exception):  # noqa: N818  (an answer that the story is after)
    """Admission refuses the pod; the text is its sentence."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of loopback on which the cluster's parts listen, all free when this is made."""

    scheduler: int = field(default_factory=free_port)
    page: int = field(default_factory=free_port)
    webhook: int = field(default_factory=free_port)
    scheduler_metrics: int = field(default_factory=free_port)
    controller_metrics: int = field(default_factory=free_port)


class ControlPlane(abc.ABC):
    """An API server that the chart is installed in, and a kube-scheduler.

    Attributes:
        description: Which parts it has, and what makes the demo run on the other control plane.
        kubeconfig: An administrator's; there is one while the API server runs.
        chart: The chart's documents, once it is installed.
    """

    description: str
    kubeconfig: Path

    def __init__(self, directory: Path, ports: Ports) -> None:
        self.chart: list[Document] = []
        self._directory = directory
        self._ports = ports

    @abc.abstractmethod
    def running(self) -> AbstractAsyncContextManager[None]:
        """The API server, from when it is ready to its end."""

    @abc.abstractmethod
    async def install(self) -> None:
        """Applies the chart, without the workloads: the demo runs their programs itself."""

    @abc.abstractmethod
    async def credentials(self, account: str, node: str = "") -> Path:
        """A kubeconfig for a program of ours: that of its service account. NODE: the node of its pod."""

    @abc.abstractmethod
    def scheduling(self) -> AbstractAsyncContextManager[None]:
        """kube-scheduler with the chart's configuration, in which our service is its extender."""

    @abc.abstractmethod
    async def create_pod(self, client: KubeClient, document: Document, *, dry_run: bool = False) -> Document:
        """Creates a pod by way of admission; returns it as it was admitted.

        Args:
            client: An administrator's.
            document: The pod.
            dry_run: Whether it is only admitted.

        Raises:
            Refused: Admission refuses it.
            ApiFailure: The API server cannot be asked, or refuses it otherwise.
        """


def container_of(chart: list[Document], name: str) -> Document:
    """The container NAME of a Deployment of the chart."""
    found: Document
    (found,) = (
        container
        for document in chart
        if document["kind"] == "Deployment"
        for container in document["spec"]["template"]["spec"]["containers"]
        if container["name"] == name
    )
    return found


def pods_path(namespace: str, name: str = "") -> str:
    """Where a namespace's pods are, or one of them."""
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")
