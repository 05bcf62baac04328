# SPDX-License-Identifier: Apache-2.0
"""The steps of the build that are not declarations: the two extensions, and the library inside a wheel.

An editable installation has no library of its own; it uses ``build/libvcuda.so``, which ``make`` keeps current.
``LIBVCUDA`` in the environment names a library that is there already: built for another processor (``make wheels``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def cuda_include() -> Path:
    """Directory of cuda.h and nvml.h among the installed packages of the build (see build-system.requires)."""
    for entry in sys.path:
        for header in sorted(Path(entry).glob("nvidia/cu*/include/cuda.h"), reverse=True):
            if (header.parent / "nvml.h").exists():
                return header.parent
    sys.exit("error: cuda.h and nvml.h not found: pip install nvidia-cuda-runtime nvidia-nvml-dev")


class BuildWithLibrary(build_py):
    """Puts libvcuda.so, compiled by the Makefile's own rule, into the wheel as vcuda/_lib/libvcuda.so."""

    def run(self) -> None:
        """Copies the Python files, then adds the library; an editable installation stays without."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "vcuda" / "_lib"
        self.mkpath(str(target))
        self.copy_file(os.environ.get("LIBVCUDA") or str(self._compiled()), str(target / "libvcuda.so"))

    def _compiled(self) -> Path:
        """The library, made now: without the debug data, which would be most of the wheel."""
        made = Path(self.get_finalized_command("build").build_temp).resolve() / "native"
        command = [
            "make",
            "-C",
            str(ROOT),
            f"CUDA_INCLUDE={cuda_include()}",
            f"BUILD={made}",
            "native-shipped",
        ]
        if subprocess.run(command, check=False).returncode:
            sys.exit("error: libvcuda.so could not be compiled: see above; gcc, binutils and make are needed")
        return made / "shipped" / "libvcuda.so"


# Of the dataset service: see the file. The limited API, as the other extension: one wheel for all versions of Python.
TREE = Extension(
    "gigaslice.roles.dataset_node.sources._tree",
    ["gigaslice/roles/dataset_node/sources/_tree.c"],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    py_limited_api=True,
    extra_compile_args=["-std=c17", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"],
)

setup(
    cffi_modules=["vcuda/_build.py:ffi"],
    ext_modules=[TREE],
    cmdclass={"build_py": BuildWithLibrary},
    options={"build": {"build_base": "build/python"}, "bdist_wheel": {"py_limited_api": "cp310"}},
)
