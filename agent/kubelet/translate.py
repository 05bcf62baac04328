"""Protobuf messages to the agent's values and back. Pure: no socket, no file, no decision about placement.

The four mounts of a container are put together here; what is behind them is made by `agent.state.allocdir`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.discovery.source import Inventory
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.kubelet.pb import podresources_v1_pb2 as podresources
from agent.kubelet.whose import ListedPod
from agent.model import Gpu, gpu_tokens
from agent.state.reconcile import Listed, Listing
from agent.state.records import ContainerRef, Grant
from vcuda import contract

__all__ = [
    "API_VERSION",
    "MAX_MESSAGE_BYTES",
    "container_response",
    "device_list",
    "listed_pods",
    "listing",
    "plugin_options",
    "register_request",
]

API_VERSION = "v1beta1"
MAX_MESSAGE_BYTES = 4 << 20  # the kubelet's gRPC client takes no larger message, and the list is one message
_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"
_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_CDI_KIND = "nvidia.com/gpu"
_ANNOTATION = "gigaslice.io/allocation"


def plugin_options() -> api.DevicePluginOptions:
    """Both optional calls are wanted: the start gate and the preference."""
    return api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def register_request(resource: str, endpoint: str) -> api.RegisterRequest:
    """Announces RESOURCE on the socket named ENDPOINT in the kubelet's directory."""
    return api.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=plugin_options()
    )


def device_list(inventory: Inventory, withheld: frozenset[str] = frozenset()) -> api.ListAndWatchResponse:
    """Every slice of every card as a device, with the card's health and NUMA node.

    WITHHELD: tokens that nobody has and nobody can have now. They are shown as unhealthy, which takes them off what the
    scheduler sees as allocatable.
    """
    devices = [device for gpu in inventory.gpus for device in _devices(gpu, withheld)]
    return api.ListAndWatchResponse(devices=devices)


def _devices(gpu: Gpu, withheld: frozenset[str]) -> Iterable[api.Device]:
    health = _HEALTHY if gpu.healthy else _UNHEALTHY
    nodes = [] if gpu.numa_node is None else [api.NUMANode(ID=gpu.numa_node)]
    topology = api.TopologyInfo(nodes=nodes) if nodes else None
    return (
        api.Device(ID=token, health=_UNHEALTHY if token in withheld else health, topology=topology)
        for token in gpu_tokens(gpu)
    )


def container_response(
    grant: Grant, directory: Path, library_dir: Path, visible_devices: str
) -> api.ContainerAllocateResponse:
    """What the runtime adds to the container: four mounts and the names of its cards, each once.

    DIRECTORY is the grant's, LIBRARY_DIR the libraries', both on the host. VISIBLE_DEVICES: "env" or "cdi".
    """
    response = api.ContainerAllocateResponse(
        mounts=[
            _mount(contract.CONTAINER_PRELOAD, directory / contract.PRELOAD_FILE),
            _mount(contract.CONTAINER_LIBRARY_DIR, library_dir),
            _mount(contract.CONTAINER_LIMITS, directory / contract.LIMITS_FILE),
            _mount(contract.CONTAINER_LEDGER, directory / contract.LEDGER_FILE, read_only=False),
        ],
        annotations={_ANNOTATION: grant.id},
    )
    cards = list(grant.quota())
    if visible_devices == "cdi":
        response.cdi_devices.extend(api.CDIDevice(name=f"{_CDI_KIND}={uuid}") for uuid in cards)
    else:
        response.envs[_VISIBLE_DEVICES] = ",".join(cards)
    return response


def _mount(container_path: str, host_path: Path, *, read_only: bool = True) -> api.Mount:
    return api.Mount(container_path=container_path, host_path=str(host_path), read_only=read_only)


def listing(answer: podresources.ListPodResourcesResponse, resource: str) -> Listing:
    """All pods, and the containers that hold devices of RESOURCE, each once with all its devices."""
    found: list[Listed] = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            tokens = frozenset(
                token
                for devices in container.devices
                if devices.resource_name == resource
                for token in devices.device_ids
            )
            if tokens:
                found.append(Listed(ContainerRef(pod.namespace, pod.name, container.name), tokens))
    return Listing(tuple(found), frozenset(f"{pod.namespace}/{pod.name}" for pod in answer.pod_resources))


def listed_pods(answer: podresources.ListPodResourcesResponse, resource: str) -> tuple[ListedPod, ...]:
    """All pods, with the containers that hold devices of RESOURCE and those that do not."""
    found = []
    for pod in answer.pod_resources:
        holding = frozenset(
            container.name
            for container in pod.containers
            if any(devices.resource_name == resource for devices in container.devices)
        )
        bare = frozenset(container.name for container in pod.containers) - holding
        found.append(ListedPod(pod.namespace, pod.name, holding, bare))
    return tuple(found)
