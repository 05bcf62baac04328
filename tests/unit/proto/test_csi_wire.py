# SPDX-License-Identifier: Apache-2.0
"""What goes over a CSI driver's two sockets is fixed by the interface and the kubelet: paths, numbers, types, bytes.

The table was written down from the published definitions, not derived from proto/, so that a slip there cannot hide
itself here.
"""

from __future__ import annotations

from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.wrappers_pb2 import BoolValue

from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2 as csi
from gigaslice.runtime.pb import pluginregistration_v1_pb2 as registration

TYPES = {
    FieldDescriptorProto.TYPE_STRING: "string",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_INT64: "int64",
    FieldDescriptorProto.TYPE_ENUM: "enum",
}

# message: "number type name", a "*" after the type for repeated, "map" for a map of texts to texts
FIELDS = {
    "GetPluginInfoResponse": "1 string name, 2 string vendor_version, 3 map manifest",
    "GetPluginCapabilitiesResponse": "1 PluginCapability* capabilities",
    "PluginCapability": "1 Service service",
    "PluginCapability.Service": "1 enum type",
    "ProbeResponse": "1 BoolValue ready",
    "VolumeCapability": "1 BlockVolume block, 2 MountVolume mount, 3 AccessMode access_mode",
    "VolumeCapability.BlockVolume": "",
    "VolumeCapability.MountVolume": "1 string fs_type, 2 string* mount_flags, 3 string volume_mount_group",
    "VolumeCapability.AccessMode": "1 enum mode",
    "NodeStageVolumeRequest": "1 string volume_id, 2 map publish_context, 3 string staging_target_path, "
    "4 VolumeCapability volume_capability, 5 map secrets, 6 map volume_context",
    "NodeUnstageVolumeRequest": "1 string volume_id, 2 string staging_target_path",
    "NodePublishVolumeRequest": "1 string volume_id, 2 map publish_context, 3 string staging_target_path, "
    "4 string target_path, 5 VolumeCapability volume_capability, 6 bool readonly, 7 map secrets, "
    "8 map volume_context",
    "NodeUnpublishVolumeRequest": "1 string volume_id, 2 string target_path",
    "NodeGetCapabilitiesResponse": "1 NodeServiceCapability* capabilities",
    "NodeServiceCapability": "1 RPC rpc",
    "NodeServiceCapability.RPC": "1 enum type",
    "NodeGetInfoResponse": "1 string node_id, 2 int64 max_volumes_per_node, 3 Topology accessible_topology",
    "Topology": "1 map segments",
}
ENUMS = {
    csi.PluginCapability.Service.Type: "UNKNOWN CONTROLLER_SERVICE VOLUME_ACCESSIBILITY_CONSTRAINTS "
    "GROUP_CONTROLLER_SERVICE",
    csi.VolumeCapability.AccessMode.Mode: "UNKNOWN SINGLE_NODE_WRITER SINGLE_NODE_READER_ONLY MULTI_NODE_READER_ONLY "
    "MULTI_NODE_SINGLE_WRITER MULTI_NODE_MULTI_WRITER SINGLE_NODE_SINGLE_WRITER SINGLE_NODE_MULTI_WRITER",
    csi.NodeServiceCapability.RPC.Type: "UNKNOWN STAGE_UNSTAGE_VOLUME GET_VOLUME_STATS EXPAND_VOLUME VOLUME_CONDITION "
    "SINGLE_NODE_MULTI_WRITER VOLUME_MOUNT_GROUP",
}


def fields(message: DescriptorProto) -> str:
    maps = {inner.name: inner for inner in message.nested_type if inner.options.map_entry}
    found = []
    for field in message.field:
        inner = field.type_name.rpartition(".")[2]
        if inner in maps:
            assert [TYPES[one.type] for one in maps[inner].field] == ["string", "string"]
            kind = "map"
        else:
            repeated = "*" if field.label == field.LABEL_REPEATED else ""
            kind = TYPES.get(field.type, inner) + repeated
        found.append(f"{field.number} {kind} {field.name}")
    return ", ".join(found)


def messages(module: ModuleType) -> dict[str, str]:
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    found: dict[str, str] = {}

    def add(message: DescriptorProto, prefix: str) -> None:
        if message.options.map_entry:
            return
        found[prefix + message.name] = fields(message)
        for inner in message.nested_type:
            add(inner, f"{prefix}{message.name}.")

    for message in file.message_type:
        add(message, "")
    return found


def test_messages_have_the_interfaces_fields():
    found = messages(csi)
    empty = {name for name, text in found.items() if not text} - {"VolumeCapability.BlockVolume"}
    assert {name: text for name, text in found.items() if name not in empty} == FIELDS
    assert all(name.endswith(("Request", "Response")) for name in empty)


def test_registration_messages():
    assert messages(registration) == {
        "InfoRequest": "",
        "PluginInfo": "1 string type, 2 string name, 3 string endpoint, 4 string* supported_versions",
        "RegistrationStatus": "1 bool plugin_registered, 2 string error",
        "RegistrationStatusResponse": "",
    }


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.DESCRIPTOR.full_name)
def test_enums_count_from_zero_in_the_interfaces_order(enum):
    assert dict(enum.items()) == {name: number for number, name in enumerate(ENUMS[enum].split())}


def test_paths():
    paths = {
        f"/{service.full_name}/{method.name}"
        for module in (csi, registration)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    node = ["StageVolume", "UnstageVolume", "PublishVolume", "UnpublishVolume", "GetCapabilities", "GetInfo"]
    assert paths == {
        *(f"/csi.v1.Identity/{name}" for name in ("GetPluginInfo", "GetPluginCapabilities", "Probe")),
        *(f"/csi.v1.Node/Node{name}" for name in node),
        "/pluginregistration.Registration/GetInfo",
        "/pluginregistration.Registration/NotifyRegistrationStatus",
    }


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (
            csi.NodePublishVolumeRequest(
                volume_id="v",
                target_path="/t",
                volume_capability=csi.VolumeCapability(
                    mount=csi.VolumeCapability.MountVolume(),
                    access_mode=csi.VolumeCapability.AccessMode(mode=1),
                ),
                readonly=True,
                secrets={"k": "s"},
                volume_context={"a": "b"},
            ),
            b"\x0a\x01v\x22\x02/t\x2a\x06\x12\x00\x1a\x02\x08\x01\x30\x01\x3a\x06\x0a\x01k\x12\x01s"
            b"\x42\x06\x0a\x01a\x12\x01b",
        ),
        (csi.ProbeResponse(ready=BoolValue(value=True)), b"\x0a\x02\x08\x01"),
        (
            registration.PluginInfo(type="CSIPlugin", name="d", endpoint="/e", supported_versions=["1.0.0"]),
            b"\x0a\x09CSIPlugin\x12\x01d\x1a\x02/e\x22\x051.0.0",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_recorded_bytes(message, wire):
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message
