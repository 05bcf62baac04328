"""Another root directory: a program that leaves its limits behind has no CUDA, one that takes them along has them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakedriver.env import machine_file
from tests.native.container import Container
from tests.native.running import GIB, LIBRARY, MIB, NOT_READY, OUT_OF_MEMORY, SUCCESS, Place

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
def place(tmp_path):
    return Place(tmp_path)


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


def leave(container: Container, when: str, root: Path) -> subprocess.CompletedProcess[str]:
    return container.run(sys.executable, "-c", LEAVES, when, root)


@pytest.mark.parametrize("when", ["never", "looked"])
def test_limits_that_were_left_behind_are_not_no_limits(place, other_root, when):
    done = leave(Container(place), when, other_root)
    assert done.stdout.split() == [str(NOT_READY)], done
    assert done.stderr.count("\n") == 1
    assert ("changed its root directory" if when == "never" else "limits page") in done.stderr


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
    """What a changed root looks like, without being root. A limit in the environment has come along."""
    library = tmp_path / "lib" / "libvcuda.so"
    library.parent.mkdir()
    shutil.copy(LIBRARY, library)
    with place.client(limit, LD_PRELOAD=str(library)) as client:
        assert client.do("pid").code == SUCCESS  # it has started
        shutil.rmtree(library.parent)
        if limit is None:
            assert client.do("init").code == NOT_READY
            errors = client.close()
            assert str(library) in errors
            assert errors.count("\n") == 1
        else:
            client.ready()
            assert client.do("alloc a", GIB).code == OUT_OF_MEMORY
            assert client.do("alloc a", MIB).code == SUCCESS


def test_a_relative_path_says_nothing(place, tmp_path):
    shutil.copy(LIBRARY, tmp_path / "libvcuda.so")
    (tmp_path / "elsewhere").mkdir()
    program = (
        "import ctypes, os; os.chdir('elsewhere'); cuda = ctypes.CDLL('libcuda.so.1'); print(cuda.cuInit(0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=place.env() | {"LD_PRELOAD": "./libvcuda.so"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == ([str(SUCCESS)], "")
