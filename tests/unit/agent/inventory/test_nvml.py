# SPDX-License-Identifier: Apache-2.0
"""The NVML door against a driver made of a dictionary; tests/integration has it against the simulated library."""

# ruff: noqa: N802  (NVML names its functions)

import threading
from types import SimpleNamespace

import pynvml
import pytest

from agent.inventory import nvml
from agent.inventory.nvml import NvmlSource
from gigaslice.core.errors import MissingError
from gigaslice.core.model import LinkLevel
from tests.fakes.nodes import GIB, uuid

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
LOST = pynvml.NVML_ERROR_GPU_IS_LOST


class Driver:
    """Answers by function name and arguments; an int of `fails` is raised as that NVML error."""

    def __init__(self, gpus=2):
        self.gpus = gpus
        self.fails = {}
        self.levels = {}
        self.links = {}  # (GPU, link) -> ("gpu", peer) | ("switch",)
        self.total, self.reserved = 24 * GIB, 0
        self.processes = {}
        self.samples = {}
        self.mig = {}
        self.near = {}
        self.started = 0

    def install(self, monkeypatch):
        for name in dir(self):
            if name.startswith("nvml"):
                monkeypatch.setattr(nvml.pynvml, name, self._guarded(name))
        return self

    def _guarded(self, name):
        def call(*arguments, **keywords):
            for key in ((name, *arguments), name):
                if key in self.fails:
                    raise pynvml.NVMLError(self.fails[key])
            return getattr(self, name)(*arguments, **keywords)

        return call

    def nvmlInit(self):
        self.started += 1

    def nvmlShutdown(self):
        self.started -= 1

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return 12080

    def nvmlDeviceGetCount(self):
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, gpu):
        return uuid(gpu)

    def nvmlDeviceGetName(self, gpu):
        return b"NVIDIA L4" if gpu else "NVIDIA L4"

    def nvmlDeviceGetMemoryInfo(self, gpu, version=None):
        if version is None:
            return SimpleNamespace(total=self.total)
        return SimpleNamespace(total=self.total, reserved=self.reserved)

    def nvmlDeviceGetMigMode(self, gpu):
        if gpu not in self.mig:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return [self.mig[gpu], 0]

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(busId=f"00000000:{0x3B + gpu:02X}:00.0")

    def nvmlDeviceGetMemoryAffinity(self, gpu, words, scope):
        if gpu not in self.near:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return [1 << self.near[gpu]] + [0] * (words - 1)

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return self.levels.get((one, other), 40)

    def nvmlDeviceGetNvLinkState(self, gpu, link):
        if link >= 4:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int((gpu, link) in self.links)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu, link):
        kind = self.links[gpu, link][0]
        return (
            pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if kind == "switch" else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
        )

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu, link):
        return SimpleNamespace(busId=f"0000:{0x3B + self.links[gpu, link][1]:02x}:00.0")

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.get(gpu, {}).items()
        ]

    def nvmlDeviceGetProcessUtilization(self, gpu, last_seen):
        found = [one for one in self.samples.get(gpu, []) if one.timeStamp > last_seen]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu):
        raise pynvml.NVMLError(NOT_SUPPORTED)


@pytest.fixture
def driver(monkeypatch):
    return Driver().install(monkeypatch)


@pytest.fixture
def source(tmp_path):
    node = tmp_path / "bus/pci/devices/0000:3c:00.0"
    node.mkdir(parents=True)
    (node / "numa_node").write_text("1\n")
    return NvmlSource(GIB, tmp_path)


def test_gpus_with_their_memory_and_place(driver, source):
    found = source.scan()
    assert found.uuids == (uuid(0), uuid(1))
    assert [gpu.model for gpu in found.gpus] == ["NVIDIA L4", "NVIDIA L4"]
    assert [gpu.numa_node for gpu in found.gpus] == [None, 1]
    assert [gpu.slices for gpu in found.gpus] == [24, 24]
    assert found.topology.levels[0][1] is LinkLevel.NODE
    assert found.warnings == ()


def test_what_else_a_gpu_is_told_by(driver, source, tmp_path):
    place = tmp_path / "devices/pci0000:3a/0000:3b:00.0"
    place.mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:3b:00.0").symlink_to(place)
    first, second = (source.scan().properties[name] for name in (uuid(0), uuid(1)))
    assert (first["cudaDriver"], first["pcieRoot"]) == ("12.8", "pci0000:3a")
    assert second["cudaDriver"] == "12.8" and "pcieRoot" not in second


