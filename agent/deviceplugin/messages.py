"""Protobuf messages to the agent's values and back. Pure: no socket, no file, no decision about placement.

The four mounts of a container are put together here; what is behind them is made by `agent.persistence.directories`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.providers.provider import Answer, Device, Mount
from gigaslice.allocation.table import Allocation
from vcuda import contract

__all__ = [
    "API_VERSION",
    "MAX_MESSAGE_BYTES",
    "answer",
    "container_answer",
    "devices",
    "plugin_options",
    "register_request",
]

API_VERSION = "v1beta1"
MAX_MESSAGE_BYTES = 4 << 20  # the kubelet's gRPC client takes no larger message, and the list is one message
_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"
_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_CDI_KIND = "nvidia.com/gpu"
_ANNOTATION = "gigaslice.io/allocation"


def plugin_options(*, checks_start: bool = True, prefers: bool = True) -> api.DevicePluginOptions:
    """Returns which optional calls the kubelet should make: before a start, and for a preference."""
    return api.DevicePluginOptions(
        pre_start_required=checks_start, get_preferred_allocation_available=prefers
    )


def register_request(
    resource: str, endpoint: str, options: api.DevicePluginOptions | None = None
) -> api.RegisterRequest:
    """Returns the announcement of a resource on the socket of that name in the kubelet's directory."""
    return api.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options or plugin_options()
    )


def devices(found: Iterable[Device]) -> api.ListAndWatchResponse:
    """Returns a provider's devices as the kubelet is sent them."""
    return api.ListAndWatchResponse(
        devices=[
            api.Device(
                ID=one.id, health=_HEALTHY if one.healthy else _UNHEALTHY, topology=_topology(one.numa)
            )
            for one in found
        ]
    )


def _topology(numa: int | None) -> api.TopologyInfo | None:
    return None if numa is None else api.TopologyInfo(nodes=[api.NUMANode(ID=numa)])


def container_answer(
    allocation: Allocation, directory: Path, library_dir: Path, visible_devices: str
) -> Answer:
    """Returns what the runtime adds to a container of slices: four mounts and the names of its GPUs, each once.

    Args:
        allocation: The container's allocation.
        directory: The allocation's directory on the host.
        library_dir: The directory of the libraries on the host.
        visible_devices: How GPUs are named to the runtime, "env" or "cdi".
    """
    gpus = tuple(allocation.quota())
    by_cdi = visible_devices == "cdi"
    return Answer(
        env={} if by_cdi else {_VISIBLE_DEVICES: ",".join(gpus)},
        mounts=(
            Mount(contract.CONTAINER_PRELOAD, str(directory / contract.PRELOAD_FILE)),
            Mount(contract.CONTAINER_LIBRARY_DIR, str(library_dir)),
            Mount(contract.CONTAINER_LIMITS, str(directory / contract.LIMITS_FILE)),
            Mount(contract.CONTAINER_LEDGER, str(directory / contract.LEDGER_FILE), read_only=False),
        ),
        cdi=tuple(f"{_CDI_KIND}={uuid}" for uuid in gpus) if by_cdi else (),
        annotations={_ANNOTATION: allocation.id},
    )


def answer(given: Answer) -> api.ContainerAllocateResponse:
    """Returns what one container gets, from any provider."""
    return api.ContainerAllocateResponse(
        envs=given.env,
        mounts=[
            api.Mount(
                container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
            )
            for mount in given.mounts
        ],
        devices=[
            api.DeviceSpec(
                container_path=node.container_path or node.host_path,
                host_path=node.host_path,
                permissions=node.permissions,
            )
            for node in given.nodes
        ],
        annotations=given.annotations,
        cdi_devices=[api.CDIDevice(name=name) for name in given.cdi],
    )
