# SPDX-License-Identifier: Apache-2.0
"""What a process holds beyond its declarations: it is measured where that is possible, counts as used, and never twice.

The simulated driver loads the code of a library when it is used in a context: 64 MiB that no call declares.
"""

from __future__ import annotations

import json
import subprocess
import time

import pytest

import vcuda
from agent.ledgers.undeclared import undeclared_bytes
from tests.fakedriver.env import write_machine
from tests.native.running import CLIENTS, CONTEXT, GIB, MIB, OUT_OF_MEMORY, ROOT, SUCCESS, Place
from tests.native.scripted import Program

CODE = 64 * MIB
STALE = 0.25  # seconds after which a reading is believed no more


@pytest.fixture
def place(tmp_path):
    large = "gpu *:\n  memory: 80GiB"
    machine = write_machine(tmp_path, large, gpus=1, context_memory="100MiB", module_memory="64MiB")
    return Place(tmp_path, machine)


@pytest.fixture
def start(place):
    running = []

    def start(limit=str(GIB), **extra):
        program = Program(place.env(limit, **extra)).ready()
        running.append(program)
        program.do("keep(libraries=[], p=c_ulonglong(), q=c_ulonglong())")
        program.do(
            "keep(grow=lambda: (libraries.append(Handle()),"
            " cuda.cuLibraryLoadData(ref(libraries[-1]), b'x', None, None, 0, None, None, 0),"
            " cuda.cuLibraryGetModule(ref(Handle()), libraries[-1]))[1:])"
        )
        return program

    yield start
    for program in running:
        program.__exit__()


class Agent:
    """A node agent's part in it: measures, subtracts, publishes."""

    def __init__(self, place):
        self.place = place
        self.limits, self.ledger = place.quota / "limits", place.quota / "ledger"

    def round(self):
        command = [str(ROOT / "build/fakedriver/fakectl"), "state"]
        before = self.read()
        answer = subprocess.run(
            command, env=self.place.plain_env(), check=True, capture_output=True, text=True
        ).stdout
        (gpu,) = before.gpu_uuids
        measured = {gpu: {process["pid"]: process["used"][0] for process in json.loads(answer)["processes"]}}
        found = undeclared_bytes(before.processes, self.read().processes, measured, [gpu])
        vcuda.set_undeclared(self.limits, gpu, found[gpu])
        return found[gpu]

    def read(self):
        return vcuda.read_ledger(self.ledger)

    @property
    def undeclared(self):
        usage = self.read()
        return usage.undeclared(usage.gpu_uuids[0])


@pytest.fixture
def agent(place):
    return Agent(place)


