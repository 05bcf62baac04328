# SPDX-License-Identifier: Apache-2.0
"""What goes over the kubelet's sockets is fixed by the kubelet: paths, field numbers, types, and bytes.

The tables below were written down from the kubelet's definitions, not derived from proto/, so that a
slip there cannot hide itself here.
"""

from __future__ import annotations

from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as dp
from agent.kubelet.pb import dra_v1_pb2 as dra
from agent.kubelet.pb import dra_v1beta1_pb2 as dra_beta
from agent.kubelet.pb import podresources_v1_pb2 as pr

TYPES = {
    "string": FieldDescriptor.TYPE_STRING,
    "bool": FieldDescriptor.TYPE_BOOL,
    "int32": FieldDescriptor.TYPE_INT32,
    "int64": FieldDescriptor.TYPE_INT64,
    "uint64": FieldDescriptor.TYPE_UINT64,
    "message": FieldDescriptor.TYPE_MESSAGE,
}

# message: "number type name"; "*" after the type means repeated, "?" optional, a name after ":" the message type.
DEVICE_PLUGIN = {
    "Empty": [],
    "DevicePluginOptions": ["1 bool pre_start_required", "2 bool get_preferred_allocation_available"],
    "RegisterRequest": [
        "1 string version",
        "2 string endpoint",
        "3 string resource_name",
        "4 message options:DevicePluginOptions",
    ],
    "ListAndWatchResponse": ["1 message* devices:Device"],
    "TopologyInfo": ["1 message* nodes:NUMANode"],
    "NUMANode": ["1 int64 ID"],
    "Device": ["1 string ID", "2 string health", "3 message topology:TopologyInfo"],
    "PreStartContainerRequest": ["1 string* devices_ids"],
    "PreStartContainerResponse": [],
    "PreferredAllocationRequest": ["1 message* container_requests:ContainerPreferredAllocationRequest"],
    "ContainerPreferredAllocationRequest": [
        "1 string* available_deviceIDs",
        "2 string* must_include_deviceIDs",
        "3 int32 allocation_size",
    ],
    "PreferredAllocationResponse": ["1 message* container_responses:ContainerPreferredAllocationResponse"],
    "ContainerPreferredAllocationResponse": ["1 string* deviceIDs"],
    "AllocateRequest": ["1 message* container_requests:ContainerAllocateRequest"],
    "ContainerAllocateRequest": ["1 string* devices_ids"],
    "AllocateResponse": ["1 message* container_responses:ContainerAllocateResponse"],
    "ContainerAllocateResponse": [
        "1 message* envs:EnvsEntry",
        "2 message* mounts:Mount",
        "3 message* devices:DeviceSpec",
        "4 message* annotations:AnnotationsEntry",
        "5 message* cdi_devices:CDIDevice",
    ],
    "Mount": ["1 string container_path", "2 string host_path", "3 bool read_only"],
    "DeviceSpec": ["1 string container_path", "2 string host_path", "3 string permissions"],
    "CDIDevice": ["1 string name"],
}

POD_RESOURCES = {
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": ["1 message* pod_resources:PodResources"],
    "AllocatableResourcesRequest": [],
    "AllocatableResourcesResponse": [
        "1 message* devices:ContainerDevices",
        "2 int64* cpu_ids",
        "3 message* memory:ContainerMemory",
    ],
    "GetPodResourcesRequest": ["1 string pod_name", "2 string pod_namespace"],
    "GetPodResourcesResponse": ["1 message pod_resources:PodResources"],
    "PodResources": ["1 string name", "2 string namespace", "3 message* containers:ContainerResources"],
    "ContainerResources": [
        "1 string name",
        "2 message* devices:ContainerDevices",
        "3 int64* cpu_ids",
        "4 message* memory:ContainerMemory",
        "5 message* dynamic_resources:DynamicResource",
    ],
    "ContainerDevices": ["1 string resource_name", "2 string* device_ids", "3 message topology:TopologyInfo"],
    "ContainerMemory": ["1 string memory_type", "2 uint64 size", "3 message topology:TopologyInfo"],
    "TopologyInfo": ["1 message* nodes:NUMANode"],
    "NUMANode": ["1 int64 ID"],
    "DynamicResource": [
        "2 string claim_name",
        "3 string claim_namespace",
        "4 message* claim_resources:ClaimResource",
    ],
    "ClaimResource": [
        "1 message* cdi_devices:CDIDevice",
        "2 string driver_name",
        "3 string pool_name",
        "4 string device_name",
    ],
    "CDIDevice": ["1 string name"],
}

