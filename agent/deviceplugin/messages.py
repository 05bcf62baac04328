# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages to the agent's values and back. Pure: no socket, no file, no decision about placement."""

from __future__ import annotations

from collections.abc import Iterable

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.providers.container_edits import ContainerEdits
from agent.providers.resource import Device

__all__ = [
    "API_VERSION",
    "MAX_MESSAGE_BYTES",
    "container_response",
    "devices",
    "plugin_options",
    "register_request",
]

API_VERSION = "v1beta1"
MAX_MESSAGE_BYTES = 4 << 20  # the kubelet's gRPC client takes no larger message, and the list is one message
_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"


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


def devices(shown: Iterable[Device]) -> api.ListAndWatchResponse:
    """Returns a resource's devices as the kubelet is sent them."""
    return api.ListAndWatchResponse(
        devices=[
            api.Device(
                ID=device.id,
                health=_HEALTHY if device.healthy else _UNHEALTHY,
                topology=_topology(device.numa),
            )
            for device in shown
        ]
    )


def _topology(numa: int | None) -> api.TopologyInfo | None:
    return None if numa is None else api.TopologyInfo(nodes=[api.NUMANode(ID=numa)])


def container_response(edits: ContainerEdits) -> api.ContainerAllocateResponse:
    """Returns what one container gets, from any resource."""
    return api.ContainerAllocateResponse(
        envs=edits.env,
        mounts=[
            api.Mount(
                container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
            )
            for mount in edits.mounts
        ],
        devices=[
            api.DeviceSpec(
                container_path=node.container_path or node.host_path,
                host_path=node.host_path,
                permissions=node.permissions,
            )
            for node in edits.nodes
        ],
        annotations=edits.annotations,
        cdi_devices=[api.CDIDevice(name=name) for name in edits.cdi],
    )
