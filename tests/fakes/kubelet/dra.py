# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of claims to devices, as seen of 1.36.2: prepared once, answered from memory, unprepared at last.

That a claim is prepared is in the kubelet's memory only; what its drivers answered, and for which pods, is on disk. A
kubelet that was started again asks when the next pod attaches, and never for pods that run. It adds the new answer to
the one on disk, and later containers get the devices of both. All claims of a pod come in one call to each driver. At
its start the kubelet deletes the slices of its node, later those of drivers that are gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.kubeapi.refused import Refused
from tests.fakes.kubeapi.server import ApiServer
from tests.fakes.kubelet.dra_plugins import BrokenOff, Call, DraPlugins, Instance
from tests.fakes.kubelet.pods import ClaimSpec, ContainerSpec, Pod
from tests.fakes.kubelet.registry import EndpointError

__all__ = ["BrokenOff", "ClaimInfo", "ClaimManager", "ClaimTimes", "KeptClaims"]

Document = Mapping[str, Any]
_PREPARE, _UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ClaimTimes:
    """Waiting times of a real kubelet.

    news_s: from a change of the pod's metadata to the next call. register_after_s: from a driver's socket to its
    registration; a real kubelet looks for new ones every second. race: as 1.36, where a pod attaches to a claim that is
    being unprepared (kubernetes#140527).
    """

    call_s: float = 45.0
    resync_s: float = 72.0
    news_s: float = 0.3
    unprepare_retry_s: float = 4.0
    wipe_after_s: float = 30.0
    register_pauses_s: tuple[float, float] = (0.5, 122.0)
    register_after_s: float = 0.0
    race: bool = False


@dataclass
class ClaimInfo:
    """A claim that pods of the node have. devices: what each driver answered. pods: by UID, and what each calls it."""

    namespace: str
    name: str
    uid: str
    drivers: tuple[str, ...]
    devices: dict[str, list[Any]] = field(default_factory=dict)
    pods: dict[str, set[str]] = field(default_factory=dict)
    prepared: bool = False
    leaving: bool = False  # it is being unprepared


KeptClaims = dict[tuple[str, str], ClaimInfo]
"""By namespace and name."""


