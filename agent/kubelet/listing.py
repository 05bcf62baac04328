"""Messages of the kubelet's pod-resources API to values. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.kubelet.pb import podresources_v1_pb2 as podresources
from gigaslice.allocation.lifetime import Listed, ListedPod, Listing
from gigaslice.allocation.table import ContainerRef, whole_gpu_device_id

__all__ = ["containers_of", "gathered", "listed_pods"]


def containers_of(pod: podresources.PodResources, resource: str, whole: str = "") -> list[Listed]:
    """The containers of one pod of the kubelet's list that hold devices of RESOURCE, each once with all its devices.

    Whole GPUs of the resource WHOLE are listed beside them, under the names that the allocation table has for them.
    """
    found: list[Listed] = []
    for container in pod.containers:
        device_ids, gpus = list[str](), list[str]()
        for devices in container.devices:  # there may be one entry for each device
            name = devices.resource_name
            if name == resource:
                device_ids += devices.device_ids
            elif whole and name == whole:
                gpus += map(whole_gpu_device_id, devices.device_ids)
        if device_ids or gpus:
            ref = ContainerRef(pod.namespace, pod.name, container.name)
            found += [Listed(ref, frozenset(held)) for held in (device_ids, gpus) if held]
    return found


def gathered(
    pods: Iterable[podresources.PodResources], found: Iterable[Listed], *, settled: bool = True
) -> Listing:
    """One answer of the kubelet: PODS, of which FOUND hold devices of ours. SETTLED: as `Listing` says."""
    return Listing(tuple(found), frozenset(f"{pod.namespace}/{pod.name}" for pod in pods), settled)


def listed_pods(
    answer: podresources.ListPodResourcesResponse, resource: str, whole: str = ""
) -> tuple[ListedPod, ...]:
    """All pods, with the containers that hold devices of RESOURCE and those that do not."""
    found = []
    for pod in answer.pod_resources:
        holding, bare = list[str](), list[str]()
        for container in pod.containers:
            for devices in container.devices:
                if devices.resource_name == resource:
                    holding.append(container.name)
                    break
            else:
                bare.append(container.name)
        held = tuple(containers_of(pod, resource, whole))
        found.append(ListedPod(pod.namespace, pod.name, frozenset(holding), frozenset(bare), held))
    return tuple(found)
