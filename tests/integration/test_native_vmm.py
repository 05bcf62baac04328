# SPDX-License-Identifier: Apache-2.0
"""Physical memory by handle: charged to the device that is named, paid until the last handle, mapping and binding."""

from __future__ import annotations

import json

import pytest

from tests.native.running import (
    CLIENTS,
    CONTEXT,
    GIB,
    INVALID_DEVICE,
    INVALID_VALUE,
    MIB,
    MODES,
    OUT_OF_MEMORY,
    ROOT,
    SUCCESS,
)

UNTOUCHED = 0x5555
PART = 2 * MIB


@pytest.mark.parametrize("mode", MODES)
def test_every_way_in_meets_the_limit(place, mode):
    with place.client("1GiB", mode) as client:
        client.ready()
        left = (GIB - CONTEXT) // PART * PART
        refused = client.do("physical a", left + PART)
        assert (refused.code, refused.first) == (OUT_OF_MEMORY, UNTOUCHED)
        assert client.do("physical a", left).code == SUCCESS
        assert client.free() == GIB - CONTEXT - left
        assert client.do("physical b", PART).code == OUT_OF_MEMORY
        assert client.do("let a").code == SUCCESS
        assert client.free() == GIB - CONTEXT
        assert client.close() == ""


def test_the_device_of_the_call_pays_and_no_context_is_needed(place):
    with place.program("0=1GiB,1=2GiB", "0,1") as program:
        program("d.current(None)")
        assert program(f"d.create({GIB}, prop(0))") == [OUT_OF_MEMORY, UNTOUCHED]
        code, handle = program(f"d.create({GIB}, prop(1))")
        assert code == SUCCESS
        assert program("d.used(0), d.used(1)") == [CONTEXT, CONTEXT + GIB]
        assert program(f"d.create({GIB}, prop(1))") == [OUT_OF_MEMORY, UNTOUCHED]
        assert program(f"d.release({handle})") == SUCCESS
        assert program("d.used(0), d.used(1)") == [CONTEXT, CONTEXT]


def test_the_hosts_memory_costs_nothing(place):
    with place.program("1GiB") as program:
        for kind in ("HOST", "HOST_NUMA"):
            code, handle = program(f"d.create({4 * GIB}, prop(7, {kind}))")
            assert code == SUCCESS
            assert program("d.used()") == CONTEXT
            address = program(f"d.reserve({4 * GIB})")
            assert program(f"d.map({address}, {4 * GIB}, {handle})") == SUCCESS
            assert program(f"d.release({handle})") == SUCCESS
            assert program(f"d.unmap({address}, {4 * GIB})") == SUCCESS
            assert program("d.used()") == CONTEXT


def test_addresses_cost_nothing(place):
    with place.program("1GiB") as program:
        address = program(f"d.reserve({64 * GIB})")
        assert program("d.used()") == CONTEXT
        assert program(f"d.unreserve({address}, {64 * GIB})") == SUCCESS


ENDS = {
    "release, unmap": ["release", "unmap"],
    "unmap, release": ["unmap", "release"],
    "retained": ["release", "retain", "unmap", "release"],
    "retained twice": ["retain", "retain", "release", "unmap", "release", "release"],
    "two mappings": ["map again", "release", "unmap", "unmap again"],
    "two mappings, the other first": ["map again", "unmap again", "release", "unmap"],
}


@pytest.mark.parametrize("steps", ENDS.values(), ids=ENDS)
def test_the_last_that_holds_it_gives_it_back(place, steps):
    with place.program("1GiB") as program:
        first, again = program(f"[d.reserve({PART}), d.reserve({PART})]")
        code, handle = program(f"d.create({PART})")
        assert (code, program(f"d.map({first}, {PART}, {handle})")) == (SUCCESS, SUCCESS)
        does = {
            "release": f"d.release({handle})",
            "unmap": f"d.unmap({first}, {PART})",
            "map again": f"d.map({again}, {PART}, {handle})",
            "unmap again": f"d.unmap({again}, {PART})",
            "retain": f"d.retain({first} + 4711)[0]",
        }
        for step in steps:
            assert program("d.used(), d.really_used()") == [CONTEXT + PART] * 2, f"before {step}"
            assert program(does[step]) == SUCCESS, step
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2
        assert program(f"d.release({handle})") == INVALID_VALUE
        assert program(f"d.unmap({first}, {PART})") == INVALID_VALUE
        assert program("d.used()") == CONTEXT


