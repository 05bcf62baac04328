# SPDX-License-Identifier: Apache-2.0
"""Memory limits of cgroups on the driver's own map (backend misc), each rule both ways where a card may differ."""

from __future__ import annotations

import pytest

from tests.fakedriver.cgroups import MAX, enable_controller

GIB, MIB = 1 << 30, 1 << 20
OOM = -2
INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, OPERATING_SYSTEM = 2, 3, 4, 6, 13, 17


def test_a_driver_without_the_function(node):
    for backend, code in (("none", FUNCTION_NOT_FOUND), ("off", NOT_SUPPORTED)):
        old = node(backend=backend)
        group = old.root / "pod"
        group.mkdir(exist_ok=True)
        assert old.set(group, GIB) == code
        assert old.get(group) == [-code]
        process = old.process(group)
        process("context(0)")
        assert process(f"alloc({2 * GIB})") > 0
        old.machine.state_file.unlink()


def test_mig_devices_have_none(node):
    mig = node("mig: yes")
    assert mig.set(mig.group("pod"), GIB) == NOT_SUPPORTED


def test_the_limit_holds_at_each_kind_of_allocation(node):
    made = node("module_memory: 4MiB", "pool_granularity: 2MiB")
    group = made.group("pod")
    assert made.set(group, 10 * MIB) == 0
    process = made.process(group)
    process("context(0)")
    assert process(f"alloc({10 * MIB + 1})") == OOM
    assert process("call('cuMemAlloc', byref(c_uint()), c_uint(11 << 20))") == 2
    assert process(f"physical({12 * MIB})") == OOM
    assert process("call('cuMemAllocAsync', byref(c_uint64()), c_size_t(11 << 20), None)") == 2
    array = "(c_uint64 * 4)(4 << 20, 4, 0x20 | 1 << 32)"
    assert process(f"call('cuArrayCreate_v2', byref(c_void_p()), {array})") == 2
    assert process("call('cuCtxSetLimit', 2, c_size_t(64 << 20))") == 2
    assert process("[handles('cuModuleLoadData', b'image') > 0 for _ in range(3)]") == [True, True, False]
    assert made.get(group) == [0, 10 * MIB, 8 * MIB]
    assert process(f"alloc({2 * MIB})") > 0
    assert process("alloc(1)") == OOM


def test_a_context_counts(node):
    made = node("context_memory: 300MiB")
    group = made.group("pod")
    made.set(group, 200 * MIB)
    process = made.process(group)
    assert process("[call('cuInit', 0), handles('cuDevicePrimaryCtxRetain', 0)]") == [0, OOM]
    made.set(group, 300 * MIB)
    assert process("handles('cuDevicePrimaryCtxRetain', 0)") > 0
    assert process("call('cuDevicePrimaryCtxReset_v2', 0)") == 0
    assert made.get(group) == [0, 300 * MIB, 0]


def test_managed_memory_does_not_count(node):
    made = node()
    group = made.group("pod")
    made.set(group, GIB)
    process = made.process(group)
    process("context(0)")
    assert process("call('cuMemAllocManaged', byref(c_uint64()), c_size_t(8 << 30), 1)") == 0
    assert made.get(group) == [0, GIB, 0]
    assert process(f"alloc({GIB})") > 0


def test_processes_of_a_group_share_and_a_dead_one_holds_nothing(node):
    made = node()
    group = made.group("pod")
    made.set(group, 4 * GIB)
    first, second, other = made.process(group), made.process(group), made.process(made.group("other"))
    for process in (first, second, other):
        process("context(0)")
    assert first(f"alloc({3 * GIB})") > 0
    assert second(f"alloc({2 * GIB})") == OOM
    assert other(f"alloc({8 * GIB})") > 0
    first.kill()
    assert made.get(group) == [0, 4 * GIB, 0]
    assert second(f"alloc({4 * GIB})") > 0


def test_each_gpu_has_its_own_limit(node):
    made = node()
    group = made.group("pod")
    assert made.set(group, 0, index=1) == 0
    process = made.process(group)
    process("context(0)")
    assert process(f"alloc({20 * GIB})") > 0
    assert made.get(group, 0) == [-NOT_SUPPORTED]
    assert process("[context(1), alloc(1)][1]") == OOM


def test_the_nearest_entry_holds_and_limits_do_not_nest(node):
    made = node()
    pod = made.group("pod")
    leaf, plain = made.group("pod/leaf"), made.group("pod/plain")
    made.set(pod, 2 * GIB)
    made.set(leaf, 5 * GIB)
    inside, beside = made.process(leaf), made.process(plain)
    inside("context(0)")
    beside("context(0)")
    assert inside(f"alloc({5 * GIB})") > 0, "the pod's limit does not bound a leaf with its own"
    assert beside(f"alloc({2 * GIB})") > 0, "nor does the leaf's memory count for the pod"
    assert beside("alloc(1)") == OOM
    assert made.get(plain) == made.get(pod) == [0, 2 * GIB, 2 * GIB]
    assert made.get(leaf) == [0, 5 * GIB, 5 * GIB]


