"""Programs that close what they did not open, and others that cannot see them: the quota stays one quota."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.native.running import CONTEXT, GIB, OUT_OF_MEMORY, SUCCESS, Place

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
