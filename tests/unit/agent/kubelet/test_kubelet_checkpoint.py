# SPDX-License-Identifier: Apache-2.0
"""The kubelet's checkpoint: what is understood of it, and what is left aside."""

import base64
import json

import pytest

from agent.deviceplugin.messages import container_response
from agent.kubelet.kubelet_checkpoint import CHECKPOINT, KeptResponses
from agent.providers.container_edits import ContainerEdits, Mount
from gigaslice.core.deviceplugin.device_id import whole_gpu_device_id
from tests.fakes.nodes import uuid
from vcuda import contract

RESOURCE, WHOLE, KEY = "gigaslice.io/vgpu-memory", "gigaslice.io/gpu", "0a" * 16


def entry(ids, given, resource=RESOURCE, **more):
    raw = base64.b64encode(container_response(given).SerializeToString()).decode()
    return {
        "PodUID": "u",
        "ContainerName": "c",
        "ResourceName": resource,
        "DeviceIDs": ids,
        "AllocResp": raw,
        **more,
    }


def given(env=None, cdi=(), mounts=True, key=KEY):
    where = (Mount(contract.CONTAINER_LIMITS, f"/s/allocations/{key}/limits"),) if mounts else ()
    return ContainerEdits(env=env or {}, mounts=where, cdi=cdi, annotations={"gigaslice.io/allocation": key})


def read(tmp_path, *entries):
    data = {"Data": {"PodDeviceEntries": list(entries) or None}, "Checksum": 1}
    (tmp_path / CHECKPOINT).write_text(json.dumps(data))
    return KeptResponses(tmp_path, RESOURCE, WHOLE).read()


def test_an_answer_says_its_allocation_its_place_and_its_gpus(tmp_path):
    (one,) = read(tmp_path, entry({"0": ["a/0"], "1": ["a/1"]}, given({"NVIDIA_VISIBLE_DEVICES": "a,b"})))
    assert (one.pod, one.container, one.allocation) == ("u", "c", KEY)
    assert one.device_ids == {"a/0", "a/1"}
    assert (one.directory, one.gpus) == (f"/s/allocations/{KEY}", ("a", "b"))


def test_gpus_by_cdi_and_the_form_of_kubelets_before_1_20(tmp_path):
    (one,) = read(tmp_path, entry(["a/0"], given(cdi=("nvidia.com/gpu=a",))))
    assert (one.device_ids, one.gpus) == ({"a/0"}, ("a",))


def test_whole_gpus_have_the_allocation_table_names_and_no_files(tmp_path):
    (one,) = read(tmp_path, entry({"0": [uuid(0)]}, given(mounts=False), WHOLE))
    assert (one.device_ids, one.directory) == ({whole_gpu_device_id(uuid(0))}, "")


def test_other_plugins_and_answers_of_strangers_are_left_aside(tmp_path):
    strange = given(key="../../etc")
    assert (
        read(tmp_path, entry({"0": ["x"]}, given(), "nvidia.com/gpu"), entry({"0": ["a/0"]}, strange)) == ()
    )
    assert read(tmp_path) == ()


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b'{"Data":[]}', b'{"Data":{"PodDeviceEntries":[1]}}',
     b'{"Data":{"PodDeviceEntries":[{"ResourceName":"gigaslice.io/vgpu-memory"}]}}',
     b'{"Data":{"PodDeviceEntries":[{"ResourceName":"gigaslice.io/vgpu-memory","DeviceIDs":{},"AllocResp":"/w=="}]}}'],
)  # fmt: skip
def test_what_makes_no_sense_is_as_good_as_missing(tmp_path, damage):
    (tmp_path / CHECKPOINT).write_bytes(damage)
    assert KeptResponses(tmp_path, RESOURCE).read() is None


def test_a_missing_file_is_not_an_empty_one(tmp_path):
    assert KeptResponses(tmp_path, RESOURCE).read() is None
