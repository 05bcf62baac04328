# SPDX-License-Identifier: Apache-2.0
"""How programs find entry points: exports, cuGetProcAddress, error names."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.fakedriver.env import ROOT, library_directory

PTSZ = 2
FOUND, MISSING, TOO_OLD = 0, 1, 2
LINE = re.compile(r"SYMBOL\((\w+), (\w+), (\d+), ([01]), ([01])\)")


def symbols():
    """(symbol, name, version, per-thread) of cuda.def."""
    text = (ROOT / "tests/fakedriver/cuda.def").read_text()
    return [(m[1], m[2], int(m[3]), m[4] == "1") for m in LINE.finditer(text)]


def exports(library):
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(library_directory() / library)],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.split()[-1] for line in done.stdout.splitlines()}


def test_the_table_is_what_is_exported():
    listed = [symbol for symbol, *_ in symbols()]
    assert len(listed) == len(set(listed))
    assert set(listed) == exports("libcuda.so.1")
    text = (ROOT / "tests/fakedriver/nvml.def").read_text()
    assert set(re.findall(r"^SYMBOL\((\w+),", text, re.M)) == exports("libnvidia-ml.so.1")


def test_the_table_is_sorted_by_name():
    names = [name for _, name, _, _ in symbols()]
    assert names == sorted(names)


def test_names_match_real_libraries():
    for library, soname in (("libcuda.so", "libcuda.so.1"), ("libnvidia-ml.so", "libnvidia-ml.so.1")):
        assert (library_directory() / library).resolve().name == soname
        done = subprocess.run(
            ["readelf", "-d", str(library_directory() / soname)], capture_output=True, text=True, check=True
        )
        assert f"[{soname}]" in done.stdout
        assert "SYMBOLIC" in done.stdout


def test_every_symbol_is_found_by_name_version_and_flag(written):
    newest = max(version for _, _, version, _ in symbols())
    peer = written(f"cuda_version: {newest}\ngpus: 1\n").peer()
    wrong = []
    for symbol, name, version, per_thread in symbols():
        flags = PTSZ if per_thread else 0
        if peer(f"proc({name!r}, {version}, {flags})[1] != export({symbol!r})"):
            wrong.append(symbol)
    assert wrong == []


def test_it_works_before_init_and_without_a_status(small):
    peer = small.peer()
    assert peer(
        "[p := c_void_p(), call('cuGetProcAddress_v2', b'cuInit', byref(p), 12000, c_uint64(0), None), "
        "p.value == export('cuInit')][1:]"
    ) == [0, True]


@pytest.mark.parametrize("old", [False, True])
def test_unknown_names(small, old):
    peer = small.peer()
    for name in ("cuNothing", "cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2_ptsz", ""):
        code, address, status = peer(f"proc({name!r}, 12000, old={old})")
        assert (code, address, status) == ((500, 0x1234, -1) if old else (0, 0, MISSING)), name


def test_versions_that_are_too_old(small):
    peer = small.peer()
    assert peer("proc('cuMemAllocAsync', 11010)") == [0, 0, TOO_OLD]
    assert peer("proc('cuMemAllocAsync', 11010, old=True)") == [500, 0x1234, -1]
    assert peer("proc('cuMemAlloc', 1999)") == [0, 0, TOO_OLD]
    assert peer("proc('cuMemAlloc', 0)") == [0, 0, TOO_OLD]


def test_each_version_gets_its_abi(small):
    peer = small.peer()
    for version, symbol in (
        (2000, "cuMemAlloc"),
        (3010, "cuMemAlloc"),
        (3020, "cuMemAlloc_v2"),
        (99000, "cuMemAlloc_v2"),
    ):
        assert peer(f"proc('cuMemAlloc', {version})[1] == export({symbol!r})")
    for version, symbol in ((2000, "cuCtxCreate"), (3020, "cuCtxCreate_v2"), (11040, "cuCtxCreate_v3")):
        assert peer(f"proc('cuCtxCreate', {version})[1] == export({symbol!r})")
    for version, symbol in ((11030, "cuGetProcAddress"), (12000, "cuGetProcAddress_v2")):
        assert peer(f"proc('cuGetProcAddress', {version})[1] == export({symbol!r})")


def test_flags(small):
    peer = small.peer()
    for flags, symbol in ((0, ""), (1, ""), (2, "_ptsz"), (3, "_ptsz")):
        assert peer(f"proc('cuMemsetD8Async', 7000, {flags})[1] == export('cuMemsetD8Async{symbol}')")
    assert peer("proc('cuMemcpyHtoD', 7000, 2)[1] == export('cuMemcpyHtoD_v2_ptds')")
    assert peer("proc('cuMemcpyHtoD', 6000, 2)[1] == export('cuMemcpyHtoD_v2')"), (
        "older than per-thread streams"
    )
    assert peer("proc('cuMemAlloc', 12000, 2)[1] == export('cuMemAlloc_v2')"), "has no twin"
    assert peer("proc('cuMemAlloc', 12000, 4)[0]") == 1


def test_newer_symbols_than_the_driver_do_not_exist(small, machine):
    peer = small.peer()  # CUDA 12.4
    assert peer("proc('cuCtxCreate', 13000)[1] == export('cuCtxCreate_v3')"), "v4 is of 12.5"
    assert peer("proc('cuMemGetMemPool', 13000)") == [0, 0, MISSING]
    newer = machine("one-h200").peer()  # CUDA 13.0
    assert newer("proc('cuCtxCreate', 13000)[1] == export('cuCtxCreate_v4')")
    assert newer("proc('cuMemGetMemPool', 13000)[2]") == FOUND


def test_error_names(small):
    peer = small.peer()
    for code, name, text in (
        (0, "CUDA_SUCCESS", "no error"),
        (2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
        (201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    ):
        for call, expected in (("cuGetErrorName", name), ("cuGetErrorString", text)):
            assert (
                peer(f"[p := ctypes.c_char_p(), good({call!r}, {code}, byref(p)), p.value.decode()][2]")
                == expected
            )
    assert peer("[p := ctypes.c_char_p(b''), call('cuGetErrorName', 4711, byref(p)), p.value][1:]") == [
        1,
        None,
    ]


def test_private_cuda_tables_are_not_there(small):
    peer = small.peer()
    assert peer("[p := c_void_p(1), call('cuGetExportTable', byref(p), bytes(16)), p.value][1:]") == [
        500,
        None,
    ]
    assert (
        peer(
            "[p := c_void_p(1), good('nvmlInit_v2'), call('nvmlInternalGetExportTable', byref(p), bytes(16))][2]"
        )
        == 6
    )


def test_an_entry_point_of_a_missing_feature_says_so(small):
    peer = small.peer()
    assert peer("call('cuImportExternalSemaphore', None, None)") == 3
    peer("context(0)")
    assert peer("call('cuImportExternalSemaphore', None, None)") == 801