def test_a_machine_whose_sysfs_does_not_tell_is_asked_through_the_driver(driver, source):
    driver.near = {0: 3, 1: 3}
    assert [gpu.numa_node for gpu in source.scan().gpus] == [3, 1]


def test_what_the_driver_keeps_is_not_shared_out(driver, source):
    driver.reserved = GIB // 2
    assert [gpu.slices for gpu in source.scan().gpus] == [23, 23]


def test_an_old_driver_without_the_reserved_figure(driver, source, monkeypatch):
    def old(gpu, version=None):
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=24 * GIB)

    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetMemoryInfo", old)
    assert [gpu.slices for gpu in source.scan().gpus] == [24, 24]


def test_direct_links_are_counted_per_peer(driver, source):
    driver.links = {(0, 0): ("gpu", 1), (0, 1): ("gpu", 1), (1, 2): ("gpu", 0), (1, 3): ("gpu", 0)}
    assert source.scan().topology.nvlinks == ((0, 2), (2, 0))


def test_links_to_a_switch_join_as_many_as_both_have(driver, source):
    driver.links = {
        (0, 0): ("switch",),
        (0, 1): ("switch",),
        (0, 2): ("switch",),
        (1, 0): ("switch",),
        (1, 1): ("switch",),
    }
    assert source.scan().topology.nvlinks == ((0, 2), (2, 0))


def test_an_asymmetric_count_is_no_link_and_a_warning(driver, source):
    driver.links = {(0, 0): ("gpu", 1), (0, 1): ("gpu", 1), (1, 0): ("gpu", 0)}
    found = source.scan()
    assert found.topology.nvlinks == ((0, 0), (0, 0))
    assert any("NVLinks ignored" in sentence for sentence in found.warnings)


def test_a_failing_link_query_costs_links_and_not_the_node(driver, source):
    driver.links = {(1, 0): ("gpu", 0)}
    driver.fails["nvmlDeviceGetNvLinkState", 0, 0] = pynvml.NVML_ERROR_UNKNOWN
    found = source.scan()
    assert len(found.gpus) == 2
    assert found.topology.nvlinks == ((0, 0), (0, 0))
    assert any("GPU 0: NVLinks ignored" in sentence for sentence in found.warnings)


def test_asymmetric_or_failing_levels_are_far_and_a_warning(driver, source):
    driver.levels = {(0, 1): 10, (1, 0): 30}
    found = source.scan()
    assert found.topology.levels[0][1] is LinkLevel.HOSTBRIDGE
    assert found.warnings
    driver.fails["nvmlDeviceGetTopologyCommonAncestor"] = pynvml.NVML_ERROR_UNKNOWN
    assert source.scan().topology.levels[0][1] is LinkLevel.SYSTEM


def test_one_lost_gpu_is_left_out_with_a_warning(driver, source):
    driver.fails["nvmlDeviceGetUUID", 0] = LOST
    found = source.scan()
    assert found.uuids == (uuid(1),)
    assert any("GPU 0 is left out" in sentence for sentence in found.warnings)


def test_a_gpu_in_mig_mode_is_not_shared(driver, source):
    driver.mig = {0: pynvml.NVML_DEVICE_MIG_ENABLE, 1: pynvml.NVML_DEVICE_MIG_DISABLE}
    found = source.scan()
    assert found.uuids == (uuid(1),)
    assert any("MIG mode is on" in sentence for sentence in found.warnings)


def test_a_gpu_smaller_than_a_slice(driver, tmp_path):
    with pytest.raises(MissingError, match="less than one slice of 25 GiB"):
        NvmlSource(25 * GIB, tmp_path).scan()


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_NO_PERMISSION,
    ],
)
def test_without_a_driver_there_is_one_line_with_a_remedy(driver, source, call, error):
    driver.fails[call] = error
    with pytest.raises(MissingError) as caught:
        source.scan()
    assert "\n" not in str(caught.value)
    assert "--inventory FILE" in str(caught.value)


def test_a_driver_without_gpus(driver, source):
    driver.gpus = 0
    with pytest.raises(MissingError, match="no usable GPU"):
        source.scan()


