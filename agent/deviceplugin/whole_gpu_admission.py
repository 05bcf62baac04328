"""Whom a call for whole GPUs is for, and which GPUs its pod was assigned."""

from __future__ import annotations

from agent.allocation.choice import GpuChooser
from agent.allocation.owner import ImpossibleError
from agent.allocation.pod_events import PodEvents
from agent.apiserver import Cluster
from agent.deviceplugin.admission import AdmissionResolver
from agent.providers.provider import RefusedError
from agent.providers.whole_gpus import Admitted

__all__ = ["WholeGpuAdmissions"]


class WholeGpuAdmissions:
    """Joins the resolver of admissions, the reading of assignments and the events for the provider of whole GPUs."""

    def __init__(
        self, admissions: AdmissionResolver, chooser: GpuChooser, cluster: Cluster, events: PodEvents
    ) -> None:
        """Initializes it.

        Args:
            admissions: Finds out which container a call is for.
            chooser: Reads assignments.
            cluster: The pods of this node.
            events: Sends why an assignment cannot be executed.
        """
        self._admissions = admissions
        self._chooser = chooser
        self._cluster = cluster
        self._events = events

    async def identify(self, size: int) -> Admitted:
        """Finds out whom a call for so many whole GPUs is for.

        Raises:
            RefusedError: The assignment of its pod cannot be executed, or is missing.
        """
        if not self._cluster.expected:
            return Admitted()
        identified = await self._admissions.identify(size)
        requester = identified.requester
        if requester is None:
            return Admitted(suspects=identified.possible or None, undecided=True)
        try:
            gpus = self._chooser.assigned_whole(requester, size)
        except ImpossibleError as error:
            self._events.impossible(identified, error)
            raise RefusedError(str(error)) from error
        return Admitted(requester.owner, (str(requester.pod),), gpus=gpus)
