# SPDX-License-Identifier: Apache-2.0
"""Modules, libraries and the linker."""

from __future__ import annotations

CONTEXT = 100 << 20

PTX = b".version 8.0 .entry scale ( .param .u64 p ) { } .entry add_2 { } "


def test_ptx_has_the_functions_it_names(small):
    peer = small.peer()
    peer("context(0)")
    assert peer(f"function('scale', {PTX!r})") > 0
    assert peer(f"function('add_2', {PTX!r})") > 0
    assert peer(f"function('add', {PTX!r})") == -500
    assert peer("function('anything')") > 0


def test_the_same_name_is_the_same_function(small):
    peer = small.peer()
    peer("context(0)")
    module = peer("handles('cuModuleLoadData', b'image')")
    first, second = (peer(f"handles('cuModuleGetFunction', c_void_p({module}), b'f')") for _ in range(2))
    assert first == second
    assert peer(f"call('cuModuleUnload', c_void_p({module}))") == 0
    assert peer(f"launch({first})") == 400
    assert peer(f"call('cuModuleUnload', c_void_p({module}))") == 400


def test_modules_and_variables_cost(written):
    peer = written("gpus: 1\ncontext_memory: 1MiB\nmodule_memory: 3MiB\n").peer()
    peer("context(0)")
    module = peer("handles('cuModuleLoadData', b'image')")
    assert peer("used()") == 4 << 20
    assert peer(
        f"[a := c_uint64(), s := c_size_t(), good('cuModuleGetGlobal_v2', byref(a), byref(s), c_void_p({module}), "
        "b'table_65536'), s.value, write(a.value, bytes(65536)), write(a.value, bytes(65537))][3:]"
    ) == [65536, 0, 1]
    assert peer("used()") == (4 << 20) + 65536
    peer(f"good('cuModuleUnload', c_void_p({module}))")
    library = peer("handles('cuLibraryLoadData', b'image', None, None, 0, None, None, 0)")
    kernel = peer(f"handles('cuLibraryGetKernel', c_void_p({library}), b'k')")
    before = peer("used()")
    assert peer(f"handles('cuKernelGetFunction', c_void_p({kernel}))") == kernel
    assert peer("used()") == before + (3 << 20)
    assert peer(f"launch({kernel})") == 0
    assert peer(f"call('cuLibraryUnload', c_void_p({library}))") == 0
    assert peer("used()") == before


def test_files(small, tmp_path):
    image = tmp_path / "image.ptx"
    image.write_bytes(PTX)
    peer = small.peer()
    peer("context(0)")
    module = peer(f"handles('cuModuleLoad', {str(image)!r}.encode())")
    assert peer(f"handles('cuModuleGetFunction', c_void_p({module}), b'scale')") > 0
    assert peer(f"handles('cuModuleLoad', {str(tmp_path / 'none')!r}.encode())") == -301


def test_linker(small):
    peer = small.peer()
    peer("context(0)")
    link = peer("[s := c_void_p(), good('cuLinkCreate_v2', 0, None, None, byref(s)), s.value][2]")
    assert (
        peer(
            f"call('cuLinkAddData_v2', c_void_p({link}), 1, {PTX!r}, c_size_t({len(PTX)}), b'a', 0, None, None)"
        )
        == 0
    )
    assert peer(
        f"[i := c_void_p(), n := c_size_t(), good('cuLinkComplete', c_void_p({link}), byref(i), byref(n)), "
        f"n.value, handles('cuModuleGetFunction', c_void_p(handles('cuModuleLoadData', i)), b'scale') > 0][3:]"
    ) == [len(PTX), True]
    assert peer(f"call('cuLinkDestroy', c_void_p({link}))") == 0
    assert peer(f"call('cuLinkDestroy', c_void_p({link}))") == 400
