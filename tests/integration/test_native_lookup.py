# SPDX-License-Identifier: Apache-2.0
"""How functions are found: as they would be without the library, except that hooked functions are ours."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.native.check_library import listed_symbols, shared_symbols
from tests.native.running import CLIENTS, CONTEXT, GIB, LIBRARY, MIB, ROOT, SUCCESS, run

HOOKED_IN_LIBCUDA = {"cuInit in libcuda", "cuMemAlloc_v2 in libcuda", "cuGetProcAddress_v2 in libcuda"}


def found(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return dict(line.split(": ") for line in done.stdout.splitlines())


@pytest.mark.parametrize("arguments", [[], ["load"]])
def test_nothing_configured_changes_no_answer(place, arguments):
    command = (CLIENTS / "lookup", *arguments)
    plain = found(run(command, place.plain_env()))
    assert plain["malloc in libc"] == "libc.so.6"
    assert found(place.run(*command)) == plain


def test_configured_only_hooked_functions_of_the_driver_change(place):
    plain = found(run((CLIENTS / "lookup", "load"), place.plain_env()))
    limited = found(place.run(CLIENTS / "lookup", "load", limit="1GiB"))
    changed = {what for what in plain if plain[what] != limited[what]}
    assert changed == HOOKED_IN_LIBCUDA
    assert {limited[what] for what in changed} == {"libvcuda.so"}


LINKED_THEN_LOOKED_UP = """
import ctypes, sys
ctypes.CDLL(sys.argv[1]).plugin_use()
cuda = ctypes.CDLL("libcuda.so.1")
address = ctypes.cast(cuda.cuMemAlloc_v2, ctypes.c_void_p).value
for line in open("/proc/self/maps"):
    begin, end = (int(part, 16) for part in line.split()[0].split("-"))
    if begin <= address < end: print(line.split()[-1].rpartition("/")[2])
"""


def test_a_driver_that_is_known_changes_no_answer_while_nothing_is_configured(place, python):
    command = (python, "-c", LINKED_THEN_LOOKED_UP, CLIENTS / "plugin-linked.so")
    assert place.run(*command).stdout.split() == ["libcuda.so.1"]
    assert place.run(*command, limit="1GiB").stdout.split() == ["libvcuda.so"]


def test_without_a_loaded_driver_there_is_nothing_to_find(place):
    limited = found(place.run(CLIENTS / "lookup", limit="1GiB"))
    assert limited["cuInit in RTLD_DEFAULT"] == "nothing"
    assert limited["cuInit in the program"] == "nothing"
    assert limited["cuInit behind the program"] == "nothing"
    assert limited["nvmlDeviceGetMemoryInfo in RTLD_DEFAULT"] == "nothing"


def test_get_proc_address_keeps_its_semantics(place):
    plain = run((CLIENTS / "proc_address",), place.plain_env())
    limited = place.run(CLIENTS / "proc_address", limit="1GiB")
    inert = place.run(CLIENTS / "proc_address")
    others = place.run(CLIENTS / "proc_address", limit="1GiB", FAKEDRIVER_PROC="other")
    assert plain.returncode == 0
    assert "one address per function: 1 1" in plain.stdout
    assert limited.stdout == plain.stdout
    assert inert.stdout == plain.stdout
    assert others.stdout == plain.stdout, "functions of ours have one address, whatever the driver's have"


def sweep(env: dict[str, str]) -> list[list[str]]:
    listed = (ROOT / "tests/fakedriver/cuda.def").read_text()
    names = sorted({name for pair in re.findall(r"(?m)^SYMBOL\((\w+), (\w+),", listed) for name in pair})
    done = subprocess.run(
        [CLIENTS / "proc_address", "sweep"],
        input="\n".join(names),
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("share", [False, True], ids=["without a share", "with a share"])
def test_get_proc_address_hands_out_every_function_in_every_version(place, share):
    """Both ABIs, all names, many versions, all flags: the driver's codes and functions, hooked ones as ours."""
    hooked = listed_symbols() if share else listed_symbols() - shared_symbols()
    env = place.env("1GiB", VCUDA_CORES="30") if share else place.env("1GiB")
    plain, limited = sweep(place.plain_env()), sweep(env)
    assert len(plain) > 5000
    for before, after in zip(plain, limited, strict=True):
        assert [*after[:6], after[7]] == [*before[:6], before[7]]
        for symbol, file in (after[5:7], after[7:9]):
            assert file == (
                "-" if symbol == "-" else "libvcuda.so" if symbol in hooked else "libcuda.so.1"
            ), after


def test_tail_jump_keeps_the_callers_place_in_the_chain(place):
    preload = f"{LIBRARY}:{CLIENTS / 'tail.so'}"
    done = place.run("/bin/true", limit="1GiB", LD_PRELOAD=preload)
    assert done.stdout.splitlines() == ["no further one", "libc"]


@pytest.mark.parametrize("mode", ["linked", "default", "dlsym"])
@pytest.mark.parametrize("order", ["before", "behind"])
def test_another_tool_in_the_chain_changes_no_charge(place, mode, order):
    chain = str(CLIENTS / "chain.so")
    preload = [chain, str(LIBRARY)] if order == "before" else [str(LIBRARY), chain]
    with place.client("1GiB", mode, LD_PRELOAD=":".join(preload)) as client:
        client.ready()
        assert client.do("alloc a", 100 * MIB).code == SUCCESS
        assert client.free() == GIB - CONTEXT - 100 * MIB
        errors = client.close()
    assert "circle" not in errors
    if order == "before" and mode != "dlsym":
        assert "chain: 104857600 bytes -> 0" in errors


NEXT_USER = """
import ctypes, os, sys
user = ctypes.CDLL(sys.argv[1])
user.next_user_lookup.restype = ctypes.c_void_p
cuda = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
address = user.next_user_lookup(b"cuMemAlloc_v2")
print(address == ctypes.cast(cuda.cuMemAlloc_v2, ctypes.c_void_p).value, bool(address))
print(user.next_user_lookup(b"cuNoSuchFunction"))
"""


def test_a_library_that_only_asks_for_the_next_function_gets_ours(place, python):
    done = place.run(
        python,
        "-c",
        NEXT_USER,
        CLIENTS / "next_user.so",
        limit="1GiB",
        LD_PRELOAD=f"{LIBRARY}:{CLIENTS / 'next_user.so'}:libcuda.so.1",
    )
    assert done.stdout.splitlines() == ["True True", "None"], done.stderr


REOPEN = """
import ctypes, _ctypes
for _ in range(3):
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
    print(memory[0])
    assert nvml.nvmlShutdown() == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 1
    _ctypes.dlclose(nvml._handle)
"""


def test_a_library_that_is_closed_and_opened_again_still_works(place, python):
    done = place.run(python, "-c", REOPEN, limit="1GiB")
    assert done.stdout.split() == [str(GIB)] * 3, done.stderr


def test_programs_without_a_gpu_driver_do_not_notice(place, python, tmp_path):
    env = place.env("1GiB")
    env["LD_LIBRARY_PATH"] = str(tmp_path)
    for command in (
        ("/bin/true",),
        (python, "-c", "import ctypes, threading, subprocess"),
        ("/bin/sh", "-c", "echo x"),
    ):
        done = run(command, env)
        assert (done.returncode, done.stderr) == (0, ""), command
    program = "import ctypes\ntry: ctypes.CDLL('libcuda.so.1')\nexcept OSError as error: print(error)"
    assert "libcuda.so.1: cannot open shared object file" in run((python, "-c", program), env).stdout
    assert not place.quota.exists()
