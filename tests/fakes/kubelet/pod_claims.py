# SPDX-License-Identifier: Apache-2.0
"""The claims of one pod in its worker: when they are prepared, what its containers get, when they are unprepared."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.fakes.kubelet.cdi import injected
from tests.fakes.kubelet.dra import BrokenOff, ClaimManager
from tests.fakes.kubelet.pods import ContainerSpec, Pod
from tests.fakes.kubelet.registry import EndpointError
from tests.fakes.kubelet.runtime import Launch


class PodClaims:
    """Asks when it is due. An error is repeated with the pod's ordinary resync, or soon after its metadata changed."""

    def __init__(self, pod: Pod, manager: ClaimManager, cdi: Path) -> None:
        self._pod = pod
        self._manager = manager
        self._cdi = cdi
        self._prepare_at = 0.0
        self._unprepare_at = 0.0

    def prepare(self, breaks_off: Callable[[], bool]) -> bool:
        """Whether all are prepared, asked for now where that is due."""
        pod, times = self._pod, self._manager.times
        if not pod.spec.claims:
            return True
        now, news = time.monotonic(), pod.news_at
        if now < self._prepare_at and (news is None or now < news + times.news_s):
            return False
        pod.news_at = None
        try:
            self._manager.prepare(pod, breaks_off)
        except EndpointError as error:
            text = f"Failed to prepare dynamic resources: {error}"
            for container in pod.all_containers:
                container.problem = text
            pod.event("Warning", "FailedPrepareDynamicResources", text)
            self._prepare_at = (
                time.monotonic() + self._manager.times.resync_s
            )  # which a call may have changed
            return False
        except BrokenOff:
            return False
        return True

    def injected(self, launch: Launch, container: ContainerSpec) -> Launch:
        """LAUNCH with the devices of a container. Raises EndpointError and StartError."""
        return injected(launch, self._manager.cdi_ids(self._pod, container), self._cdi)

    def unprepare(self, breaks_off: Callable[[], bool]) -> bool:
        """Whether none is prepared for the pod any more, asked for now where that is due."""
        if time.monotonic() < self._unprepare_at:
            return False
        try:
            self._manager.unprepare(self._pod, breaks_off)
        except EndpointError:
            self._unprepare_at = time.monotonic() + self._manager.times.unprepare_retry_s
            return False
        except BrokenOff:
            return False
        return True