def test_one_unmap_can_span_many_mappings(place):
    with place.program("1GiB") as program:
        base = program(f"d.reserve({64 * PART})")
        for part in range(64):
            _, handle = program(f"d.create({PART})")
            assert program(f"d.map({base + part * PART}, {PART}, {handle})") == SUCCESS
            assert program(f"d.release({handle})") == SUCCESS
        assert program("d.used()") == CONTEXT + 64 * PART
        assert program(f"d.unmap({base + 8 * PART}, {8 * PART})") == SUCCESS
        assert program("d.used()") == CONTEXT + 56 * PART
        assert program(f"d.unmap({base}, {16 * PART})") == INVALID_VALUE, "there is a hole"
        assert program("d.used()") == CONTEXT + 56 * PART
        assert program(f"d.unmap({base}, {8 * PART})") == SUCCESS
        assert program(f"d.unmap({base + 16 * PART}, {48 * PART})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2


def test_only_whole_mappings_are_unmapped(place):
    with place.program("1GiB") as program:
        base = program(f"d.reserve({8 * PART})")
        _, handle = program(f"d.create({4 * PART})")
        assert program(f"d.map({base}, {4 * PART}, {handle})") == SUCCESS
        assert program(f"d.release({handle})") == SUCCESS
        for start, parts in ((0, 1), (1, 3), (0, 3), (1, 4), (4, 1)):
            assert program(f"d.unmap({base + start * PART}, {parts * PART})") == INVALID_VALUE
            assert program("d.used(), d.really_used()") == [CONTEXT + 4 * PART] * 2
        assert program(f"d.unmap({base}, {4 * PART})") == SUCCESS
        assert program("d.used()") == CONTEXT


REFUSED = {
    "cuMemCreate": "d.create({part})[0]",
    "cuMemMap": "d.map({other}, {part}, {handle})",
    "cuMemUnmap": "d.unmap({base}, {part})",
    "cuMemRelease": "d.release({handle})",
    "cuMemRetainAllocationHandle": "d.retain({base})[0]",
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_the_driver_refuses_changes_nothing(place, call):
    with place.program("1GiB") as program:
        base, other = program(f"[d.reserve({PART}), d.reserve({PART})]")
        _, handle = program(f"d.create({PART})")
        assert program(f"d.map({base}, {PART}, {handle})") == SUCCESS
        place.fakectl("fail", call, 999, 3, "--pid", program.pid)
        for _ in range(3):
            assert program(REFUSED[call].format(part=PART, base=base, other=other, handle=handle)) == 999
            assert program("d.used(), d.really_used()") == [CONTEXT + PART] * 2
        assert program(f"d.release({handle})") == SUCCESS
        assert program("d.used()") == CONTEXT + PART
        assert program(f"d.unmap({base}, {PART})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2


def test_odd_arguments_get_the_drivers_own_answer(place):
    with place.program("1GiB") as program:
        assert program("d.create(0)") == [INVALID_VALUE, UNTOUCHED]
        assert program("d.create(4096)") == [INVALID_VALUE, UNTOUCHED]
        assert program(f"d.create({PART}, prop(7))") == [INVALID_DEVICE, UNTOUCHED]
        assert program(f"d.create({PART}, prop(-1))") == [INVALID_DEVICE, UNTOUCHED]
        for size in (1 << 62, 1 << 47, (1 << 64) - PART):
            assert program(f"d.create({size})") == [OUT_OF_MEMORY, UNTOUCHED]
        assert (
            program(f"d.cuda.cuMemCreate(None, c_size_t({PART}), byref(prop()), c_ulonglong(0))")
            == INVALID_VALUE
        )
        assert (
            program(f"d.cuda.cuMemCreate(byref(c_uint64()), c_size_t({PART}), None, c_ulonglong(0))")
            == INVALID_VALUE
        )
        assert program("d.cuda.cuMemRetainAllocationHandle(None, None)") == INVALID_VALUE
        assert program("d.cuda.cuMemImportFromShareableHandle(None, None, 1)") == INVALID_VALUE
        assert program("d.release(0)") == INVALID_VALUE
        assert program("d.release(4711)") == INVALID_VALUE
        assert program("d.unmap(0, 0)") == INVALID_VALUE
        assert program(f"d.unmap({(1 << 64) - PART}, {2 * PART})") == INVALID_VALUE
        assert program(f"d.map(0, {PART}, 4711)") == INVALID_VALUE
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2


def test_a_mapping_over_another_is_refused_and_holds_nothing(place):
    with place.program("1GiB") as program:
        base = program(f"d.reserve({PART})")
        (_, first), (_, second) = program(f"[d.create({PART}), d.create({PART})]")
        assert program(f"d.map({base}, {PART}, {first})") == SUCCESS
        assert program(f"d.map({base}, {PART}, {second})") == INVALID_VALUE
        assert program(f"d.release({second})") == SUCCESS
        assert program("d.used()") == CONTEXT + PART
        assert program(f"[d.unmap({base}, {PART}), d.release({first})]") == [SUCCESS, SUCCESS]
        assert program("d.used()") == CONTEXT


def test_memory_outlives_contexts(place):
    with place.program("1GiB") as program:
        base = program(f"d.reserve({PART})")
        _, handle = program(f"d.create({PART})")
        assert program(f"d.map({base}, {PART}, {handle})") == SUCCESS
        assert program("d.cuda.cuDevicePrimaryCtxReset_v2(0)") == SUCCESS
        program("d.__init__(0)")
        assert program("d.used(), d.really_used()") == [CONTEXT + PART] * 2
        assert program(f"[d.release({handle}), d.unmap({base}, {PART})]") == [SUCCESS, SUCCESS]
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2


def test_fork_gives_the_child_nothing_of_its_parent(place):
    with place.program("1GiB") as program:
        _, handle = program(f"d.create({PART})")
        child = f"os.fork() or os._exit(d.release({handle}) == 0)"
        assert program(f"[os.waitstatus_to_exitcode(os.waitpid({child}, 0)[1]), d.used()]") == [
            0,
            CONTEXT + PART,
        ]


@pytest.mark.parametrize("linger", [0, 200], ids=["a prompt driver", "a slow driver"])
def test_threads_that_race_for_the_same_handles_leave_the_allocation_table_exact(place, linger):
    rounds = "60" if linger else "500"
    done = place.run(CLIENTS / "vmm-race", rounds, limit="1GiB", FAKEDRIVER_LINGER=str(linger))
    assert done.returncode == 0, done.stderr
    before, between, held, after, *_ = map(int, done.stdout.split())
    assert (before, between, held, after) == (
        GIB - CONTEXT,
        GIB - CONTEXT,
        GIB - CONTEXT - PART,
        GIB - CONTEXT,
    )
    assert json.loads(place.fakectl("state"))["gpus"][0]["used"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_against_a_model(place, python, seed, tmp_path):
    """Without NVML: nothing is measured, and what was exported ends with its exporter's last hold."""
    only_cuda = tmp_path / "only-cuda"
    only_cuda.mkdir()
    (only_cuda / "libcuda.so.1").symlink_to(ROOT / "build/fakedriver/libcuda.so.1")
    (only_cuda / "libnvidia-ml.so.1").touch()  # hides a real one
    command = [python, "-m", "tests.native.programs.vmm_random", str(seed)]
    env = place.python_env() | {"LD_LIBRARY_PATH": str(only_cuda)}
    done = place.run(*command, limit="0=64MiB,1=48MiB", **env)
    assert (done.returncode, done.stdout) == (0, "as the model says\n"), done.stdout + done.stderr


@pytest.mark.parametrize("refused", [False, True])
def test_many_mappings_are_unmapped_without_memory_for_it(place, refused):
    """The driver unmaps whole mappings alone: a range that ends inside one stays mapped, and paid."""
    pieces = 2000
    size = pieces * PART
    limit = "__import__('resource').setrlimit(__import__('resource').RLIMIT_AS, ({}, -1))"
    with place.program("8GiB") as program:
        address = program(f"d.reserve({size})")
        one = f"(lambda made: d.map({address} + i * {PART}, {PART}, made) + d.release(made))(d.create({PART})[1])"
        assert program(f"sum({one} for i in range({pieces}))") == SUCCESS
        assert program("d.used()") == CONTEXT + size
        program(limit.format(1))
        code = program(f"d.unmap({address}, {size - refused * PART // 2})")
        program(limit.format(-1))
        assert code == (INVALID_VALUE if refused else SUCCESS)
        if refused:
            assert program("d.used()") == CONTEXT + size
            assert program(f"d.unmap({address}, {size})") == SUCCESS
        assert program("d.used()") == CONTEXT
