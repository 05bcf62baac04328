# SPDX-License-Identifier: Apache-2.0
"""cuGetProcAddress of a driver that gives other addresses than dlsym: a function is known by its name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.fakedriver.env import write_machine
from tests.native.check_library import listed_symbols, shared_symbols
from tests.native.running import CLIENTS, CONTEXT, GIB, MIB, OUT_OF_MEMORY, ROOT, SUCCESS, Place
from tests.native.scripted import Program

OTHER = {"FAKEDRIVER_PROC": "other"}
NEWER = {"FAKEDRIVER_PROC": "newer"}
NOT_FOUND = 500
NOT_SUFFICIENT = 2
AFTER_ALL_KNOWN = 14000


@pytest.fixture
def later(tmp_path: Path) -> Place:
    """A machine with a driver of a CUDA that came after this library."""
    machine = write_machine(tmp_path, like="two-24g", name="later", cuda_version=AFTER_ALL_KNOWN)
    return Place(tmp_path, machine)


def names() -> list[str]:
    listed = (ROOT / "tests/fakedriver/cuda.def").read_text()
    return sorted({name for pair in re.findall(r"(?m)^SYMBOL\((\w+), (\w+),", listed) for name in pair})


def sweep(env: dict[str, str]) -> list[list[str]]:
    """Of every name, version and flags: these, both codes, and symbol and file of both answers."""
    done = subprocess.run(
        [CLIENTS / "proc_address", "sweep"],
        input="\n".join(names()),
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("share", [False, True], ids=["without a share", "with a share"])
def test_every_function_in_every_version_is_known_by_its_name(place, share):
    hooked = listed_symbols() if share else listed_symbols() - shared_symbols()
    exported = {"VCUDA_CORES": "30"} if share else {}
    plain, limited = sweep(place.plain_env()), sweep(place.env("1GiB", **exported, **OTHER))
    assert len(plain) > 5000
    for before, after in zip(plain, limited, strict=True):
        assert after[:5] == before[:5]
        for symbol, (found, file) in ((before[5], after[5:7]), (before[7], after[7:9])):
            if symbol == "-" or symbol in hooked:
                assert (found, file) == (symbol, "-" if symbol == "-" else "libvcuda.so"), after
            else:
                assert file == "libcuda.so.1", after


def test_nothing_configured_changes_no_answer(place):
    assert sweep(place.env(**OTHER)) == sweep(place.plain_env() | OTHER)


@pytest.mark.parametrize("mode", ["proc1", "proc2"])
def test_the_quota_holds(place, mode):
    with place.client("1GiB", mode, **OTHER) as client:
        client.ready()
        assert client.do("alloc a", GIB).code == OUT_OF_MEMORY
        assert client.do("alloc a", 100 * MIB).code == SUCCESS
        assert client.free() == GIB - CONTEXT - 100 * MIB
        assert client.do("free a").code == SUCCESS
        assert client.free() == GIB - CONTEXT
        assert client.close() == ""


def test_the_versions_are_nvidias():
    """Of every form of a hooked function that the headers tell the version of, as the simulated driver has it."""
    text = "".join(
        (ROOT / "build/include" / f"cuda{kind}Typedefs.h").read_text() for kind in ("", "GL", "VDPAU")
    )
    told: dict[str, set[int]] = {}
    for name, version in re.findall(r"\(CUDAAPI \*PFN_(\w+?)_v(\d+)(?:_pts[dz]|_ptds|_ptsz)?\)", text):
        told.setdefault(name, set()).add(int(version))
    rows = re.findall(
        r"(?m)^SYMBOL\((\w+), (\w+), (\d+), \d, \d\)", (ROOT / "tests/fakedriver/cuda.def").read_text()
    )
    checked = 0
    for symbol, name, version in rows:
        if symbol in listed_symbols() and name in told:
            assert int(version) in told[name], symbol
            checked += 1
    assert checked > 150
    for name in {name for symbol, name, _ in rows if symbol in listed_symbols()}:
        forms = {int(version) for _, other, version in rows if other == name}
        assert forms >= told.get(name, set()), f"{name}: there is a form that no hook is for"


ASK = (
    "keep(pfn=c_void_p(0x77), status=c_int(7)) or "
    "[{call}(b'{name}', ref(pfn), {version}, c_ulonglong(0){status}), pfn.value, status.value]"
)


@pytest.mark.parametrize("name", ["cuMemAlloc", "cuCtxCreate", "cuMemCreate"])
def test_a_form_that_came_later_is_not_handed_out(later, name):
    with Program(later.env("1GiB", **NEWER)) as program:
        new = ASK.format(
            call="cuGetProcAddress_v2", name=name, version=AFTER_ALL_KNOWN, status=", ref(status)"
        )
        old = ASK.format(call="cuGetProcAddress", name=name, version=AFTER_ALL_KNOWN, status="")
        assert program.do(new) == [SUCCESS, None, NOT_SUFFICIENT]
        assert program.do(old) == [NOT_FOUND, 0x77, 7]
        errors = program.close()
    assert errors.count("\n") == 1
    assert f"a newer {name} than the library knows" in errors


def test_a_form_that_did_not_change_since_is(later):
    with Program(later.env("1GiB", **OTHER)) as program:
        asked = ASK.format(
            call="cuGetProcAddress_v2", name="cuMemAlloc", version=AFTER_ALL_KNOWN, status=", ref(status)"
        )
        code, address, status = program.do(asked)
        assert (code, status) == (SUCCESS, 0)
        assert address == program.do("ctypes.cast(cuMemAlloc_v2, c_void_p).value")
        assert program.close() == ""


def test_what_is_not_limited_may_be_as_new_as_it_likes(later):
    with Program(later.env("1GiB", **NEWER)) as program:
        asked = ASK.format(
            call="cuGetProcAddress_v2", name="cuDriverGetVersion", version=AFTER_ALL_KNOWN, status=", None"
        )
        code, address, _ = program.do(asked)
        assert code == SUCCESS
        assert address not in (None, 0x77)