def test_an_entry_of_max_is_nearest_and_hides_the_parents(node):
    made = node()
    pod, leaf = made.group("pod"), made.group("pod/leaf")
    made.set(pod, GIB)
    made.set(leaf, GIB)
    assert made.set(leaf, MAX) == 0
    assert made.get(leaf) == [0, MAX, 0]
    process = made.process(leaf)
    process("context(0)")
    assert process(f"alloc({20 * GIB})") > 0
    assert process("info()")[1] == 24 * GIB


@pytest.mark.parametrize("needed", [True, False])
def test_the_controller_is_needed(node, needed):
    made = node(f"memory_limits_controller: {'yes' if needed else 'no'}")
    pod = made.group("pod", controller=False)
    leaf = made.group("pod/leaf", controller=False)
    assert made.set(pod, GIB) == 0, "accepted in any case"
    process = made.process(leaf)
    process("context(0)")
    assert process(f"alloc({2 * GIB})") == OOM if not needed else process(f"alloc({2 * GIB})") > 0
    assert made.get(pod) == ([-NOT_SUPPORTED] if needed else [0, GIB, 0])
    enable_controller(pod)
    assert made.get(pod) == ([-NOT_SUPPORTED] if needed else [0, GIB, 0]), "it is set anew, then found"
    assert made.set(pod, GIB) == 0
    assert made.get(leaf) == [0, GIB, 0]


@pytest.mark.parametrize("counted", [True, False])
def test_memory_taken_before_the_limit(node, counted):
    made = node(f"memory_limits_earlier: {'yes' if counted else 'no'}")
    group = made.group("pod")
    process = made.process(group)
    process("context(0)")
    early = process(f"alloc({4 * GIB})")
    assert made.set(group, 6 * GIB) == 0
    assert made.get(group)[2] == (4 * GIB if counted else 0)
    late = process(f"alloc({5 * GIB})")
    assert (late == OOM) is counted
    process(f"free({early})")
    assert made.get(group)[2] == (0 if counted else 5 * GIB), "what was never counted is not given back"


@pytest.mark.parametrize("rule", ["backend", "refused", "taken"])
def test_a_limit_below_present_use(node, rule):
    made = node(f"memory_limits_below: {rule}")
    group = made.group("pod")
    made.set(group, 4 * GIB)
    process = made.process(group)
    process("context(0)")
    held = process(f"alloc({3 * GIB})")
    assert made.set(group, 3 * GIB) == 0
    assert made.set(group, 2 * GIB) == (0 if rule == "taken" else INVALID)
    assert made.get(group)[1] == (2 if rule == "taken" else 3) * GIB
    assert process("alloc(1)") == OOM
    process(f"free({held})")
    assert made.set(group, 2 * GIB) == 0
    assert process(f"alloc({3 * GIB})") == OOM


@pytest.mark.parametrize("reuse", [True, False])
def test_a_new_group_may_inherit_a_dead_ones_entry(node, reuse):
    made = node(f"memory_limits_reuse: {'yes' if reuse else 'no'}")
    group = made.group("first")
    made.set(group, GIB, MIB)
    for file in group.iterdir():
        file.unlink()
    group.rmdir()
    new = made.group("second")
    assert made.get(new) == ([MIB, GIB, 0] if reuse else [-NOT_SUPPORTED])
    process = made.process(new)
    process("context(0)")
    assert (process(f"alloc({2 * GIB})") == OOM) is reuse
    assert made.set(new, 5 * GIB) == 0
    assert made.get(new)[:2] == [0, 5 * GIB]


def test_limits_go_with_the_gpus_state(node):
    made = node()
    group = made.group("pod")
    made.set(group, GIB)
    made.set(group, GIB, index=1)
    made.machine.order("forget-limits", 0)
    assert made.get(group) == [-NOT_SUPPORTED]
    assert made.get(group, 1) == [0, GIB, 0]
    process = made.process(group)
    process("context(0)")
    assert process(f"alloc({2 * GIB})") > 0


def test_what_is_refused(node):
    made = node()
    group = made.group("pod")
    assert made.set(made.root, GIB) == NOT_SUPPORTED
    assert made.set(made.root / "missing", GIB) == OPERATING_SYSTEM
    assert made.get(made.root / "missing") == [-OPERATING_SYSTEM]
    assert made.set(group / "misc.max", GIB) == OPERATING_SYSTEM
    assert made.set(group, GIB, GIB + 1) == INVALID
    assert made.set(group, 24 * GIB) == 0
    assert made.set(group, 24 * GIB + 1) == INVALID
    assert made.set(group, MAX, 24 * GIB + 1) == INVALID
    assert made.agent("call('nvmlDeviceSetMemoryLimits_v1', device(0), None)") == INVALID
    tenant = made.machine.peer(FAKEDRIVER_ADMIN="no")
    assert tenant(f"set_limit({str(group)!r}, 0)") == NO_PERMISSION
    assert tenant(f"get_limit({str(group)!r})") == [0, 24 * GIB, 0], "anybody may ask"