def test_processes_are_bytes_by_gpu_and_pid(driver, source):
    driver.processes = {0: {41: 5 * GIB, 42: None}}
    source.scan()
    assert source.process_memory() == {uuid(0): {41: 5 * GIB, 42: 0}, uuid(1): {}}


def test_what_processes_used_is_what_was_sampled_since(driver, source):
    sample = lambda at, pid, percent: SimpleNamespace(timeStamp=at, pid=pid, smUtil=percent)  # noqa: E731
    source.scan()
    assert source.process_busy(uuid(0)) == {}
    driver.samples = {0: [sample(1000, 41, 30), sample(2000, 41, 20), sample(2000, 42, 4_000_000)]}
    assert source.process_busy(uuid(0)) == {41: 0.3, 42: 1.0}
    assert source.process_busy(uuid(0)) == {}, "it is not work anew"
    driver.samples[0].append(sample(3000, 41, 7))
    assert source.process_busy(uuid(0)) == {41: 0.07}
    driver.fails["nvmlDeviceGetProcessUtilization", 0, 3000] = NOT_SUPPORTED
    assert source.process_busy(uuid(0)) is None
    assert source.process_busy("GPU-nowhere") is None


def test_samples_that_come_between_the_two_questions_are_asked_for_again(driver, source, monkeypatch):
    sample = SimpleNamespace(timeStamp=1000, pid=41, smUtil=30)
    answers: list[object] = []

    def one_more_each_time(gpu, last_seen):
        answers.append(gpu)
        if len(answers) < tries:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        return [sample]

    source.scan()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", one_more_each_time)
    tries = 3
    assert source.process_busy(uuid(0)) == {41: 0.3}
    answers.clear()
    tries = 100
    assert source.process_busy(uuid(0)) is None, "not for ever"
    assert len(answers) < 10


def test_a_gpu_that_does_not_tell_its_processes_is_left_out(driver, source):
    source.scan()
    driver.fails["nvmlDeviceGetComputeRunningProcesses", 0] = LOST
    assert source.process_memory() == {uuid(1): {}}
    driver.fails["nvmlDeviceGetComputeRunningProcesses"] = LOST
    assert source.process_memory() is None


def test_the_driver_is_opened_once_and_let_go_once(driver, source):
    source.scan()
    source.scan()
    assert driver.started == 1
    source.close()
    source.close()
    assert driver.started == 0


# --- a driver that was reloaded or swapped ----------------------------------------------------------------------------


class Reloaded(Driver):
    """A driver whose handles and event sets are worth nothing once it was reloaded, as after rmmod and modprobe.

    It answers calls of the old session with CODE, and `nvmlInit` with INIT, where that is set.
    """

    def __init__(self, gpus=2):
        super().__init__(gpus)
        self.module = self.session = 0  # which load of the module, and which one NVML was initialised with
        self.code = pynvml.NVML_ERROR_UNKNOWN
        self.init = None
        self.sets, self.heard = 0, []

    def reload(self, code, init=None):
        self.module, self.code, self.init = self.module + 1, code, init

    def check(self):
        if self.session != self.module:
            raise pynvml.NVMLError(self.code)

    def _guarded(self, name):
        inner = super()._guarded(name)

        def call(*arguments, **keywords):
            if name not in ("nvmlInit", "nvmlShutdown"):
                self.check()
            arguments = [self.index(one) for one in arguments]
            return inner(*arguments, **keywords)

        return call

    def index(self, handle):
        if not isinstance(handle, tuple):
            return handle
        if handle[0] != self.module:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return handle[1]

    def nvmlInit(self):
        super().nvmlInit()
        if self.init is not None:
            self.started -= 1
            raise pynvml.NVMLError(self.init)
        self.session = self.module

    def nvmlDeviceGetHandleByIndex(self, index):
        return (self.module, index)

    def nvmlEventSetCreate(self):
        self.sets += 1
        return (self.module, 100 + self.sets)

    def nvmlEventSetFree(self, events):
        pass

    def nvmlDeviceGetSupportedEventTypes(self, gpu):
        return pynvml.nvmlEventTypeXidCriticalError

    def nvmlDeviceRegisterEvents(self, gpu, types, events):
        pass

    def nvmlEventSetWait(self, events, milliseconds):
        if not self.heard:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        gpu = (self.module, self.heard.pop())
        return SimpleNamespace(device=gpu, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=79)


