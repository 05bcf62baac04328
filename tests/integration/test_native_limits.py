# SPDX-License-Identifier: Apache-2.0
"""The driver's own limit around a container that has the library: whose number is shown, whose refusal it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakedriver.cgroups import MAX, make_group, make_root
from tests.fakedriver.env import MACHINES
from tests.native.running import CONTEXT, GIB, MIB, ROOT, Place
from tests.unit.fakedriver.conftest import Peer
from vcuda import LedgerUsage, read_ledger

OOM = -2
NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 3, 4, 13
MARGIN = 256 * MIB

# Every order of what may come first, where a process comes before what it does.
STEPS = ("limit", "process", "cuda", "nvml")
ORDERS = [
    order
    for order in itertools.permutations(STEPS)
    if order.index("process") < min(order.index("cuda"), order.index("nvml"))
]


class Pod:
    """A container with the library, in a group of a machine whose driver has limits; and an agent outside of it."""

    def __init__(self, directory: Path, *keys: str, backend: str = "misc") -> None:
        machine = directory / "machine.txt"
        base = (MACHINES / "two-24g.txt").read_text().replace("cuda_version: 12040", "cuda_version: 13000")
        machine.write_text("\n".join([f"memory_limits: {backend}", *keys, base]))
        self.place = Place(directory, machine=str(machine))
        self.backend = "dmem" if backend == "dmem" else "misc"
        self.group = make_group(make_root(directory / "cgroup", self.backend) / "pod", self.backend)
        self.peers: list[Peer] = []
        self.agent = self._start(self.place.plain_env() | {"FAKEDRIVER_ADMIN": "yes"})

    def _start(self, env: dict[str, str]) -> Peer:
        self.peers.append(Peer(env | {"PYTHONPATH": str(ROOT)}))
        return self.peers[-1]

    def limit(self, hard: int) -> None:
        assert self.agent(f"set_limit({str(self.group)!r}, {hard})") == 0

    def process(self, quota: str, **extra: str) -> Peer:
        return self._start(self.place.env(quota, FAKEDRIVER_CGROUP=str(self.group), **extra))

    def stranger(self) -> Peer:
        return self._start(self.place.plain_env())

    @property
    def ledger(self) -> LedgerUsage:
        return read_ledger(self.place.quota / "ledger")

    @property
    def by_driver(self) -> tuple[int, int]:
        """Refusals of the driver on GPU 0, and what the last of them asked for."""
        ledger = self.ledger
        return ledger.driver_refused[ledger.gpu_uuids[0]], ledger.driver_refused_bytes[ledger.gpu_uuids[0]]

    @property
    def by_library(self) -> int:
        return sum(process.refused for process in self.ledger.processes)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    pods: list[Pod] = []

    def make(*keys: str, backend: str = "misc") -> Pod:
        pods.append(Pod(tmp_path, *keys, backend=backend))
        return pods[-1]

    yield make
    for each in pods:
        for peer in each.peers:
            peer.process.kill()
            peer.process.communicate()


# --- what is shown --------------------------------------------------------------------------------------------------


def seen(process: Peer) -> list[list[int]]:
    """(free, total) of the current context's GPU, of the device, and twice of NVML."""
    total = process("[t := c_uint64(), good('cuDeviceTotalMem_v2', byref(t), 0), t.value][2]")
    free, of_context = process("info()")
    of_nvml, nvml_free, nvml_used = process("nvml_memory()")
    assert nvml_used == of_nvml - nvml_free
    return [[free, of_context], [free, total], [nvml_free, of_nvml]]


@pytest.mark.parametrize("shown", ["own", "no"])
@pytest.mark.parametrize("backend", ["misc", "dmem"])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_the_librarys_number_is_shown_whatever_came_first(pod, order, backend, shown):
    made = pod(f"memory_limits_shown: {shown}", "memory_limits_total: yes", backend=backend)
    made.stranger()(f"[context(0), alloc({9 * GIB})][1]")
    process = None
    for step in order:
        if step == "limit":
            made.limit(4 * GIB + MARGIN)
        elif step == "process":
            process = made.process("4GiB")
        elif step == "cuda":
            assert process("context(0)")
        else:
            process("nvml_memory()")
    assert process(f"alloc({GIB})") > 0
    assert seen(process) == [[3 * GIB - CONTEXT, 4 * GIB]] * 3
    assert made.process("4GiB")("nvml_memory()") == [4 * GIB, 3 * GIB - CONTEXT, GIB + CONTEXT]
    if shown == "own":
        plain = made._start(made.place.plain_env() | {"FAKEDRIVER_CGROUP": str(made.group)})
        assert plain("nvml_memory()")[0] == 4 * GIB + MARGIN, "what the driver shows is another number"


