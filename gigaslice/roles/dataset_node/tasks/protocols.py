# SPDX-License-Identifier: Apache-2.0
"""What tasks need from others: the cluster, Dataset objects, events. Each is a small protocol with an absence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.request import Check
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.core.kube.reasons import EventReason
from gigaslice.core.model import Pod
from gigaslice.roles.dataset_node.store import Volume

__all__ = [
    "DatasetObjects",
    "NoDatasetObjects",
    "NoPods",
    "NoReporter",
    "Pods",
    "Reporter",
    "ResolvedDataset",
]


@dataclass(frozen=True, slots=True)
class ResolvedDataset:
    """What a Dataset object, or a source in a volume, stands for.

    name: the object's, as "namespace/name"; empty for a source. digest: of the listing of the version that is pinned,
    hexadecimal; empty where none is. trusted: whether an administrator stands behind the object, so that a pod gets a
    copy which the node has without listing its source.
    """

    spec: SourceSpec
    check: Check = Check.LISTING
    digest: str = ""
    trusted: bool = False
    name: str = ""


class DatasetObjects(Protocol):
    """The Dataset objects of the cluster."""

    async def resolve(self, name: str, namespace: str) -> ResolvedDataset:
        """What NAME stands for in a pod of NAMESPACE. Raises RequestError: there is none that it may use."""
        ...


class NoDatasetObjects:
    """A cluster without Dataset objects, or a service without access to it."""

    async def resolve(self, name: str, namespace: str) -> ResolvedDataset:
        """Refuses."""
        raise RequestError(
            f'dataset "{name}" is not known in namespace {namespace}: this service reads no Dataset objects; write '
            "source: with the place of the data in its stead"
        )


class Pods(Protocol):
    """The pods of the cluster."""

    async def pod(self, volume: Volume) -> Pod | None:
        """The pod of a volume as the API server has it; None where it is not known. Takes seconds at most."""
        ...


class NoPods:
    """A service without access to the cluster."""

    async def pod(self, volume: Volume) -> Pod | None:
        """None."""
        del volume
        return None


class Reporter(Protocol):
    """Says on pods what happens to their datasets."""

    def say(self, volume: Volume, reason: EventReason, text: str) -> None:
        """Notes an event. Returns at once."""
        ...


class NoReporter:
    """A service without access to the cluster."""

    def say(self, volume: Volume, reason: EventReason, text: str) -> None:
        """Does nothing."""