class ClaimManager:
    """Of one kubelet process. kept: what is on disk, which outlives it."""

    def __init__(
        self, api: ApiServer, node: str, registry: Path, kept: KeptClaims, times: ClaimTimes
    ) -> None:
        self.times = times
        self.plugins = DraPlugins(
            registry, self._wipe, times.wipe_after_s, times.register_pauses_s, times.register_after_s
        )
        self._api = api
        self._node = node
        self._kept = kept
        self._lock = threading.RLock()
        for info in kept.values():
            info.prepared = info.leaving = False

    @property
    def calls(self) -> list[Call]:
        """What drivers were asked, in the order in which it began."""
        return self.plugins.calls

    def names(self, method: str = "") -> list[str]:
        """As DraPlugins.names()."""
        return self.plugins.names(method)

    def start(self) -> None:
        """All slices of the node go, whoever made them; their drivers make them again once they are registered."""
        self._wipe("")
        self.plugins.start()

    def stop(self) -> None:
        """Ends as the process does."""
        self.plugins.stop()

    def _wipe(self, driver: str) -> None:
        with self._api.store.lock:
            for one in self._api.all("resourceslices"):
                if one["spec"].get("nodeName") == self._node and driver in ("", one["spec"]["driver"]):
                    self._api.delete("resourceslices", one["metadata"]["name"])

    # --- preparing -------------------------------------------------------------------------------------------

    def prepare(self, pod: Pod, breaks_off: Callable[[], bool]) -> None:
        """Returns when all claims of the pod are prepared. Raises EndpointError and BrokenOff."""
        batches: dict[Instance, list[ClaimInfo]] = {}
        for own in pod.spec.claims:
            info = self._attach(pod, own.name, self._claim(pod, own), breaks_off)
            if not info.prepared:
                for driver in info.drivers:
                    batches.setdefault(self.plugins.find(driver), []).append(info)
        for instance, infos in batches.items():
            answers = self._ask(instance, _PREPARE, infos, breaks_off)
            for info in infos:
                if answers[info.uid].error:
                    problem = answers[info.uid].error
                    raise EndpointError(f"{_PREPARE} failed for ResourceClaim {info.name}: {problem}")
                info.devices.setdefault(instance.driver, []).extend(answers[info.uid].devices)
        with self._lock:
            for infos in batches.values():
                for info in infos:
                    info.prepared = self._kept.get((info.namespace, info.name)) is info

    def _claim(self, pod: Pod, own: ClaimSpec) -> Document:
        """The claim in the API server, if the pod may have it."""
        spec, name = pod.spec, own.claim
        try:
            if not name:
                status = self._api.get("pods", spec.name, spec.namespace).get("status") or {}
                made = {
                    one["name"]: one["resourceClaimName"] for one in status.get("resourceClaimStatuses") or []
                }
                if own.name not in made:
                    text = "ResourceClaim not created yet"
                    raise EndpointError(f'prepare resource claim: pod "{spec.namespace}/{spec.name}": {text}')
                name = made[own.name]
            claim = self._api.get("resourceclaims", name, spec.namespace)
        except Refused as error:
            text = f"failed to fetch ResourceClaim {name} referenced by pod {spec.name}: {error}"
            raise EndpointError(text) from error
        owners = {one["uid"] for one in claim["metadata"].get("ownerReferences") or []}
        if not own.claim and pod.uid not in owners:
            raise EndpointError(f"ResourceClaim {name} was not created for pod {spec.namespace}/{spec.name}")
        users = {one["uid"] for one in (claim.get("status") or {}).get("reservedFor") or []}
        if pod.uid not in users:
            uid = claim["metadata"]["uid"]
            text = f"pod {spec.name} ({pod.uid}) is not allowed to use ResourceClaim {name} ({uid})"
            raise EndpointError(text)
        return claim

    def _attach(self, pod: Pod, name: str, claim: Document, breaks_off: Callable[[], bool]) -> ClaimInfo:
        metadata = claim["metadata"]
        key = metadata["namespace"], metadata["name"]
        while True:
            with self._lock:
                info = self._kept.get(key)
                if info is None:
                    results = claim["status"]["allocation"]["devices"].get("results") or []
                    drivers = tuple(dict.fromkeys(one["driver"] for one in results))
                    info = self._kept[key] = ClaimInfo(*key, metadata["uid"], drivers)
                elif info.uid != metadata["uid"]:
                    raise EndpointError(
                        f"old ResourceClaim with same name {info.name} and different UID {info.uid} still exists "
                        "(previous pod force-deleted?!)"
                    )
                if self.times.race or not info.leaving:
                    info.pods.setdefault(pod.uid, set()).add(name)
                    return info
            if breaks_off():
                raise BrokenOff
            time.sleep(_POLL_S)

    # --- devices ---------------------------------------------------------------------------------------------

    def held(self, pod: Pod, container: ContainerSpec) -> Iterator[tuple[ClaimInfo, list[tuple[str, Any]]]]:
        """The claims of a container and the devices of each that it has, with their drivers."""
        for use in container.claims:
            name, _, request = use.partition("/")
            with self._lock:
                info = next((one for one in self._kept.values() if name in one.pods.get(pod.uid, ())), None)
            if info is not None:
                yield (
                    info,
                    [
                        (driver, device)
                        for driver, devices in info.devices.items()
                        for device in devices
                        if not request or request in device.request_names
                    ],
                )

    def cdi_ids(self, pod: Pod, container: ContainerSpec) -> list[str]:
        """What the runtime is told for a container. Raises EndpointError where a claim is not known any more."""
        claims = list(self.held(pod, container))
        if len(claims) != len(container.claims):
            raise EndpointError("unable to get claim info: the claim is not known to this kubelet")
        return [ident for _, devices in claims for _, device in devices for ident in device.cdi_device_ids]

    # --- unpreparing -----------------------------------------------------------------------------------------

    def unprepare(self, pod: Pod, breaks_off: Callable[[], bool]) -> None:
        """Returns when no claim is prepared for the pod alone any more. Raises EndpointError and BrokenOff."""
        last = []
        with self._lock:
            for info in [info for info in self._kept.values() if pod.uid in info.pods]:
                if len(info.pods) > 1:
                    del info.pods[pod.uid]
                    continue
                info.leaving = True
                if not self.times.race:
                    info.prepared = False
                last.append(info)
        try:
            batches: dict[Instance, list[ClaimInfo]] = {}
            for info in last:
                for driver in info.drivers:
                    batches.setdefault(self.plugins.find(driver), []).append(info)
            for instance, infos in batches.items():
                answers = self._ask(instance, _UNPREPARE, infos, breaks_off)
                for info in infos:
                    if answers[info.uid].error:
                        problem = answers[info.uid].error
                        raise EndpointError(f"{_UNPREPARE} failed for ResourceClaim {info.name}: {problem}")
            with self._lock:
                for info in last:
                    del self._kept[info.namespace, info.name]
        finally:
            for info in last:
                info.leaving = False

    def _ask(
        self, instance: Instance, method: str, infos: list[ClaimInfo], breaks_off: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """The answers by UID."""
        messages = instance.messages
        claims = [messages.Claim(namespace=one.namespace, uid=one.uid, name=one.name) for one in infos]
        request = getattr(messages, f"{method}Request")(claims=claims)
        try:
            answer = self.plugins.call(instance, method, request, self.times.call_s, breaks_off)
        except EndpointError as error:
            raise EndpointError(f"{method} failed: {error}") from error
        missing = sum(one.uid not in answer.claims for one in infos)
        if missing:
            raise EndpointError(f"{method} skipped {missing} of {len(infos)} ResourceClaims")
        return answer.claims