SWAPPED = [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST,
           pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_UNINITIALIZED]  # fmt: skip


@pytest.fixture
def reloaded(monkeypatch):
    monkeypatch.setattr(nvml.nvml_health, "_address", lambda handle: handle)
    driver = Reloaded().install(monkeypatch)
    source = NvmlSource(GIB)
    source.scan()
    assert source.events(0.0) == ()
    return driver, source


@pytest.mark.parametrize("code", SWAPPED)
def test_a_driver_that_was_swapped_is_opened_anew_and_its_errors_are_heard_again(reloaded, code):
    driver, source = reloaded
    driver.reload(code)
    assert set(source.vitals().values()) == {nvml.Vitals()}, "the same question has its answer already"
    assert driver.started == 1, "shut down and initialised"
    assert source.process_memory() is not None
    assert driver.sets == 2, "with an event set of its own, at once"
    driver.heard.append(1)
    assert source.events(0.0) == (nvml.GpuEvent(uuid(1), 79),)
    assert [gpu.uuid for gpu in source.scan().gpus] == [uuid(0), uuid(1)]
    source.close()
    assert driver.started == 0


@pytest.mark.parametrize("code", SWAPPED)
def test_while_it_cannot_be_opened_every_gpu_is_silent_and_back_with_it(reloaded, code):
    driver, source = reloaded
    driver.reload(code, init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    for _ in range(20):
        found = source.vitals()
        assert set(found) == {uuid(0), uuid(1)}
        assert all("cannot be reached (NVML: Driver Not Loaded)" in one.silent for one in found.values())
        assert source.process_memory() is None and source.process_busy(uuid(0)) is None
        assert source.events(0.0) == ()
    with pytest.raises(MissingError):
        source.scan()
    driver.init = None
    assert set(source.vitals().values()) == {nvml.Vitals()}
    driver.heard.append(0)
    assert source.events(0.0) == (nvml.GpuEvent(uuid(0), 79),)


def test_a_library_that_stays_the_old_one_ends_the_process(reloaded):
    driver, source = reloaded
    mismatch = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    driver.reload(mismatch, init=mismatch)
    assert all(one.silent for one in source.vitals().values())
    assert all(one.silent for one in source.vitals().values())
    with pytest.raises(MissingError, match="made anew"):
        source.vitals()


def test_one_gpu_that_does_not_answer_costs_the_others_one_scan(reloaded, monkeypatch):
    driver, source = reloaded
    driver.fails["nvmlDeviceGetMemoryInfo", 1] = pynvml.NVML_ERROR_UNKNOWN
    for _ in range(10):
        found = source.vitals()
        assert not found[uuid(0)].silent and found[uuid(1)].silent
        source.events(0.0)
    assert driver.sets == 2, "events of the others are missed once"
    driver.fails.clear()
    assert not source.vitals()[uuid(1)].silent
    driver.heard.append(1)
    assert source.events(0.0) == (nvml.GpuEvent(uuid(1), 79),)


def test_events_that_fail_for_good_have_the_driver_opened_anew(reloaded):
    driver, source = reloaded
    driver.fails["nvmlEventSetWait"] = pynvml.NVML_ERROR_UNINITIALIZED
    for _ in range(6):
        source.events(0.0)
    assert "cannot be heard" in " ".join(source.scan().warnings)
    driver.fails.clear()
    source.vitals()
    driver.heard.append(1)
    assert source.events(0.0) == (nvml.GpuEvent(uuid(1), 79),)
    assert "cannot be heard" not in " ".join(source.scan().warnings)


def test_a_call_that_hangs_keeps_the_driver_from_being_opened_anew_and_nothing_else(reloaded, monkeypatch):
    driver, source = reloaded
    hangs, going = threading.Event(), threading.Event()

    def hang(*_):
        going.set()
        hangs.wait(60)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetComputeRunningProcesses", hang)
    source._session._patience = 0.01
    thread = threading.Thread(target=source.process_memory)
    thread.start()
    going.wait(60)
    try:
        driver.reload(pynvml.NVML_ERROR_UNKNOWN)
        assert all(one.silent for one in source.vitals().values())
        source.close()
        assert driver.started == 1, "nothing shuts it down under a call"
    finally:
        hangs.set()
        thread.join()
