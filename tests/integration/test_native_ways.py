# SPDX-License-Identifier: Apache-2.0
"""Ways of reaching the driver, each tried with a real program: what is found must be limited, and nothing may hang."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.running import CLIENTS, LIBRARY, ROOT, Place

SECONDS = 30  # a deadlock ends here
DRIVER = ROOT / "build" / "fakedriver" / "libcuda.so.1"
SECOND_DRIVER = CLIENTS / "second" / "libcuda.so.1"
LIMITED, UNLIMITED = "limited", "unlimited"


def start(place: Place, *command: object, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env=place.env("1GiB") | extra,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def words(place: Place, way: str, *arguments: object, **extra: str) -> list[str]:
    done = start(place, CLIENTS / "ways", way, *arguments, **extra)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def test_the_program_tells_limited_from_unlimited(place):
    assert words(place, "simple") == [LIMITED]
    assert words(place, "simple", LD_PRELOAD="") == [UNLIMITED]


@pytest.mark.parametrize("name", ["libcuda.so", "path", "relative path", "link", "copy"])
def test_the_driver_under_any_name(place, tmp_path, name):
    """What is opened says by itself that it is the driver, whatever the file is called."""
    file = {
        "libcuda.so": "libcuda.so",
        "path": DRIVER,
        "relative path": os.path.relpath(DRIVER),
        "link": tmp_path / "some-driver.so",
        "copy": tmp_path / "libcuda.so.1",
    }[name]
    (tmp_path / "some-driver.so").symlink_to(DRIVER)
    shutil.copy(DRIVER, tmp_path / "libcuda.so.1")
    assert words(place, "by_file", file) == [LIMITED]
    assert words(place, "by_file", file, LD_PRELOAD="") == [UNLIMITED]


def test_errors_of_lookups_are_the_c_librarys(place):
    assert words(place, "errors") == [LIMITED] * 2
    assert words(place, "errors", LD_PRELOAD="") == [UNLIMITED] * 2


@pytest.mark.parametrize("driver", ["libcuda.so.1", SECOND_DRIVER], ids=["by name", "by path"])
def test_a_driver_that_the_program_loads_into_a_namespace_of_its_own(place, driver):
    assert words(place, "own_namespace", driver) == [LIMITED]


def test_two_driver_libraries_in_one_process_are_one_driver(place):
    assert words(place, "two_drivers", SECOND_DRIVER) == [LIMITED, "one driver", "nothing more"]
    assert words(place, "two_drivers", SECOND_DRIVER, LD_PRELOAD="")[1] == "two drivers"


def test_a_driver_closed_and_opened_again_with_memory_alive(place):
    assert words(place, "reopen") == [LIMITED] * 3


@pytest.mark.parametrize("plugin", ["plugin.so", "plugin-linked.so"])
def test_plug_ins_that_find_the_driver_by_themselves(place, plugin):
    assert words(place, "local_plugin", CLIENTS / plugin) == [LIMITED]


@pytest.mark.parametrize("way", ["deep_plugin", "far_plugin"])
@pytest.mark.parametrize("plugin", ["plugin.so", "plugin-linked.so"])
def test_plug_ins_that_no_preload_reaches(place, way, plugin):
    """Says what docs/limits.md says: RTLD_DEEPBIND, and a namespace that holds the caller too."""
    assert words(place, way, CLIENTS / plugin) == [UNLIMITED]


def test_constructors_that_use_cuda_while_other_threads_do(place):
    for _ in range(6):  # the second round finds the quota made
        assert words(place, "constructor", CLIENTS / "plugin-constructor.so") == [LIMITED] * 5


def test_a_library_loaded_at_start_that_uses_cuda_in_its_constructor(place):
    plugin = CLIENTS / "plugin-constructor.so"
    for preload in (f"{LIBRARY}:{plugin}", f"{plugin}:{LIBRARY}"):
        assert words(place, "local_plugin", plugin, LD_PRELOAD=preload) == [LIMITED]


def test_threads_that_call_their_first_hook_together(place):
    for _ in range(3):
        assert words(place, "threads") == [LIMITED] * 8


def test_fork_vfork_spawn_and_exec(place):
    assert words(place, "forks") == [
        LIMITED,  # a child of a parent that had not initialised
        LIMITED,  # the parent, afterwards
        "not initialised",  # a child of one that had: the driver's own answer
        LIMITED,  # fork and exec
        LIMITED,  # vfork and exec
        LIMITED,  # posix_spawn
        LIMITED,  # and the parent still
    ]


def test_a_child_in_the_same_memory(place):
    assert words(place, "clones") == [LIMITED] * 3


def test_descriptors_closed_behind_the_librarys_back(place):
    assert words(place, "close_from") == [LIMITED] * 2


def test_without_the_preload_variable_children_go_free(place):
    """LD_PRELOAD is for trying things out: test_native_container.py has the file that cannot be dropped."""
    assert words(place, "drop_preload") == [UNLIMITED]


# --- other tools in the process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["before", "behind"])
@pytest.mark.parametrize("way", ["threads", "constructor"])
def test_an_allocator_and_tracers_that_ask_for_the_next_function(place, order, way):
    tools = [CLIENTS / "interposer.so", LIBRARY]
    preload = ":".join(map(str, tools if order == "before" else tools[::-1]))
    done = start(place, CLIENTS / "ways", way, CLIENTS / "plugin-constructor.so", LD_PRELOAD=preload)
    assert set(done.stdout.split()) == {LIMITED}
    assert done.stderr == "interposed\n"


def test_a_tool_with_a_dlsym_of_its_own(place):
    """Its dlsym is met first and asks ours by dlvsym(RTLD_NEXT)."""
    log = place.directory / "log"
    preload = f"{CLIENTS / 'witness.so'}:{LIBRARY}"
    assert words(place, "simple", LD_PRELOAD=preload, WITNESS_LOG=str(log)) == [LIMITED]
    assert 'dlsym "cuMemAlloc_v2": 0 cuMemAlloc_v2 libvcuda.so' in log.read_text()


def first_runtime() -> str:
    """The address sanitizer's library."""
    asked = ["gcc", "-print-file-name=libasan.so"]
    return str(
        Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()).resolve()
    )


