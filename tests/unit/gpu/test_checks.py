# SPDX-License-Identifier: Apache-2.0
"""The checks of group A on drivers that are not as the library takes them to be: each is noticed by its name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.cases.assumptions import hooked
from tests.unit.gpu.rehearsing import MACHINE, ROOT, environment, has_pid_namespaces, lines, run

OTHERWISE = {
    "managed_memory/pages_can_move": ("managed_access: no", ""),
    "pools/pool_grows_in_chunks": ("pool_granularity: 3MiB", ""),
    "nvml_table/the_table_is_known": ("driver_version: 999.1", "driver_version: 580.159.04"),
    "nvml_bytes/context_is_measured": ("context_memory: 0", "context_memory: 520MiB"),
    "nvml_bytes/static_arrays_are_seen": ("module_memory: 0", "module_memory: 64MiB"),
    "array_sizes/charge_covers_arrays": ("granularity: 8MiB", ""),
}


# Keys of a driver in a PID namespace, and which checks of the case must not hold.
NAMESPACES = {
    "of 610, as 580": ("driver_version: 610.43.02\ninvisible_processes: left_out", set()),
    "of 580, and leaves nobody out": (
        "driver_version: 580.159.04\ninvisible_processes: listed",
        {"strangers_are_left_out"},
    ),
    "of 610, and leaves nobody out": (
        "driver_version: 610.43.02\ninvisible_processes: listed",
        {"strangers_are_left_out", "the_library_lists_own_alone"},
    ),
    "of 535, which promises nothing": ("driver_version: 535.104.05\ninvisible_processes: listed", set()),
    "of 530, whose table is cut off": (
        "driver_version: 530.41.03\ninvisible_processes: listed",
        {"the_library_lists_own_alone"},
    ),
}


@pytest.mark.namespaces
@pytest.mark.parametrize("driver", NAMESPACES)
def test_what_lists_show_in_a_namespace_is_told_by_branch(tmp_path: Path, driver: str) -> None:
    if not has_pid_namespaces():
        pytest.skip("this machine does not let us make PID namespaces")
    keys, failing = NAMESPACES[driver]
    kept = [
        line for line in MACHINE.read_text().splitlines() if not line.startswith(("driver_v", "invisible"))
    ]
    machine = tmp_path / "machine.txt"
    machine.write_text("\n".join([keys, *kept, ""]))
    done = run(tmp_path, "--case", "namespace_lists", FAKEDRIVER_MACHINE=str(machine))
    found = lines(tmp_path)["namespace_lists"]
    assert {name for name, (holds, _) in found.checks.items() if not holds} == failing, found
    assert done.returncode == (1 if failing else 0), done.stdout + done.stderr
    assert keys.split()[1] in str(found.numbers["plain driver"])


@pytest.mark.parametrize("check", OTHERWISE)
def test_a_driver_that_is_otherwise_is_noticed(tmp_path: Path, check: str) -> None:
    line, instead_of = OTHERWISE[check]
    text = MACHINE.read_text()
    machine = tmp_path / "machine.txt"
    machine.write_text(text.replace(instead_of, line) if instead_of else f"{line}\n{text}")
    name, _, judged = check.partition("/")
    done = run(tmp_path, "--case", name, FAKEDRIVER_MACHINE=str(machine))
    found = lines(tmp_path)[name]
    assert done.returncode == 1, done.stdout + done.stderr
    assert found.verdict == "fail" and not found.checks[judged][0], found
    assert judged in found.evidence


OTHER_POINTERS = """
import pointers
real = pointers.ask
def ask(name, version, flags):
    code, address, status = real(name, version, flags)
    return code, address + 16 if name == "cuMemAlloc" and address else address, status
pointers.ask = ask
pointers.main({symbols!r})
"""


def test_pointers_that_are_no_exported_functions_are_told(tmp_path: Path) -> None:
    env = environment(tmp_path, frameworks=False)
    env["PYTHONPATH"] = str(ROOT / "tests/gpu/programs")
    script = OTHER_POINTERS.format(symbols=hooked())
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    got = json.loads(done.stdout.splitlines()[0])
    assert got["strangers"] > 30 and got["differing"] >= got["strangers"]
    assert {row[0] for row in got["stray"]} == {"cuMemAlloc"} and all(
        "libcuda" in row[3] for row in got["stray"]
    )
    assert any("cuMemAlloc" in name for name in got["stray_names"])
