# SPDX-License-Identifier: Apache-2.0
"""Memory limits of cgroups on the kernel's dmem controller: files, hierarchy, and what they show."""

from __future__ import annotations

import pytest

from tests.fakedriver.cgroups import MAX, enable_controller, region_of

GIB, MIB = 1 << 30, 1 << 20
OOM = -2
INVALID, NOT_FOUND = 2, 6

REGION = region_of("00000000:10:00.0")


def lines(path):
    return path.read_text().splitlines()


def test_limits_are_the_kernels_files(node):
    made = node(backend="dmem")
    group = made.group("pod")
    assert made.get(group) == [0, MAX, 0]
    assert made.set(group, 4 * GIB, GIB) == 0
    assert made.set(group, 8 * GIB, index=1) == 0
    assert lines(group / "dmem.max") == [f"{REGION} {4 * GIB}", f"{region_of('00000000:18:00.0')} {8 * GIB}"]
    assert lines(group / "dmem.min") == [f"{REGION} {GIB}"]
    assert made.set(group, MAX) == 0
    assert f"{REGION} max" in lines(group / "dmem.max")
    (group / "dmem.max").write_text(f"{REGION} {2 * GIB}\n")
    assert made.get(group) == [0, 2 * GIB, 0], "whoever writes it, it holds"
    process = made.process(group)
    process("context(0)")
    assert process(f"alloc({3 * GIB})") == OOM


def test_a_group_without_the_files(node):
    made = node(backend="dmem")
    pod = made.group("pod")
    plain = made.group("pod/plain", controller=False)
    assert made.set(plain, GIB) == NOT_FOUND
    assert made.get(plain) == [-NOT_FOUND]
    assert made.set(made.root, GIB) == NOT_FOUND
    made.set(pod, GIB)
    process = made.process(plain)
    process("context(0)")
    assert process(f"alloc({2 * GIB})") == OOM, "it is in the group above that has them"
    assert process(f"alloc({MIB})") > 0
    assert made.get(pod)[2] == MIB


def test_limits_nest(node):
    made = node(backend="dmem")
    pod = made.group("pod")
    leaf, other = made.group("pod/leaf"), made.group("pod/other")
    made.set(pod, 4 * GIB)
    made.set(leaf, 3 * GIB)
    first, second = made.process(leaf), made.process(other)
    first("context(0)")
    second("context(0)")
    assert first(f"alloc({3 * GIB + 1})") == OOM
    assert second(f"alloc({2 * GIB})") > 0
    assert first(f"alloc({3 * GIB})") == OOM, "the pod's limit bounds the leaf"
    assert first(f"alloc({2 * GIB})") > 0
    assert made.get(pod)[2] == 4 * GIB
    assert lines(pod / "dmem.current") == [f"{REGION} {4 * GIB}"]
    assert lines(leaf / "dmem.current") == [f"{REGION} {2 * GIB}"]
    first.kill()
    assert made.get(pod)[2] == 2 * GIB
    assert f"{REGION} {2 * GIB}" in lines(pod / "dmem.current")


@pytest.mark.parametrize("rule", ["backend", "refused", "taken"])
def test_a_limit_below_present_use_is_written_without_effect(node, rule):
    made = node(f"memory_limits_below: {rule}", backend="dmem")
    group = made.group("pod")
    process = made.process(group)
    process("context(0)")
    held = process(f"alloc({3 * GIB})")
    refused = rule == "refused"
    assert made.set(group, GIB) == (INVALID if refused else 0)
    assert made.get(group)[1:] == [MAX if refused else GIB, 3 * GIB]
    assert (process("alloc(1)") == OOM) is not refused
    assert process(f"free({held})") == 0


@pytest.mark.parametrize("shown", ["own", "tightest", "no"])
def test_what_a_leaf_shows(node, shown):
    made = node(f"memory_limits_shown: {shown}", backend="dmem")
    pod, leaf = made.group("pod"), made.group("pod/leaf")
    made.set(pod, 4 * GIB)
    process = made.process(leaf)
    process("context(0)")
    total = 4 if shown == "tightest" else 24
    assert process("info()") == [total * GIB, total * GIB]
    assert process("nvml_memory()")[0] == total * GIB
    assert process(f"alloc({5 * GIB})") == OOM, "whatever is shown"
    made.set(leaf, 2 * GIB)
    assert process("info()")[1] == (24 if shown == "no" else 2) * GIB


@pytest.mark.parametrize("early", [True, False])
def test_earlier_memory_counts_if_the_files_were_there(node, early):
    made = node(backend="dmem")
    group = made.group("pod", controller=early)
    process = made.process(group)
    process("context(0)")
    process(f"alloc({4 * GIB})")
    if not early:
        enable_controller(group, "dmem")
    assert made.set(group, 6 * GIB) == 0
    assert made.get(group)[2] == (4 * GIB if early else 0)
    assert (process(f"alloc({3 * GIB})") == OOM) is early


def test_a_soft_limit_stays_above_when_its_group_is_removed(node):
    made = node(backend="dmem")
    pod = made.group("pod")
    leaf = made.group("pod/leaf")
    made.set(leaf, 4 * GIB, 2 * GIB)
    made.set(leaf, 4 * GIB, GIB)
    assert lines(pod / "dmem.min") == [f"{REGION} {GIB}"], "as much as the last one"
    for file in leaf.iterdir():
        file.unlink()
    leaf.rmdir()
    assert lines(pod / "dmem.min") == [f"{REGION} {GIB}"]
    again = made.group("pod/again")
    made.set(again, 4 * GIB, GIB)
    made.set(again, 4 * GIB, 0)
    assert lines(pod / "dmem.min") == [f"{REGION} {GIB}"], "only what is set to 0 first goes"


def test_forgotten_with_the_gpus_state(node):
    made = node(backend="dmem")
    group = made.group("pod")
    made.set(group, GIB, MIB)
    made.machine.order("forget-limits", 0)
    assert made.get(group) == [0, MAX, 0]
