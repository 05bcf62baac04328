# SPDX-License-Identifier: Apache-2.0
"""All processes share one machine, and a dead one holds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

GIB = 1 << 30
CONTEXT = 100 << 20

# Takes and gives back 1 GiB blocks of GPU 0 and prints the most it held.
GREEDY = """
import random, sys
from tests.unit.fakedriver.client import *
context(0)
random.seed(int(sys.argv[1]))
held, most = [], 0
for number in range(4000):
    address = alloc(GIB)
    if address > 0:
        held.append(address)
        most = max(most, len(held))
    if address < 0 or random.random() < 0.3:
        for _ in range(min(len(held), random.randrange(1, 4))):
            free(held.pop())
    if used() > 24 * GIB:
        sys.exit("more than the GPU")
print(most)
"""

HAMMER = """
from tests.unit.fakedriver.client import *
context(0)
good("cuMemAlloc_v2", byref(c_uint64()), c_size_t(GIB))
print("ready", flush=True)
address = c_uint64()
while True:
    cu.cuMemAlloc_v2(byref(address), c_size_t(1 << 20))
    cu.cuMemFree_v2(address)
"""


def test_processes_see_each_other(small):
    first, second = small.peer(), small.peer()
    first("context(0)")
    second("context(0)")
    assert first("used()") == second("used()") == 2 * CONTEXT
    assert first(f"alloc({10 * GIB})") > 0
    assert second("used()") == 10 * GIB + 2 * CONTEXT
    assert second(f"alloc({14 * GIB})") == -2
    assert second(f"alloc({14 * GIB - 2 * CONTEXT})") > 0
    assert first("alloc(1)") == -2
    assert sorted(first("processes(0)")) == sorted(
        [[first.pid, 10 * GIB + CONTEXT], [second.pid, 14 * GIB - CONTEXT]]
    )


def test_memory_of_a_killed_process_is_back_at_once(small):
    watcher, victim = small.peer(), small.peer()
    watcher("context(0)")
    for _ in range(10):
        victim("context(0)")
        victim(f"alloc({20 * GIB})")
        assert watcher("used()") == 20 * GIB + 2 * CONTEXT
        victim.kill()
        assert watcher("used()") == CONTEXT
        assert watcher("processes(0)") == [[watcher.pid, CONTEXT]]
        victim = small.peer()


def test_memory_of_a_killed_process_is_there_for_an_allocation(small):
    waiter, victim = small.peer(), small.peer()
    waiter("context(0)")
    victim("context(0)")
    victim(f"alloc({20 * GIB})")
    assert waiter(f"alloc({20 * GIB})") == -2
    victim.kill()
    assert waiter(f"alloc({20 * GIB})") > 0


def test_memory_comes_back_when_the_claiming_thread_ended_before_the_process(small):
    watcher, victim = small.peer(), small.peer()
    watcher("context(0)")
    victim("[__import__('threading').Thread(target=lambda: good('cuInit', 0)).start(), 0]")
    victim("context(0)")
    victim(f"alloc({GIB})")
    assert watcher("used()") == GIB + 2 * CONTEXT
    victim.kill()
    assert watcher("used()") == CONTEXT


def test_kills_at_any_instant_cost_nothing(small):
    watcher = small.peer()
    watcher("context(0)")
    for trial in range(40):
        victims = [
            subprocess.Popen([sys.executable, "-c", HAMMER], env=small.env(), stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for victim in victims:
            assert victim.stdout is not None
            victim.stdout.readline()
        watcher(f"__import__('time').sleep({trial % 10 / 2000})")
        for victim in victims:
            victim.kill()
            victim.communicate()
        assert watcher("used()") == CONTEXT
        assert watcher(f"alloc({23 * GIB})") > 0, "the whole GPU is usable"
        watcher("good('cuDevicePrimaryCtxReset_v2', 0) or context(0)")


def test_eight_processes_never_hold_more_than_the_gpu(small):
    greedy = [
        subprocess.Popen(
            [sys.executable, "-c", GREEDY, str(seed)],
            env=small.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(8)
    ]
    for process in greedy:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert int(out) >= 1
    assert small.state()["gpus"][0]["used"] == 0


def test_processes_that_create_the_state_together_share_it(small):
    peers = [small.peer() for _ in range(8)]
    for peer in peers:
        assert peer.process.stdin is not None
        peer.process.stdin.write("context(0)\n")
    for peer in peers:
        assert peer.process.stdout is not None
        assert "value" in peer.process.stdout.readline()
    assert peers[0]("used()") == 8 * CONTEXT
    assert len(small.state()["processes"]) == 8
    leftovers = [path for path in small.state_file.parent.iterdir() if path != small.state_file]
    assert leftovers == []


def test_a_child_of_fork_cannot_use_the_parents_driver(small):
    parent = small.peer()
    parent("context(0)")
    assert parent("in_child(lambda: call('cuInit', 0))") == 3
    assert parent("in_child(lambda: -alloc(4096))") == 3
    assert parent("used()") == CONTEXT


def test_a_child_of_fork_starts_fresh_if_its_parent_had_nothing(small):
    parent = small.peer()
    assert parent("call('cuDriverGetVersion', byref(c_int()))") == 0
    assert parent("in_child(lambda: 0 if context(0) and used() == 100 << 20 else 1)") == 0


def test_descriptors_that_programs_close_do_not_matter_to_nvml(small):
    holder = small.peer()
    holder("context(0)")
    assert holder("[processes(0), good('nvmlShutdown'), processes(0)][2]") == [[holder.pid, CONTEXT]]
    assert small.state()["processes"][0]["pid"] == holder.pid


def test_other_processes_show_their_kind(small):
    for kind in ("compute", "graphics", "mps"):
        peer = small.peer(FAKEDRIVER_PROCESS=kind)
        peer("context(1)")
    watcher = small.peer()
    for suffix in ("", "_v2", "_v3"):
        for kind in ("Compute", "Graphics", "MPSCompute"):
            assert len(watcher(f"processes(1, {kind!r}, {suffix!r})")) == 1
    for slot in (213, 214, 215):
        assert len(watcher(f"private_processes(1, {slot})")) == 1


@pytest.mark.namespaces
def test_pids_are_those_of_the_readers_namespace(small):
    unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("PID namespaces cannot be made here")
    inside, outside = small.peer(*unshare), small.peer()
    inside("context(0)")
    outside("context(0)")
    [[seen, _]] = [entry for entry in outside("processes(0)") if entry[0] != outside.pid]
    assert "NSpid:\t" + f"{seen}\t1\n" in Path(f"/proc/{seen}/status").read_text()
    assert sorted(pid for pid, _ in inside("processes(0)")) == [0, 1], (
        "itself, and one that is invisible there"
    )
    os.kill(seen, signal.SIGKILL)
    inside.process.wait()
    assert outside("processes(0)") == [[outside.pid, CONTEXT]]


@pytest.mark.namespaces
@pytest.mark.parametrize("invisible", ["left_out", "listed"])
def test_what_lists_show_of_other_namespaces_can_be_chosen(written, invisible):
    unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("PID namespaces cannot be made here")
    two = written(f"gpus: 1\ncontext_memory: {CONTEXT}\ninvisible_processes: {invisible}\n")
    inside, outside = two.peer(*unshare), two.peer()
    inside("context(0)")
    outside("context(0)")
    strangers = [] if invisible == "left_out" else [[outside.pid, CONTEXT]]
    assert inside("processes(0)") == inside("private_processes(0)") == [[1, CONTEXT], *strangers]
    assert len(outside("processes(0)")) == 2, "from outside both are visible"


def test_rows_of_the_private_table_can_be_of_another_size(written):
    holder = written(f"gpus: 1\ncontext_memory: {CONTEXT}\nprivate_head: 48\n").peer()
    holder("context(0)")
    assert holder("ProcessPrivate._fields_[-1][0]") == "rest"
    row = "type('Row', (ctypes.Structure,), {'_fields_': ProcessPrivate._fields_ + [('more', c_char * 16)]})"
    assert holder(f"globals().update(ProcessPrivate={row}) or private_processes(0)") == [
        [holder.pid, CONTEXT]
    ]
    assert holder("ctypes.sizeof(ProcessPrivate)") == 48 + 4096


def test_private_table_shows_the_same_processes(small):
    holder, watcher = small.peer(), small.peer()
    holder("context(0)")
    holder(f"alloc({GIB})")
    assert watcher("private_processes(0)") == watcher("processes(0)") == [[holder.pid, GIB + CONTEXT]]