@pytest.mark.parametrize("wall", [2 * GIB + MARGIN, 4 * GIB, MAX], ids=["physical", "quota", "none"])
@pytest.mark.parametrize("backend", ["misc", "dmem"])
def test_also_where_the_limit_is_less_than_the_quota(pod, backend, wall):
    """A container that may use host memory has its physical share as its limit."""
    made = pod("memory_limits_total: yes", backend=backend)
    process = made.process("4GiB", VCUDA_PHYSICAL_LIMIT="2GiB")
    made.limit(wall)
    process("context(0)")
    assert process(f"[alloc({GIB + GIB // 2}) > 0 for _ in range(2)]") == [True, True], (
        "the second is managed"
    )
    assert seen(process) == [[GIB - CONTEXT, 4 * GIB]] * 3
    assert process(f"alloc({2 * GIB})") == OOM
    assert made.by_driver == (0, 0)


def test_a_limit_that_changes_or_goes_changes_nothing(pod):
    made = pod()
    made.limit(4 * GIB + MARGIN)
    process = made.process("4GiB")
    process(f"[context(0), alloc({GIB})]")
    expected = [[3 * GIB - CONTEXT, 4 * GIB]] * 3
    for hard in (2 * GIB, 20 * GIB, MAX):
        made.limit(hard)
        assert seen(process) == expected
    made.place.fakectl("forget-limits", 0)
    assert seen(process) == expected


# --- whose refusal it was -------------------------------------------------------------------------------------------


def fill(process: Peer, block: int) -> int:
    """Takes blocks until one is refused; how many there were."""
    return int(process(f"sum(1 for _ in iter(lambda: alloc({block}) > 0, False))"))


@pytest.mark.parametrize("margin", [MARGIN, 0])
@pytest.mark.parametrize("percent", [0, 5])
def test_with_the_margin_the_library_refuses_first(pod, percent, margin):
    made = pod(f"memory_limits_overcount: {percent}")
    made.limit(4 * GIB + margin)
    process = made.process("4GiB")
    process("context(0)")
    blocks = fill(process, 32 * MIB)
    if percent and not margin:
        assert blocks < (4 * GIB - CONTEXT) // (32 * MIB)
        assert (made.by_driver, made.by_library) == ((1, 32 * MIB), 0)
    else:
        assert blocks == (4 * GIB - CONTEXT) // (32 * MIB)
        assert (made.by_driver, made.by_library) == ((0, 0), 1)


