# SPDX-License-Identifier: Apache-2.0
"""Which GPU a user means."""

from __future__ import annotations

import pytest

from vcuda import errors
from vcuda.devices import GpuDevice, select_devices

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
