# SPDX-License-Identifier: Apache-2.0
"""Which GPU a user means."""

from __future__ import annotations

import pytest

from vcuda import errors
from vcuda.devices import GpuDevice, select_devices, visible_devices

A, B = "GPU-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ab", "GPU-6e1bffff-0f3d-4a5b-8c7d-0123456789ab"
PRESENT = tuple(GpuDevice(index, uuid, "NVIDIA A", 1 << 34) for index, uuid in enumerate((A, B)))


@pytest.mark.parametrize(
    ("name", "uuid"), [("0", A), ("1", B), (A, A), (B.lower(), B), ("GPU-6e1b0", A), ("gpu-6E1BF", B)]
)
def test_by_index_by_uuid_and_by_its_beginning(name: str, uuid: str) -> None:
    (device,) = select_devices([name], PRESENT)
    assert device.uuid == uuid


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["GPU-6e1b"], "several GPUs begin with GPU-6e1b; choose one of 0 "),
        (["2"], "there is no GPU '2'"),
        ([A.replace("6e", "7e")], "there is no GPU-7e1b0a2c"),
        (["0", "GPU-6e1b0"], "named twice"),
    ],
)
def test_anything_else_is_refused_with_the_choices(names: list[str], words: str) -> None:
    with pytest.raises(errors.UsageError, match=words.replace("(", r"\(")):
        select_devices(names, PRESENT)


@pytest.mark.parametrize("name", ["GPU-7", "GPU-", "GPU-zz"])
def test_what_is_neither_a_uuid_nor_a_beginning(name: str) -> None:
    with pytest.raises(errors.BadUuidError):
        select_devices([name], PRESENT)


OTHER = GpuDevice(2, "GPU-77000000-0f3d-4a5b-8c7d-0123456789ab", "NVIDIA B", 1 << 33)


@pytest.mark.parametrize(
    ("listed", "indices"),
    [
        ("0", [0]),
        ("1, 0", [1, 0]),
        (f"{B},{A}", [1, 0]),
        ("GPU-6e1bf", [1]),
        ("", []),
        ("-1", []),
        ("1,7,0", [1]),
        ("GPU-6e1b,0", []),
        ("1,1", [1]),
        ("MIG-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ab", [0, 1]),
    ],
)
def test_what_cuda_shows_to_a_program(listed: str, indices: list[int]) -> None:
    assert [device.index for device in visible_devices(listed, PRESENT, by_bus=False)] == indices


def test_numbers_of_different_models_are_those_of_nvml_only_by_bus() -> None:
    present = (*PRESENT, OTHER)
    assert visible_devices("2", present, by_bus=True) == (OTHER,)
    assert visible_devices("2", present, by_bus=False) == present
    assert visible_devices("GPU-77", present, by_bus=False) == (OTHER,)
