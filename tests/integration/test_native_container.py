# SPDX-License-Identifier: Apache-2.0
"""The library where containers put it: /etc/ld.so.preload, sandboxes, missing and read-only file systems."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.native.container import Container, in_namespace, needs_root
from tests.native.running import CLIENTS, run

WAYS = CLIENTS / "ways"
LIMITED, UNLIMITED, REFUSED = "limited", "unlimited", "error 802"


@pytest.fixture
def container(place):
    return Container(place)


# --- a process that never uses CUDA ------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, "1GiB"])
def test_a_program_without_cuda_is_made_of_the_same_things(place, limit):
    plain = run((CLIENTS / "footprint",), place.plain_env())
    with_library = place.run(CLIENTS / "footprint", limit=limit)
    assert with_library.stderr == ""
    added = [line for line in with_library.stdout.splitlines() if line != "mapped libvcuda.so"]
    assert added == plain.stdout.splitlines()
    assert any(line.startswith("SigCgt:") for line in added), "the program looked at its signals"
    assert "/proc/self/task one" in added
    assert not place.quota.exists()


# --- the file that no environment drops --------------------------------------------------------------------------


def test_an_empty_environment_stays_limited(container):
    state = container.place.plain_env() | {"VCUDA_REFUSALS": "off"}
    assert container.words(WAYS, "simple") == [LIMITED]
    assert container.words("/usr/bin/env", "-i", *(f"{k}={v}" for k, v in state.items()), WAYS, "simple") == [
        LIMITED
    ]
    assert container.words(WAYS, "drop_preload", LD_PRELOAD="libm.so.6") == [LIMITED]


def test_the_address_sanitizer_beside_the_file(container):
    """What LD_PRELOAD names comes before what the file names."""
    asked = ["gcc", "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    quiet = {"ASAN_OPTIONS": "detect_leaks=0"}
    alone = container.run(CLIENTS / "ways-asan", "simple", **quiet)
    assert "does not come first in initial library list" in alone.stderr
    program = CLIENTS / "ways-asan"
    assert container.words(program, "simple", LD_PRELOAD=str(Path(runtime).resolve()), **quiet) == [LIMITED]
    assert container.words(CLIENTS / "ways-asan-static", "simple", **quiet) == [LIMITED]


def set_user_id_copy() -> list[str]:
    return ["mount -t tmpfs none /mnt", f"cp {WAYS} /mnt/ways", "chmod 4755 /mnt/ways"]


AS_NOBODY = ("/usr/bin/setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


def test_a_set_user_id_program_stays_limited(container):
    container.mounts += set_user_id_copy()
    done = container.run(*AS_NOBODY, "/mnt/ways", "simple")
    assert (done.returncode, done.stdout.splitlines()) == (0, [LIMITED])
    # Whoever starts it does not switch its messages off.
    assert done.stderr.startswith("vcuda: this container's 1 GiB") and done.stderr.count("\n") == 1


def test_a_set_user_id_program_ignores_the_preload_variable(place):
    """Which shows that the test above really was in secure mode."""
    needs_root()
    done = in_namespace(set_user_id_copy(), *AS_NOBODY, "/mnt/ways", "simple", env=place.env("1GiB"))
    assert done.stdout.split() == [UNLIMITED], done


def test_processes_of_the_container_start_each_other(container):
    assert container.words(WAYS, "forks")[-4:] == [LIMITED] * 4


# --- what may be missing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["simple", "threads", "close_from"])
def test_without_proc(container, way):
    container.mounts.append("mount -t tmpfs none /proc")
    assert set(container.words(WAYS, way)) == {LIMITED}


def test_a_read_only_root(container):
    machine = container.place.directory
    container.mounts += [
        f"mount --bind {machine} {machine}",
        "mount --bind /etc/vcuda/ledger /etc/vcuda/ledger",
        "mount -o remount,bind,ro /",
        "! touch /must-not-be 2>/dev/null",
    ]
    assert container.words(WAYS, "simple") == [LIMITED]


def test_a_full_disk_refuses_and_says_so(place):
    needs_root()
    place.quota.mkdir()
    full = [f"mount -t tmpfs -o size=64k none {place.quota}"]
    done = in_namespace(full, WAYS, "simple", env=place.env("1GiB"))
    assert done.stdout.split("\n")[0] == REFUSED
    assert re.fullmatch(
        r"vcuda: cannot create \S+: no space is left on the file system; free some .*\n", done.stderr
    )


def test_a_read_only_quota_refuses_and_says_so(place):
    needs_root()
    assert run((WAYS, "simple"), place.env("1GiB")).stdout.split() == [LIMITED]
    mounts = [f"mount --bind {place.quota} {place.quota}", f"mount -o remount,bind,ro {place.quota}"]
    done = in_namespace(mounts, WAYS, "simple", env=place.env("1GiB"))
    assert done.stdout.split("\n")[0] == REFUSED
    assert "permission denied" in done.stderr


# --- sandboxes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["docker", "eperm", "enosys"])
@pytest.mark.parametrize("way", ["simple", "threads", "forks"])
def test_system_calls_that_a_sandbox_forbids(place, profile, way):
    done = place.run(CLIENTS / "sandbox", profile, WAYS, way, limit="1GiB")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.splitlines()) <= {LIMITED, "not initialised"}


def test_the_sandbox_forbids(tmp_path):
    sandboxed = [str(CLIENTS / "sandbox"), "docker", "/usr/bin/unshare", "--mount", "/bin/true"]
    done = subprocess.run(sandboxed, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "not permitted" in done.stderr
