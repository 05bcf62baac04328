# SPDX-License-Identifier: Apache-2.0
"""The built library as a file: exports, imports, start-up, include directions."""

from __future__ import annotations

import subprocess

import pytest

from tests.native import check_library
from tests.native.running import LIBRARY


@pytest.mark.parametrize(
    "check",
    [
        check_library.export_mistakes,
        check_library.import_mistakes,
        check_library.start_up_mistakes,
        check_library.weight_mistakes,
        check_library.page_mistakes,
    ],
    ids=lambda check: check.__name__,
)
def test_library(check):
    assert list(check(LIBRARY)) == []


@pytest.mark.parametrize(
    "check",
    [check_library.include_mistakes, check_library.environment_mistakes],
    ids=lambda check: check.__name__,
)
def test_sources(check):
    assert list(check()) == []


def test_the_checks_see_what_they_look_for(tmp_path):
    source = tmp_path / "bad.c"
    source.write_text(
        "#include <stdlib.h>\n"
        '__attribute__((constructor)) static void start(void) { if (getenv("X")) abort(); }\n'
        "__attribute__((constructor)) static void again(void) {}\n"
        "int cuStray(void) { return 0; }\n"
    )
    library = tmp_path / "libbad.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    exports = list(check_library.export_mistakes(library))
    assert "cuStray is exported but in no list" in exports
    assert "cuMemAlloc_v2 is listed but not exported" in exports
    assert "calls abort" in list(check_library.import_mistakes(library))
    assert any("functions run at load time" in m for m in check_library.start_up_mistakes(library))


def test_the_checks_see_what_weighs(tmp_path):
    source = tmp_path / "heavy.c"
    source.write_text(
        'static const char *const names[2000] = {[0 ... 1999] = "name"};\n'
        + "".join(f"char small{i}, large{i}[1 << 14];\n" for i in range(9))
        + "char allocations[1 << 14];\n"
        + "const char *name(int i) { return names[i]; }\n"
    )
    library = tmp_path / "libheavy.so"
    subprocess.run(["gcc", "-O0", "-shared", "-fPIC", "-o", library, source], check=True)
    mistakes = [*check_library.weight_mistakes(library), *check_library.page_mistakes(library)]
    assert any("addresses are relocated" in mistake for mistake in mistakes)
    assert any("written by the loader" in mistake for mistake in mistakes)
    assert any("small variables are on" in mistake for mistake in mistakes)


def test_the_lists_name_every_version_of_a_family():
    listed = check_library.listed_symbols()
    families = {
        "cuMemAlloc": ["", "_v2"],
        "cuMemFree": ["", "_v2"],
        "cuMemGetInfo": ["", "_v2"],
        "cuDeviceTotalMem": ["", "_v2"],
        "cuMemAllocPitch": ["", "_v2"],
        "cuGetProcAddress": ["", "_v2"],
        "cuCtxCreate": ["", "_v2", "_v3", "_v4"],
        "cuCtxDestroy": ["", "_v2"],
        "cuGLCtxCreate": ["", "_v2"],
        "cuVDPAUCtxCreate": ["", "_v2"],
        "cuDevicePrimaryCtxRelease": ["", "_v2"],
        "cuDevicePrimaryCtxReset": ["", "_v2"],
        "nvmlDeviceGetMemoryInfo": ["", "_v2"],
        "nvmlDeviceGetComputeRunningProcesses": ["", "_v2", "_v3"],
        "nvmlDeviceGetGraphicsRunningProcesses": ["", "_v2", "_v3"],
        "nvmlDeviceGetMPSComputeRunningProcesses": ["", "_v2", "_v3"],
    }
    required = {name + suffix for name, suffixes in families.items() for suffix in suffixes}
    assert required - listed == set()