CLAIMS_BETA = {
    "NodePrepareResourcesRequest": ["1 message* claims:Claim"],
    "NodePrepareResourcesResponse": ["1 message* claims:ClaimsEntry"],
    "NodePrepareResourceResponse": ["1 message* devices:Device", "2 string error"],
    "Device": [
        "1 string* request_names",
        "2 string pool_name",
        "3 string device_name",
        "4 string* cdi_device_ids",
    ],
    "NodeUnprepareResourcesRequest": ["1 message* claims:Claim"],
    "NodeUnprepareResourcesResponse": ["1 message* claims:ClaimsEntry"],
    "NodeUnprepareResourceResponse": ["1 string error"],
    "Claim": ["1 string namespace", "2 string uid", "3 string name"],
}

CLAIMS = {**CLAIMS_BETA, "Device": [*CLAIMS_BETA["Device"], "5 string? share_id"]}

DRIVER = {
    "NodePrepareResources": ("NodePrepareResourcesRequest", "NodePrepareResourcesResponse", False),
    "NodeUnprepareResources": ("NodeUnprepareResourcesRequest", "NodeUnprepareResourcesResponse", False),
}

METHODS = {
    dra: {"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": DRIVER},
    dra_beta: {"k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin": DRIVER},
    dp: {
        "v1beta1.Registration": {"Register": ("RegisterRequest", "Empty", False)},
        "v1beta1.DevicePlugin": {
            "GetDevicePluginOptions": ("Empty", "DevicePluginOptions", False),
            "ListAndWatch": ("Empty", "ListAndWatchResponse", True),
            "GetPreferredAllocation": ("PreferredAllocationRequest", "PreferredAllocationResponse", False),
            "Allocate": ("AllocateRequest", "AllocateResponse", False),
            "PreStartContainer": ("PreStartContainerRequest", "PreStartContainerResponse", False),
        },
    },
    pr: {
        "v1.PodResourcesLister": {
            "List": ("ListPodResourcesRequest", "ListPodResourcesResponse", False),
            "GetAllocatableResources": ("AllocatableResourcesRequest", "AllocatableResourcesResponse", False),
            "Get": ("GetPodResourcesRequest", "GetPodResourcesResponse", False),
        }
    },
}


def described(module: ModuleType) -> dict[str, list[str]]:
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    names = {number: name for name, number in TYPES.items()}
    table = {}
    for message in file.message_type:
        table[message.name] = [
            f"{field.number} {names[field.type]}{_mark(field)} {field.name}"
            + (f":{field.type_name.split('.')[-1]}" if field.type_name else "")
            for field in message.field
        ]
    return table


def _mark(field: descriptor_pb2.FieldDescriptorProto) -> str:
    if field.proto3_optional:
        return "?"
    return "*" if field.label == field.LABEL_REPEATED else ""


@pytest.mark.parametrize(
    ("module", "table"),
    [(dp, DEVICE_PLUGIN), (pr, POD_RESOURCES), (dra, CLAIMS), (dra_beta, CLAIMS_BETA)],
    ids=["dp", "pr", "dra", "dra-beta"],
)
def test_messages_have_the_kubelets_fields(module, table):
    assert described(module) == table


