# SPDX-License-Identifier: Apache-2.0
"""The kubelet's pod-resources list as values, and when a pod's absence from it means something. Pure.

A kubelet that has just started lists nothing at first, then the static pods of its node. It lists the other pods once
the API server has told it of them: two seconds later, or hours later where the API server is away too. So absence from
the list counts only after this kubelet has shown a pod that is not static, and some seconds later still, since it
takes up its pods one by one. A kubelet that was running before this process is no exception: it may have started
just before.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from agent.kubelet.pb import podresources_v1_pb2 as podresources
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.deviceplugin.device_id import whole_gpu_device_id
from gigaslice.core.deviceplugin.lifetime import Listed, ListedPod, PodListing

__all__ = ["Settling", "containers_of", "gathered", "listed_pods"]

_SETTLE_SECONDS = 5.0
_EMPTY_SECONDS = 300.0  # a node may really have no pods


def containers_of(
    pod: podresources.PodResources, resources: Collection[str], whole: str = ""
) -> list[Listed]:
    """Returns the containers of one listed pod that hold devices of ours, each once with all its devices.

    Args:
        pod: An entry of the kubelet's list.
        resources: The resources of slices.
        whole: The resource of whole GPUs, empty where none is offered. Its devices come as entries of their own, under
            the device IDs that the allocation table has for them.
    """
    containers: list[Listed] = []
    for container in pod.containers:
        device_ids, gpus = list[str](), list[str]()
        for devices in container.devices:  # there may be one entry for each device
            name = devices.resource_name
            if name in resources:
                device_ids += devices.device_ids
            elif whole and name == whole:
                gpus += map(whole_gpu_device_id, devices.device_ids)
        if device_ids or gpus:
            ref = ContainerRef(pod.namespace, pod.name, container.name)
            containers += [Listed(ref, frozenset(held)) for held in (device_ids, gpus) if held]
    return containers


def gathered(
    pods: Iterable[podresources.PodResources], containers: Iterable[Listed], *, settled: bool = True
) -> PodListing:
    """Returns one list of the kubelet: all its pods, and the containers found in them that hold our devices."""
    return PodListing(tuple(containers), frozenset(f"{pod.namespace}/{pod.name}" for pod in pods), settled)


def listed_pods(
    answer: podresources.ListPodResourcesResponse, resource: str, resources: Collection[str], whole: str = ""
) -> tuple[ListedPod, ...]:
    """Returns all pods, each with its containers that hold devices of one resource and those that do not."""
    pods = []
    for pod in answer.pod_resources:
        holding, bare = list[str](), list[str]()
        for container in pod.containers:
            for devices in container.devices:
                if devices.resource_name == resource:
                    holding.append(container.name)
                    break
            else:
                bare.append(container.name)
        held = tuple(containers_of(pod, resources, whole))
        pods.append(ListedPod(pod.namespace, pod.name, frozenset(holding), frozenset(bare), held))
    return tuple(pods)


class Settling:
    """Follows the lists of a node's kubelets.

    Attributes:
        informed: This kubelet has shown a pod that is not static.
        settled: Absence from the last list means something.
    """

    def __init__(self, node: str = "") -> None:
        """Args: node: The node's name, with which the names of static pods end; empty where it is not known."""
        self.informed = False
        self.settled = False
        self._static = f"-{node}" if node else ""
        self._kubelet: Hashable = None
        self._since = 0.0

    def observe(self, kubelet: Hashable, pods: Iterable[str], now: float) -> bool:
        """Notes one list.

        Args:
            kubelet: Identity of the kubelet that gave the list.
            pods: Names of the listed pods.
            now: Seconds on a clock that never goes back.

        Returns:
            Whether absence from this list means something.
        """
        if kubelet != self._kubelet:
            self._kubelet, self._since, self.informed = kubelet, now, False
        self.informed = self.informed or any(
            not (self._static and pod.endswith(self._static)) for pod in pods
        )
        self.settled = now - self._since >= (_SETTLE_SECONDS if self.informed else _EMPTY_SECONDS)
        return self.settled