ASAN = "verify_asan_link_order=0:detect_leaks=0"  # it must be first in the list, whatever is preloaded
TSAN = "report_bugs=0"  # it sees the driver's stores to shared memory without their order


def test_the_address_sanitizer_must_come_first(place):
    """Says what docs/limits.md says, and that its remedies are some."""
    alone = start(place, CLIENTS / "ways-asan", "simple", ASAN_OPTIONS="detect_leaks=0")
    assert "does not come first in initial library list" in alone.stderr
    for program, extra in (
        ("ways-asan", {"LD_PRELOAD": f"{first_runtime()}:{LIBRARY}"}),
        ("ways-asan", {"ASAN_OPTIONS": ASAN}),
        ("ways-asan-static", {}),
    ):
        done = start(place, CLIENTS / program, "simple", **{"ASAN_OPTIONS": "detect_leaks=0"} | extra)
        assert (done.returncode, done.stdout.split(), done.stderr) == (0, [LIMITED], ""), program


@pytest.mark.parametrize("way", ["simple", "threads", "reopen"])
@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_a_program_under_a_sanitizer(place, sanitizer, way):
    """Sanitizers look functions up before anything in the process works, themselves included."""
    unshuffled = ("/usr/bin/setarch", "--addr-no-randomize")  # the thread sanitizer of gcc 12 needs that
    if subprocess.run([*unshuffled, "/bin/true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("addresses cannot be left unshuffled here")
    command = (*unshuffled, CLIENTS / f"ways-{sanitizer}", way)
    done = start(place, *command, ASAN_OPTIONS=ASAN, TSAN_OPTIONS=TSAN)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == {LIMITED}