@pytest.mark.parametrize("module", [dp, pr, dra, dra_beta], ids=["dp", "pr", "dra", "dra-beta"])
def test_services_have_the_kubelets_paths(module):
    services = {
        service.full_name: {
            method.name: (method.input_type.name, method.output_type.name, method.server_streaming)
            for method in service.methods
        }
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    assert services == METHODS[module]


RECORDED: list[tuple[Message, bytes]] = [
    (
        dp.RegisterRequest(
            version="v1beta1",
            endpoint="g.sock",
            resource_name="gigaslice.io/vgpu-memory",
            options=dp.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True),
        ),
        b"\x0a\x07v1beta1\x12\x06g.sock\x1a\x18gigaslice.io/vgpu-memory\x22\x04\x08\x01\x10\x01",
    ),
    (
        dp.ListAndWatchResponse(
            devices=[
                dp.Device(
                    ID="GPU-1/0",
                    health="Healthy",
                    topology=dp.TopologyInfo(nodes=[dp.NUMANode(ID=1), dp.NUMANode(ID=-1)]),
                )
            ]
        ),
        b"\x0a\x25\x0a\x07GPU-1/0\x12\x07Healthy\x1a\x11\x0a\x02\x08\x01\x0a\x0b\x08" + b"\xff" * 9 + b"\x01",
    ),
    (
        dp.PreferredAllocationRequest(
            container_requests=[
                dp.ContainerPreferredAllocationRequest(
                    available_deviceIDs=["a", "b"], must_include_deviceIDs=["b"], allocation_size=300
                )
            ]
        ),
        b"\x0a\x0c\x0a\x01a\x0a\x01b\x12\x01b\x18\xac\x02",
    ),
    (
        dp.AllocateResponse(
            container_responses=[
                dp.ContainerAllocateResponse(
                    envs={"K": "V"},
                    mounts=[dp.Mount(container_path="/c", host_path="/h", read_only=True)],
                    devices=[dp.DeviceSpec(container_path="/d", host_path="/e", permissions="rw")],
                    annotations={"a": "b"},
                    cdi_devices=[dp.CDIDevice(name="n")],
                )
            ]
        ),
        b"\x0a\x2f\x0a\x06\x0a\x01K\x12\x01V\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01"
        b"\x1a\x0c\x0a\x02/d\x12\x02/e\x1a\x02rw\x22\x06\x0a\x01a\x12\x01b\x2a\x03\x0a\x01n",
    ),
    (
        pr.ListPodResourcesResponse(
            pod_resources=[
                pr.PodResources(
                    name="p",
                    namespace="ns",
                    containers=[
                        pr.ContainerResources(
                            name="c",
                            devices=[pr.ContainerDevices(resource_name="r/x", device_ids=["a"])],
                            cpu_ids=[1, 2],
                        )
                    ],
                )
            ]
        ),
        b"\x0a\x1a\x0a\x01p\x12\x02ns\x1a\x11\x0a\x01c\x12\x08\x0a\x03r/x\x12\x01a\x1a\x02\x01\x02",
    ),
    (
        dra.NodePrepareResourcesRequest(claims=[dra.Claim(namespace="ns", uid="u", name="c")]),
        b"\x0a\x0a\x0a\x02ns\x12\x01u\x1a\x01c",
    ),
    (
        dra.NodePrepareResourcesResponse(
            claims={
                "u": dra.NodePrepareResourceResponse(
                    devices=[
                        dra.Device(
                            request_names=["r"],
                            pool_name="p",
                            device_name="d",
                            cdi_device_ids=["k=n"],
                            share_id="s",
                        )
                    ],
                    error="e",
                )
            }
        ),
        b"\x0a\x1b\x0a\x01u\x12\x16\x0a\x11\x0a\x01r\x12\x01p\x1a\x01d\x22\x03k=n\x2a\x01s\x12\x01e",
    ),
    (
        dra_beta.NodeUnprepareResourcesResponse(
            claims={"u": dra_beta.NodeUnprepareResourceResponse(error="e")}
        ),
        b"\x0a\x08\x0a\x01u\x12\x03\x0a\x01e",
    ),
]


@pytest.mark.parametrize(("message", "wire"), RECORDED, ids=lambda value: type(value).__name__)
def test_recorded_bytes(message, wire):
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message


def test_fields_of_a_newer_kubelet_are_kept_apart_not_refused():
    newer = dp.Device(ID="x").SerializeToString() + b"\x7a\x03new"
    assert dp.Device.FromString(newer).ID == "x"


def test_a_claim_that_is_prepared_is_the_same_bytes_for_an_older_kubelet():
    message = dra_beta.Device(pool_name="p", device_name="d", cdi_device_ids=["k=n"])
    assert dra.Device.FromString(message.SerializeToString()) == dra.Device(
        pool_name="p", device_name="d", cdi_device_ids=["k=n"]
    )
    assert dra.Device(share_id="").SerializeToString(), "a share without a name is not no share"