ARRAY = "(c_uint64 * 4)(8192, 4096, 0x20 | 1 << 32)"  # 128 MiB
CALLS = {
    "cuMemAlloc_v2": (f"alloc({128 * MIB})", 128 * MIB),
    "cuMemAlloc": ("call('cuMemAlloc', byref(c_uint()), c_uint(128 << 20))", 128 * MIB),
    "cuMemAllocPitch_v2": (
        "call('cuMemAllocPitch_v2', byref(c_uint64()), byref(c_size_t()), c_size_t(1 << 20), c_size_t(128), 4)",
        128 * MIB,
    ),
    "cuMemAllocAsync": ("call('cuMemAllocAsync', byref(c_uint64()), c_size_t(128 << 20), None)", 128 * MIB),
    "cuArrayCreate_v2": (f"call('cuArrayCreate_v2', byref(c_void_p()), {ARRAY})", 128 * MIB),
    "cuMemCreate": (f"physical({128 * MIB})", 128 * MIB),
    "cuCtxSetLimit": ("call('cuCtxSetLimit', 2, c_size_t(136 << 20))", 128 * MIB),
    "cuModuleLoadData": ("call('cuModuleLoadData', byref(c_void_p()), b'image')", 0),
    "cuCtxCreate_v2": ("call('cuCtxCreate_v2', byref(c_void_p()), 0, 0)", CONTEXT),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_of_the_driver_is_counted_once(pod, name):
    made = pod("module_memory: 128MiB")
    expression, asked = CALLS[name]
    made.limit(CONTEXT + 64 * MIB)
    process = made.process("4GiB")
    process("context(0)")
    assert process(f"abs({expression})") == 2
    assert made.by_driver == (1, asked)
    assert made.by_library == 0
    made.limit(4 * GIB)
    assert process(f"max({expression}, 0) != 2") is True
    assert made.by_driver == (1, asked), "what succeeds is not counted"


def test_a_first_context_that_is_refused_is_counted(pod):
    made = pod()
    made.limit(MIB)
    process = made.process("4GiB")
    assert process("[call('cuInit', 0), handles('cuDevicePrimaryCtxRetain', 0)]") == [0, OOM]
    assert made.by_driver == (1, 0)
    assert made.by_library == 0


def test_a_graph_that_is_refused_is_counted(pod):
    made = pod()
    made.limit(CONTEXT + 64 * MIB)
    process = made.process("4GiB")
    process("context(0)")
    process("globals().update(g=handles('cuGraphCreate', 0)) or 0")
    process(f"globals().update(n=graph_alloc(g, {128 * MIB})) or graph_free(g, n[1], n[0])")
    process("globals().update(e=instantiate(g)) or 0")
    assert process("launch_graph(e)") == 2
    assert made.by_driver == (1, 128 * MIB)


def test_a_refusal_of_the_library_is_none_of_the_driver(pod):
    made = pod()
    made.limit(8 * GIB)
    process = made.process("1GiB")
    process("context(0)")
    for expression, _ in CALLS.values():
        process(f"[alloc({64 * MIB}) for _ in range(64)]")
        process(expression)
    assert made.by_driver == (0, 0)
    assert made.by_library > 0


def test_a_full_gpu_is_a_refusal_of_the_driver(pod):
    made = pod(backend="none")
    made.stranger()(f"[context(0), alloc({23 * GIB})][1]")
    process = made.process("4GiB")
    process("context(0)")
    assert process(f"alloc({2 * GIB})") == OOM
    assert made.by_driver == (1, 2 * GIB)


@pytest.mark.parametrize(
    "expression",
    [CALLS["cuMemAlloc_v2"][0], CALLS["cuMemAllocPitch_v2"][0], CALLS["cuMemAllocAsync"][0]],
    ids=["linear", "pitch", "pool"],
)
def test_what_goes_to_the_host_instead_is_not_refused(pod, expression):
    made = pod()
    made.limit(CONTEXT + 64 * MIB)
    process = made.process("8GiB", VCUDA_PHYSICAL_LIMIT="4GiB")
    process("context(0)")
    good = expression if expression.startswith("call") else f"min({expression}, 0)"
    assert process(good) == 0
    assert made.by_driver == (0, 0)
    process(f"[call('cuMemAllocManaged', byref(c_uint64()), c_size_t({64 * MIB}), 1) for _ in range(62)]")
    assert process(f"abs({expression})") == 2
    assert made.by_driver == (1, 128 * MIB), "there is no room for it on the host either"


# --- what the library measures --------------------------------------------------------------------------------------


def test_a_limit_does_not_end_the_charge_of_exported_memory(pod):
    """What NVML says is in use becomes that of the group, which is less: that is no sign that the memory is gone."""
    made = pod()
    made.stranger()(f"[context(0), alloc({9 * GIB})][1]")
    load = (
        "[v := __import__('tests.native.programs.vmm', fromlist=['Driver']), "
        "globals().update(d=v.Driver(0), prop=v.prop), 0][2]"
    )
    exporter, importer = made.process("1GiB"), made.stranger()
    exporter(load)
    importer(load)
    _, handle = exporter(f"d.create({512 * MIB}, prop(0, 1, 1))")
    _, fd = exporter(f"d.export({handle})")
    assert importer(f"d.take_in_from({exporter.pid}, {fd})[0]") == 0
    exporter(f"os.close({fd})")
    assert exporter(f"d.release({handle})") == 0
    made.limit(2 * GIB)
    assert exporter(f"d.create({512 * MIB})[0]") == 2, "another process still holds it"


# --- NVML's own functions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["misc", "dmem"])
def test_what_a_container_is_told_of_the_limit(pod, backend):
    made = pod(backend=backend)
    made.limit(4 * GIB + MARGIN)
    process = made.process("4GiB", FAKEDRIVER_ADMIN="no")
    process(f"[context(0), alloc({GIB})]")
    ask = f"get_limit({str(made.group)!r})"
    assert process(ask) == [0, 4 * GIB, GIB + CONTEXT], "the quota, as everywhere else"
    assert made.agent(ask) == [0, 4 * GIB + MARGIN, GIB + CONTEXT]
    made.limit(2 * GIB)
    assert process(ask) == [0, 2 * GIB, GIB + CONTEXT], "less than the quota is told as it is"
    assert process(f"set_limit({str(made.group)!r}, {8 * GIB})") == NO_PERMISSION


@pytest.mark.parametrize(("backend", "code"), [("none", FUNCTION_NOT_FOUND), ("off", NOT_SUPPORTED)])
def test_a_driver_without_limits_says_so_itself(pod, backend, code):
    made = pod(backend=backend)
    process = made.process("4GiB")
    process("context(0)")
    assert process(f"get_limit({str(made.group)!r})") == [-code]
    assert process(f"set_limit({str(made.group)!r}, 1)") == code
