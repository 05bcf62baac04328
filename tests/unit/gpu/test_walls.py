# SPDX-License-Identifier: Apache-2.0
"""The cases about the driver's own limits: rehearsed on both backends, and each rule noticed where it is otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakedriver.cgroups import make_root, region_of
from tests.gpu.lines import Line
from tests.unit.gpu.rehearsing import MACHINE, lines, run

CASES = ("driver_limits", "driver_limits_misc", "driver_limits_dmem")
WORDS = [word for name in CASES for word in ("--case", name)]
PCI = "00000000:00:05.0"


def rehearse(tmp_path: Path, backend: str, *keys: str, **environment: str) -> tuple[dict[str, Line], int]:
    """The cases on a driver with that backend and these keys, by name; and the exit code."""
    machine = tmp_path / "machine.txt"
    machine.write_text(
        "".join(f"{key}\n" for key in (f"memory_limits: {backend}", *keys)) + MACHINE.read_text()
    )
    regions = {region_of(PCI): 81559 << 20} if backend == "dmem" else None
    root = make_root(tmp_path / "cgroup", backend, regions)
    extra = {"GPU_CGROUPS": str(root)} | environment
    done = run(tmp_path, *WORDS, FAKEDRIVER_MACHINE=str(machine), **extra)
    assert [path.name for path in root.iterdir() if path.is_dir()] == [], "its groups are gone"
    return lines(tmp_path), done.returncode


@pytest.mark.parametrize(("backend", "other"), [("misc", "dmem"), ("dmem", "misc")])
def test_the_rules_hold_on_the_simulated_backend(tmp_path: Path, backend: str, other: str) -> None:
    found, code = rehearse(tmp_path, backend)
    verdicts = {name: found[name].verdict for name in CASES}
    expected = dict.fromkeys(CASES, "pass") | {f"driver_limits_{other}": "missing"}
    assert verdicts == expected, {name: found[name].evidence for name in CASES}
    assert code == 4 and f"the backend is {backend}" in found[f"driver_limits_{other}"].evidence


def test_a_driver_without_the_call_is_told(tmp_path: Path) -> None:
    found, _ = rehearse(tmp_path, "none")
    assert {found[name].verdict for name in CASES} == {"missing"}
    assert "615" in found["driver_limits"].evidence


@pytest.mark.parametrize(
    ("environment", "why"),
    [({"GPU_CGROUPS": "/nowhere"}, "is no cgroup v2"), ({"FAKEDRIVER_ADMIN": "no"}, "needs CAP_SYS_ADMIN")],
)
def test_what_the_machine_lacks_is_told(tmp_path: Path, environment: dict[str, str], why: str) -> None:
    found, code = rehearse(tmp_path, "misc", **environment)
    assert {found[name].verdict for name in CASES} == {"missing"} and code == 4
    assert why in found["driver_limits"].evidence


OTHERWISE = {
    "misc/memory_limits_overcount: 60": "driver_limits/little_more_than_nvml_counts",
    "misc/memory_limits_shown: no": "driver_limits/cu_mem_get_info_shows_the_limit",
    "misc/memory_limits_controller: no": "driver_limits_misc/the_controller_is_needed",
    "misc/memory_limits_earlier: yes": "driver_limits_misc/earlier_memory_never_counts",
    "misc/memory_limits_below: taken": "driver_limits_misc/below_use_is_refused",
    "dmem/memory_limits_below: refused": "driver_limits_dmem/below_use_is_taken",
}


@pytest.mark.parametrize("rule", OTHERWISE)
def test_a_rule_that_is_otherwise_is_noticed(tmp_path: Path, rule: str) -> None:
    (backend, key), (name, check) = rule.split("/"), OTHERWISE[rule].split("/")
    found, code = rehearse(tmp_path, backend, key)
    assert code == 1
    assert {each for each, (holds, _) in found[name].checks.items() if not holds} == {check}, found[name]


def test_a_new_groups_inherited_limit_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    once, again = (
        rehearse(tmp_path / name, "misc", *keys)[0]["driver_limits_misc"].evidence
        for name, keys in (("a", ()), ("b", ("memory_limits_reuse: yes",)))
    )
    assert once == "of 20 new groups 0 had a dead one's limit"
    assert again == "of 20 new groups 20 had a dead one's limit"
