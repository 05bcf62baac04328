# SPDX-License-Identifier: Apache-2.0
"""Programs that close what they did not open, and others that cannot see them: the quota stays one quota."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.fakedriver.env import write_machine
from tests.native.running import CONTEXT, GIB, MIB, OUT_OF_MEMORY, SUCCESS, Place
from tests.native.scripted import Program

# Loses the record locks in one of the ways that programs have, then stays until its input ends.
LOSES = """
    import ctypes, os, sys
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(512 << 20)) == 0
    way, ledger = sys.argv[1:]
    if way == "daemon":
        os.closerange(3, 65536)
    elif way == "scanner":
        open(ledger).close()
    elif way == "dump":
        open(ledger).close()
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self belongs to root from now on
    elif way == "user":
        open(ledger).close()
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
    print("ready", flush=True)
    sys.stdin.read()
"""


ELSEWHERE = ("unshare", "--user", "--map-root-user", "--pid", "--fork")  # another user and PID namespace


@pytest.mark.parametrize(
    ("way", "wrapper"),
    [(way, ()) for way in ("daemon", "scanner", "dump", "user")]
    + [(way, ELSEWHERE) for way in ("daemon", "scanner", "dump")],
)
def test_a_living_process_keeps_its_bytes(tmp_path: Path, way: str, wrapper: tuple[str, ...]) -> None:
    if way == "user" and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if wrapper and subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not permitted here")
    place = Place(tmp_path)
    env = place.env("1GiB") | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", textwrap.dedent(LOSES), way, str(place.quota / "ledger")]
    with subprocess.Popen(
        [*wrapper, *command], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        left = GIB - 2 * CONTEXT - (512 << 20)
        with place.client("1GiB") as other:
            other.ready()
            assert other.do("alloc a", left + 256).code == OUT_OF_MEMORY
            assert other.do("alloc a", left).code == SUCCESS
        owner.kill()


# Lets go of what holds the slot: the mapping that nobody should know, and the record lock.
LETS_GO = """
def let_go(ledger):
    pages = [line.split() for line in open("/proc/self/maps") if line.rstrip().endswith(ledger) and "---s" in line]
    for low, high in (page[0].split("-") for page in pages):
        ctypes.CDLL(None).munmap(c_void_p(int(low, 16)), c_size_t(int(high, 16) - int(low, 16)))
    open(ledger).close()
    return len(pages)
"""

MEMORY = {
    "linear": f"cuMemAlloc_v2(ref(a), c_size_t({64 * MIB}))",
    "managed": f"cuMemAllocManaged(ref(a), c_size_t({64 * MIB}), 1)",
    "pool": f"cuMemAllocAsync(ref(a), c_size_t({64 * MIB}), None)",
    "module": "cuModuleLoadData(ref(a), b'image')",
    "printf buffer": f"cuCtxSetLimit(1, c_size_t({64 * MIB}))",
    "context": "cuCtxCreate_v2(ref(a), 0, 0)",
}


@pytest.mark.parametrize("call", MEMORY.values(), ids=MEMORY)
def test_a_process_that_lost_its_place_is_charged_what_it_holds(tmp_path: Path, call: str) -> None:
    """It let go, so another process emptied its place; its next allocation registers all that it has."""
    machine = write_machine(tmp_path, gpus=1, context_memory="100MiB", module_memory="64MiB")
    place, limit = Place(tmp_path, machine), 2 * GIB
    with Program(place.env(str(limit))) as owner:
        owner.do(f"exec({LETS_GO!r}, globals())")
        owner.ready().do("keep(a=c_ulonglong(), b=c_ulonglong())")
        assert owner.do(call) == SUCCESS
        left = owner.free()
        assert left <= limit - CONTEXT - 32 * MIB, "what is to be charged again"
        if not owner.do(f"let_go({str(place.quota / 'ledger')!r})"):
            pytest.skip("on this file system no mapping holds a place")
        with place.client(str(limit)) as other:
            other.ready()
            assert other.do("alloc a", limit - CONTEXT).code == SUCCESS
        assert owner.do("cuMemAlloc_v2(ref(b), c_size_t(256))") == SUCCESS
        assert owner.free() == left - 256
