# SPDX-License-Identifier: Apache-2.0
"""MIG devices: their own UUIDs in the limits page, one of them in a program, limits and measuring by that UUID."""

from __future__ import annotations

import json
import subprocess

import pytest

import vcuda
from tests.fakedriver.env import write_machine
from tests.native.running import CONTEXT, GIB, MIB, OUT_OF_MEMORY, ROOT, SUCCESS, Place
from tests.native.scripted import Program

CODE = 64 * MIB


@pytest.fixture
def place(tmp_path):
    machine = write_machine(tmp_path, gpus=3, mig="yes", context_memory="100MiB", module_memory="64MiB")
    return Place(tmp_path, machine)


@pytest.fixture
def devices(place):
    """The UUIDs of the machine's MIG devices."""
    with Program(place.plain_env()) as plain:
        plain.do("cuInit(0)")  # makes the machine
    command = [str(ROOT / "build/fakedriver/fakectl"), "state"]
    state = subprocess.run(command, env=place.plain_env(), check=True, capture_output=True, text=True).stdout
    return [gpu["uuid"] for gpu in json.loads(state)["gpus"]]


@pytest.fixture
def start(place, devices):
    """A program under a page with 1 GiB of the first device and 2 of the second; the third is not in it."""
    assert all(uuid.startswith("MIG-") for uuid in devices)
    place.quota.mkdir()
    limits = [vcuda.GpuLimit(devices[0], GIB), vcuda.GpuLimit(devices[1], 2 * GIB)]
    vcuda.create_limits(place.quota / "limits", bytes(16), limits)
    vcuda.create_ledger(place.quota / "ledger", bytes(16), limits)
    running = []

    def start(**extra):
        program = Program(place.env(VCUDA_DIR=str(place.quota), **extra))
        running.append(program)
        program.do("keep(p=c_ulonglong(), m=Handle(), n=Handle())")
        return program

    yield start
    for program in running:
        program.__exit__()


@pytest.mark.parametrize("which", [0, 1])
def test_the_limit_is_the_mig_devices_own(start, place, devices, which):
    program = start(CUDA_VISIBLE_DEVICES=devices[which]).ready()
    limit = (which + 1) * GIB
    assert program.free() == limit - CONTEXT
    assert program.do(f"cuMemAlloc_v2(ref(p), c_size_t({limit - CONTEXT + 1}))") == OUT_OF_MEMORY
    assert program.do(f"cuMemAlloc_v2(ref(p), c_size_t({limit - CONTEXT}))") == SUCCESS
    usage = vcuda.read_ledger(place.quota / "ledger", vcuda.read_limits(place.quota / "limits").gpus)
    assert usage.used(devices[which]) == limit


def test_a_program_gets_the_first_of_several(start, devices):
    program = start(CUDA_VISIBLE_DEVICES=f"{devices[1]},{devices[0]}")
    assert program.do("cuInit(0), cuDevicePrimaryCtxRetain(ref(m), 1)") == [SUCCESS, 101]
    program.ready()
    assert program.free() == 2 * GIB - CONTEXT


def test_a_mig_device_without_an_entry_has_no_memory(start, devices):
    program = start(CUDA_VISIBLE_DEVICES=devices[2])
    assert program.do("cuInit(0), cuDevicePrimaryCtxRetain(ref(m), 0)") == [SUCCESS, OUT_OF_MEMORY]


def test_what_no_call_declares_is_measured_on_the_mig_device(start, place, devices):
    program = start(CUDA_VISIBLE_DEVICES=devices[1]).ready()
    assert program.do("cuModuleLoadData(ref(m), b'image')") == SUCCESS
    assert program.free() == 2 * GIB - CONTEXT - CODE
    assert program.do("cuModuleUnload(m)") == SUCCESS
    assert program.free() == 2 * GIB - CONTEXT


def test_vcuda_ps_names_mig_devices(start, place, devices):
    program = start(CUDA_VISIBLE_DEVICES=devices[1]).ready()
    words = [ROOT / "build/venv/bin/python", "-m", "vcuda", "ps", "--json", "--dir", str(place.quota)]
    answer = subprocess.run(
        words, env=place.plain_env(), check=True, capture_output=True, text=True, cwd=ROOT
    )
    (quota,) = json.loads(answer.stdout)["quotas"]
    assert [(gpu["uuid"], gpu["used_bytes"]) for gpu in quota["gpus"]] == [
        (devices[0], 0),
        (devices[1], CONTEXT),
    ]
    assert quota["gpus"][1]["measured_bytes"] == CONTEXT
    assert quota["processes"][0]["pid"] == program.process.pid