@pytest.mark.parametrize("shown", ["own", "no"])
def test_what_a_process_sees(node, shown):
    made = node(f"memory_limits_shown: {shown}", f"memory_limits_total: {'yes' if shown == 'own' else 'no'}")
    group, other = made.group("pod"), made.process(None)
    other("context(0)")
    other(f"alloc({20 * GIB})")
    made.set(group, 6 * GIB)
    process = made.process(group)
    process("context(0)")
    process(f"alloc({GIB})")
    total, free = (6, 3) if shown == "own" else (24, 3)
    assert process("info()") == [free * GIB, total * GIB], "the GPU has less left than the limit"
    assert process("nvml_memory()")[:2] == [total * GIB, free * GIB]
    other.kill()
    free = 5 if shown == "own" else 23
    assert process("info()") == [free * GIB, total * GIB]
    assert process("nvml_memory()") == [total * GIB, free * GIB, (total - free) * GIB]
    ask = "[t := c_uint64(), good('cuDeviceTotalMem_v2', byref(t), 0), t.value][2]"
    assert process(ask) == total * GIB
    assert made.agent("nvml_memory()")[0] == 24 * GIB, "outside of the group nothing changes"


@pytest.mark.parametrize("percent", [0, 5])
def test_the_limit_may_count_more_than_is_shown(node, percent):
    made = node(f"memory_limits_overcount: {percent}")
    group = made.group("pod")
    made.set(group, 1000 * MIB)
    process = made.process(group)
    process("context(0)")
    assert (process(f"alloc({960 * MIB})") > 0) is (percent == 0)
    assert process("[free(alloc(940 << 20)), alloc(900 << 20) > 0][1]") or percent == 0
    held = 960 if percent == 0 else 900
    assert made.get(group)[2] == held * MIB * (100 + percent) // 100
    assert [used for pid, used in process("processes(0)")] == [held * MIB]


def test_shared_memory_counts_for_the_group_of_who_pays(node):
    made = node()
    group, other = made.group("pod"), made.group("other")
    made.set(group, GIB)
    made.set(other, GIB)
    first, second = made.process(group), made.process(other)
    for process in (first, second):
        process(
            "[v := __import__('tests.native.programs.vmm', fromlist=['Driver']), "
            "globals().update(d=v.Driver(0), prop=v.prop), 0][2]"
        )
    _, handle = first(f"d.create({64 * MIB}, prop(0, 1, 1))")
    _, fd = first(f"d.export({handle})")
    assert second(f"d.take_in_from({first.pid}, {fd})[0]") == 0
    assert [made.get(each)[2] for each in (group, other)] == [64 * MIB, 0]
    assert first(f"d.release({handle})") == 0
    assert [made.get(each)[2] for each in (group, other)] == [0, 64 * MIB]


def test_a_pool_gives_back_what_it_took(node):
    made = node("pool_granularity: 2MiB")
    group = made.group("pod")
    process = made.process(group)
    process("context(0)")
    take = "[a := c_uint64(), good('cuMemAllocAsync', byref(a), c_size_t({}), None), a.value][2]"
    first = process(take.format(8 * MIB))
    made.set(group, GIB)
    second = process(take.format(6 * MIB))
    assert made.get(group)[2] == 6 * MIB
    free = "[good('cuMemFreeAsync', c_uint64({}), None), good('cuCtxSynchronize'), 0][2]"
    process(free.format(second))
    assert made.get(group)[2] == 0
    process(free.format(first))
    assert made.get(group)[2] == 0
    assert process("info()")[0] == GIB


def test_the_state_names_what_is_set(node):
    made = node()
    group = made.group("pod")
    made.set(group, GIB, MIB, index=1)
    assert made.machine.state()["limits"] == [
        {"cgroup": str(group), "gpu": 1, "soft": MIB, "hard": GIB, "used": 0}
    ]


def test_a_group_that_is_not_there_is_said(node):
    made = node()
    process = made.process(made.root / "missing")
    assert process("call('cuInit', 0)") == 802
    assert "FAKEDRIVER_CGROUP" in process.end()


def test_persistence_is_a_key(written):
    ask = "[m := c_uint(9), good('nvmlDeviceGetPersistenceMode', device(0), byref(m)), m.value][2]"
    for word, mode in (("yes", 1), ("no", 0)):
        machine = written(f"gpus: 1\npersistence: {word}\n")
        assert machine.peer()(ask) == mode
        machine.state_file.unlink()
