# SPDX-License-Identifier: Apache-2.0
"""Another root directory: a program that leaves its limits behind has no CUDA, one that takes them along has them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakedriver.env import machine_file
from tests.native.container import Container
from tests.native.running import GIB, LIBRARY, MIB, NOT_READY, OUT_OF_MEMORY, SUCCESS

LEAVES = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
when, root = sys.argv[1], sys.argv[2]
address, device, context = ctypes.c_uint64(), ctypes.c_int(), ctypes.c_void_p()
def look():
    return cuda.cuInit
def attach():
    look()(0)
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
if when == "looked": look()
if when == "attached": attach()
os.chroot(root)
os.chdir("/")
def say(*words):  # not by print(): encodings may have to be loaded
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
code = cuda.cuInit(0)
say(code)
if code == 0:
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    say(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(2 << 30)))
    say(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)))
"""


@pytest.fixture
def other_root(tmp_path: Path) -> Path:
    """A directory with the machine, under the names that it has outside too."""
    root = tmp_path / "root"
    for path in (machine_file("two-24g"), tmp_path / "machine"):
        inside = root / path.relative_to("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            shutil.copy(path, inside)
    return root


@pytest.fixture
def whole_root(other_root: Path) -> Path:
    """The same, and this library under its own path, too, as where all of the old root but /etc is to be had."""
    inside = other_root / LIBRARY.relative_to("/")
    inside.parent.mkdir(parents=True)
    shutil.copy(LIBRARY, inside)
    return other_root


def leave(container: Container, when: str, root: Path) -> subprocess.CompletedProcess[str]:
    return container.run(sys.executable, "-c", LEAVES, when, root)


@pytest.mark.parametrize("when", ["never", "looked"])
def test_limits_that_were_left_behind_are_not_no_limits(place, other_root, when):
    done = leave(Container(place), when, other_root)
    assert done.stdout.split() == [str(NOT_READY)], done
    assert done.stderr.count("\n") == 1
    assert "limits page /etc/vcuda/limits" in done.stderr
    assert "changed its root directory" in done.stderr


@pytest.mark.parametrize("when", ["never", "looked"])
@pytest.mark.parametrize("variables", [{}, {"VCUDA_MEMORY_LIMIT": "20GiB"}], ids=["plain", "variable"])
def test_the_librarys_own_path_in_the_new_root_is_no_limit(place, whole_root, when, variables):
    """Nor does the environment say more than the page that was left."""
    container = Container(place)
    done = container.run(sys.executable, "-c", LEAVES, when, whole_root, **variables)
    assert done.stdout.split() == [str(NOT_READY)], done


def test_a_preload_by_a_relative_path_has_its_limits_too(place, other_root):
    container = Container(place)
    container.mounts.append(f"cd {LIBRARY.parent}")
    (container.etc / "ld.so.preload").unlink()
    done = container.run(sys.executable, "-c", LEAVES, "never", other_root, LD_PRELOAD=f"./{LIBRARY.name}")
    assert done.stdout.split() == [str(NOT_READY)], done


def test_limits_that_were_attached_go_along(place, other_root):
    done = leave(Container(place), "attached", other_root)
    assert done.stdout.split() == [str(code) for code in (SUCCESS, OUT_OF_MEMORY, SUCCESS)], done


def test_limits_that_are_mounted_in_the_new_root_hold(place, other_root):
    container = Container(place)
    inside = other_root / "etc" / "vcuda"
    inside.mkdir(parents=True)
    container.mounts.append(f"mount --bind /etc/vcuda {inside}")
    done = leave(container, "never", other_root)
    assert done.stdout.split() == [str(code) for code in (SUCCESS, OUT_OF_MEMORY, SUCCESS)], done


@pytest.mark.parametrize("limit", [None, "1GiB"])
def test_a_library_whose_file_is_gone(place, tmp_path, limit):
    """What was configured counts, and not where the library came from."""
    library = tmp_path / "lib" / "libvcuda.so"
    library.parent.mkdir()
    shutil.copy(LIBRARY, library)
    with place.client(limit, LD_PRELOAD=str(library)) as client:
        assert client.do("pid").code == SUCCESS  # it has started
        shutil.rmtree(library.parent)
        client.ready()
        assert client.do("alloc a", GIB).code == (SUCCESS if limit is None else OUT_OF_MEMORY)
        assert client.do("alloc b", MIB).code == SUCCESS
        assert client.close() == ""


CLEARED = """
import ctypes, os
for name in [name for name in os.environ if name.startswith("VCUDA_")]: del os.environ[name]
print(ctypes.CDLL("libcuda.so.1").cuInit(0))
"""


@pytest.mark.parametrize(("limit", "code"), [("1GiB", NOT_READY), (None, SUCCESS)])
def test_an_environment_that_is_cleared_before_the_first_look_up(place, limit, code):
    done = place.run(sys.executable, "-c", CLEARED, limit=limit)
    assert done.stdout.split() == [str(code)], done
    assert ("gone from its environment" in done.stderr) == (code == NOT_READY)


LATER = """
import ctypes, os
os.environ["VCUDA_MEMORY_LIMIT"] = "1GiB"
cuda = ctypes.CDLL("libcuda.so.1")
total = ctypes.c_size_t()
print(cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0), total.value)
"""


def test_a_limit_that_comes_after_the_library_was_loaded(place):
    done = place.run(sys.executable, "-c", LATER, VCUDA_LOG="error", XDG_RUNTIME_DIR=str(place.directory))
    assert (done.stdout.split(), done.stderr) == (["0", "0", str(GIB)], "")


def test_a_library_that_is_loaded_into_a_program_without_environment(place):
    program = "import ctypes, sys; ctypes.CDLL(None).clearenv(); ctypes.CDLL(sys.argv[1])"
    env = place.plain_env()
    done = subprocess.run(
        [sys.executable, "-c", program, LIBRARY], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows the system calls")
def test_a_program_without_cuda_pays_two_system_calls(tmp_path):
    def calls(*settings: str) -> list[str]:
        """Those after the loader's last."""
        trace = tmp_path / "trace"
        subprocess.run(["strace", "-o", trace, *settings, "/bin/true"], check=True, env={})
        names = [line.split("(")[0] for line in trace.read_text().splitlines()]
        return names[len(names) - names[::-1].index("munmap") :]

    plain = calls()
    assert calls(f"--env=LD_PRELOAD={LIBRARY}") == ["newfstatat", "faccessat", *plain]
