# SPDX-License-Identifier: Apache-2.0
"""What the containers of pods ask for, by their annotations and by what a scheduler has assigned them.

Mistakes in annotations are left out here and come beside the request, since a person can correct them while the pod
waits. Reads values alone, and keeps what it has parsed last.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from agent.allocation.request import AllocationRequest, ImpossibleError
from agent.deviceplugin.assigned import assigned_to
from agent.deviceplugin.requester import Requester
from agent.inventory.holder import GpusNow
from gigaslice.core.model import (
    CORES_PER_GPU,
    AnnotationRights,
    RequestOptions,
    Share,
    SliceUnit,
    parse_options,
)

__all__ = ["AnnotatedRequest", "ContainerRequests", "to_correct"]


@dataclass(frozen=True, slots=True)
class AnnotatedRequest:
    """What a container asks for. mistakes: annotations that make no sense, and were left out."""

    request: AllocationRequest
    mistakes: tuple[str, ...] = ()


class ContainerRequests:
    """Makes requests of the node's pods."""

    def __init__(
        self,
        gpus: GpusNow,
        unit: SliceUnit,
        resource: str,
        *,
        whole_resource: str = "",
        slice_resources: tuple[str, ...] = (),
        rights: AnnotationRights = AnnotationRights.REFUSE,
    ) -> None:
        """Initializes it.

        Args:
            gpus: The GPUs.
            unit: What a slice is.
            resource: The resource of slices that the calls are about.
            whole_resource: The resource of whole GPUs, empty where none is offered.
            slice_resources: All resources of slices on this node, where there are several.
            rights: Which annotations count.
        """
        self.resource = resource
        self.whole_resource = whole_resource
        self.slice_resources = slice_resources or (resource,)
        self._gpus = gpus
        self._unit = unit
        self._rights = rights
        self._parsed: tuple[Requester, RequestOptions] | None = None

    def options(self, requester: Requester) -> RequestOptions:
        """Returns what the annotations of a container's pod ask for."""
        parsed = self._parsed
        if parsed is None or parsed[0] is not requester:  # one admission needs them several times
            annotations, container = requester.pod.annotations, requester.container.name
            options = parse_options(annotations, container, self._unit, self._rights)
            parsed = self._parsed = (requester, options)
        return parsed[1]

    def mistakes(self, requester: Requester, slices: int) -> tuple[str, ...]:
        """Returns what is wrong with the annotations of a container that asks for so many slices."""
        options = self.options(requester)
        return options.mistakes + options.contradictions(slices)

    def of_slices(
        self, requester: Requester | None, slices: int, advised: frozenset[str] = frozenset()
    ) -> AnnotatedRequest:
        """Returns what a container asks for that asks for so many slices; without a requester that is all there is.

        Args:
            requester: The container, where it is known.
            slices: How many slices it asks for.
            advised: The GPUs that the kubelet has chosen.

        Raises:
            ImpossibleError: It asks for what no container can have.
            NotExecutableError: The assignment of its pod cannot be executed here, or is missing.
        """
        if requester is None:
            return AnnotatedRequest(AllocationRequest(slices, advised=advised))
        options, mistakes = self.options(requester), self.mistakes(requester, slices)
        if options.contradictions(slices):
            options = replace(options, gpus=None, parts=(), max_slices=None)
        request = AllocationRequest(
            slices,
            options,
            pod=requester.pod.uid,
            pod_slices=requester.pod.most_at_once(self.resource),
            advised=advised,
            assigned=self.assigned(requester, slices),
        )
        return AnnotatedRequest(request, mistakes)

    def of_whole_gpus(
        self, requester: Requester | None, count: int, advised: frozenset[str] = frozenset()
    ) -> AnnotatedRequest:
        """Returns what a container asks for that asks for so many whole GPUs; otherwise as `of_slices`."""
        assigned = None if requester is None else self.assigned_whole(requester, count)
        request = AllocationRequest(
            count,
            RequestOptions(exclusive=True),
            whole=True,
            pod=requester.pod.uid if requester else "",
            advised=advised,
            assigned=None if assigned is None else tuple(Share(uuid, 1) for uuid in assigned),
        )
        return AnnotatedRequest(request)

    def assigned(self, requester: Requester, slices: int) -> tuple[Share, ...] | None:
        """Returns the shares that the requester of so many slices was assigned; None where it was not.

        Raises:
            ImpossibleError: It asks for slices of several types of GPU.
            NotExecutableError: The assignment of its pod cannot be executed here, or is missing.
        """
        asked = [name for name in self.slice_resources if requester.container.requests.get(name)]
        if len(asked) > 1:
            raise ImpossibleError(
                f"container {requester.container.name} asks for {' and '.join(asked)}; a container has slices of one "
                "type of GPU: write one of them"
            )
        options, gpus = self.options(requester), self._gpus.now.gpus
        assigned = assigned_to(
            requester,
            gpus,
            slices=slices,
            whole=requester.container.requests.get(self.whole_resource, 0),
            most={gpu.uuid: gpu.slices if options.oversubscribe else gpu.own_slices for gpu in gpus},
        )
        if assigned is None:
            return None
        if not options.exclusive:
            return assigned.shares
        # all of the compute of a GPU that no other pod has limits nothing, where it stands beside what is asked for
        return tuple(
            replace(share, cores=options.cores) if share.cores == CORES_PER_GPU else share
            for share in assigned.shares
        )

    def assigned_whole(self, requester: Requester, count: int) -> tuple[str, ...] | None:
        """Returns the whole GPUs that the requester of so many was assigned; otherwise as `assigned`."""
        slices = sum(requester.container.requests.get(name, 0) for name in self.slice_resources)
        assigned = assigned_to(requester, self._gpus.now.gpus, slices=slices, whole=count)
        return None if assigned is None else assigned.whole


def to_correct(mistakes: Collection[str]) -> str:
    """Returns the sentence that tells a person which annotations to correct, and how."""
    return f"annotations to be corrected: {'; '.join(mistakes)}; kubectl annotate --overwrite will do, the pod waits"