@pytest.fixture
def neighbours(place):
    """300 strangers on the GPU, more than any list of fixed size."""
    with subprocess.Popen(
        [str(CLIENTS / "neighbours"), "300"],
        env=place.plain_env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        yield program
        program.communicate()


def alloc(program, name, size):
    return program.do(f"cuMemAlloc_v2(ref({name}), c_size_t({size}))")


# --- without an agent ------------------------------------------------------------------------------------------------


def test_what_no_call_declares_counts_as_used_and_is_given_back(start, agent):
    program = start()
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - CODE
    assert agent.undeclared == CODE
    assert alloc(program, "p", GIB - CONTEXT - CODE + 1) == OUT_OF_MEMORY
    assert alloc(program, "p", GIB - CONTEXT - CODE) == SUCCESS
    assert program.do("cuMemFree_v2(p)") == SUCCESS
    assert program.do("cuLibraryUnload(libraries.pop())") == SUCCESS
    assert program.free() == GIB - CONTEXT
    assert agent.undeclared == 0


@pytest.mark.parametrize("question", ["HandleByUUID", "MemoryInfo", "ComputeRunningProcesses_v3"])
def test_nvml_that_ends_between_two_queries_is_asked_again(place, start, agent, question):
    """As when another thread of the program ends its last use of it."""
    place.fakectl("fail", f"nvmlDeviceGet{question}", 1, 1)
    program = start()
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - CODE
    assert agent.undeclared == CODE


def test_among_hundreds_of_processes_each_still_measures_itself(place, start, neighbours, agent):
    program = start()
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - CODE
    assert agent.undeclared == CODE
    assert program.do("cuLibraryUnload(libraries.pop())") == SUCCESS
    assert program.free() == GIB - CONTEXT


def test_a_process_that_did_not_measure_its_context_measures_its_code(start, agent):
    start()
    second = start()  # knows from the ledger what a context takes, and has not started NVML
    second.do("grow()")
    assert second.later_free() == GIB - 2 * CONTEXT - CODE
    assert agent.undeclared == CODE


def test_memory_that_was_declared_is_not_undeclared(start, agent):
    program = start()
    for size in (1, 4097, MIB, 100 * MIB + 1):
        assert alloc(program, "p", size) == SUCCESS
    program.later_free()
    assert agent.undeclared == 0


def test_it_may_go_beyond_the_limit_and_then_nothing_more_is_allocated(start, agent):
    program = start(str(CONTEXT + MIB))
    program.do("grow()")
    assert program.later_free() == 0
    assert agent.undeclared == CODE
    assert alloc(program, "p", 1) == OUT_OF_MEMORY
    assert program.do("cuLibraryUnload(libraries.pop())") == SUCCESS
    assert alloc(program, "p", 1) == SUCCESS


def test_a_small_rest_is_not_counted(start, place, agent):
    write_machine(place.directory, gpus=1, context_memory="100MiB", module_memory="2047KiB")
    program = start()
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - 2 * MIB, "whole pieces of 2 MiB"


def test_nvml_shows_it_as_well(start):
    program = start()
    program.do("grow()")
    program.do("keep(nvml=ctypes.CDLL('libnvidia-ml.so.1'), gpu=c_void_p(), memory=(c_ulonglong * 3)())")
    program.do("time.sleep(0.25)")
    assert program.do("nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ref(gpu))") == [0, 0]
    assert program.do("nvml.nvmlDeviceGetMemoryInfo(gpu, memory)") == 0
    assert program.do("list(memory)") == [GIB, GIB - CONTEXT - CODE, CONTEXT + CODE]
    assert program.do("nvml.nvmlShutdown()") == 0


def test_a_program_that_ends_nvml_too_often_does_not_end_the_measuring(start):
    program = start()
    program.do("keep(nvml=ctypes.CDLL('libnvidia-ml.so.1'))")
    program.do("[nvml.nvmlShutdown() for _ in range(5)]")
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - CODE


def test_processes_measure_each_for_itself(start, agent):
    one, other = start(), start()
    one.do("grow()")
    assert one.later_free() == GIB - 2 * CONTEXT - CODE
    other.do("grow()")
    other.do("grow()")
    assert other.later_free() == GIB - 2 * CONTEXT - 3 * CODE
    assert agent.undeclared == 3 * CODE
    other.__exit__()
    time.sleep(STALE)
    assert one.free() == GIB - CONTEXT - CODE, "it ends with its process"


def test_it_ends_with_the_context(start, agent):
    program = start()
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - CODE
    assert program.do("cuDevicePrimaryCtxReset_v2(0)") == SUCCESS
    assert agent.undeclared == 0
    program.ready()
    assert program.free() == GIB - CONTEXT


def test_a_forked_child_begins_without_it(start, agent):
    """The child cannot use CUDA after its parent did, and what the parent holds is the parent's."""
    program = start()
    program.do("grow()")
    program.later_free()
    program.do(
        "keep(child=lambda: (lambda pid: os._exit(0) if pid == 0 else os.waitpid(pid, 0)[1])(os.fork()))"
    )
    assert program.do("child()") == 0
    assert agent.undeclared == CODE
    assert program.later_free() == GIB - CONTEXT - CODE


# --- beside an agent -------------------------------------------------------------------------------------------------


def test_what_the_process_counts_the_agent_does_not_add(start, agent):
    program = start()
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - CODE
    assert agent.round() == 0
    assert program.later_free() == GIB - CONTEXT - CODE


def test_what_the_agent_counts_the_process_does_not_add(start, agent):
    program = start()
    program.do("grow()")
    assert agent.round() == CODE
    for _ in range(2):
        assert program.later_free() == GIB - CONTEXT - CODE
        assert agent.undeclared == 0
        assert agent.round() == CODE
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - 2 * CODE, "only what is new"
    assert agent.undeclared == CODE
    assert agent.round() == CODE
    assert program.later_free() == GIB - CONTEXT - 2 * CODE


def test_when_it_goes_both_forget_it(start, agent):
    program = start()
    program.do("grow()")
    agent.round()
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - 2 * CODE
    assert program.do("[cuLibraryUnload(libraries.pop()) for _ in range(2)]") == [SUCCESS] * 2
    assert agent.undeclared == 0
    assert agent.round() == 0
    assert program.later_free() == GIB - CONTEXT


@pytest.mark.parametrize("order", ["first", "second", "both"])
def test_several_processes_and_an_agent_agree_in_the_end(start, agent, order):
    one, other = start(), start()
    truth = GIB - 2 * CONTEXT - 3 * CODE
    one.do("grow()")
    if order != "second":
        one.later_free()
    agent.round()
    other.do("grow()")
    other.do("grow()")
    for _ in range(3):
        assert other.later_free() >= truth, "never more than is held"
        if order != "first":
            assert one.later_free() >= truth
        agent.round()
        assert one.free() >= truth
    assert other.later_free() == one.later_free() == truth


# --- where it cannot be told -----------------------------------------------------------------------------------------


def test_a_process_that_nvml_does_not_list_is_not_measured(start, agent):
    program = start(FAKEDRIVER_PROCESS="graphics")
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT
    assert agent.undeclared == 0


def test_without_nvml_nothing_is_measured(start, place, tmp_path):
    only_cuda = tmp_path / "only-cuda"
    only_cuda.mkdir()
    (only_cuda / "libcuda.so.1").symlink_to(ROOT / "build/fakedriver/libcuda.so.1")
    (only_cuda / "libnvidia-ml.so.1").touch()  # hides a real one
    program = start(LD_LIBRARY_PATH=str(only_cuda))
    program.do("grow()")
    assert program.later_free() == GIB


def test_a_failing_nvml_changes_nothing(start, place):
    program = start()
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - CODE
    command = [str(ROOT / "build/fakedriver/fakectl"), "fail", "nvmlDeviceGetMemoryInfo", "999", "1000"]
    subprocess.run(command, env=place.plain_env(), check=True)
    program.do("grow()")
    assert program.later_free() == GIB - CONTEXT - CODE
    assert alloc(program, "p", 32 * MIB) == SUCCESS
    assert program.later_free() == GIB - CONTEXT - CODE - 32 * MIB


def test_a_handler_does_not_meet_nvml_in_the_midst_of_a_probe(start):
    """NVML has locks of its own, which the interrupted thread may hold."""
    program = start(FAKEDRIVER_LATENCY="nvmlDeviceGetComputeRunningProcesses_v3=300ms")
    program.do("keep(libc=ctypes.CDLL(None), times=[])")
    program.do("keep(stamp=ctypes.CFUNCTYPE(None, c_int)(lambda _: times.append(time.monotonic())))")
    program.do("libc.signal(14, stamp) and 0")
    program.do("time.sleep(0.25)")
    began, seen = program.do("(time.monotonic(), libc.ualarm(100000, 0), free(), times[0])[0::3]")
    assert seen - began >= 0.3
