# SPDX-License-Identifier: Apache-2.0
"""The door to NVML against a driver made of a dictionary; the simulated driver has the calls' rules behind it."""

# ruff: noqa: N802  (NVML names its functions)

from __future__ import annotations

import ctypes

import pynvml
import pytest

from gigaslice.core.errors import MissingError
from gigaslice.core.limits.driver_limit_messages import GpuSupport
from gigaslice.roles.driver_limits import nvml
from gigaslice.roles.driver_limits.memory_limits import Limit, LimitCallError, MemoryLimits
from gigaslice.roles.driver_limits.nvml import NvmlLimits
from tests.fakes.nodes import GIB, uuid

MAX = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
SET, GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


class Driver:
    """Answers by function name; an int of `fails` is the error. The two calls are C functions, given as such."""

    def __init__(self):
        self.fails = {}
        self.limits = {}
        self.used = 0
        self.mig = set()
        self.started = 0
        self.lacking = set()

    def install(self, monkeypatch):
        for name in dir(self):
            if name.startswith("nvml"):
                monkeypatch.setattr(nvml.pynvml, name, self._guarded(name))
        monkeypatch.setattr(nvml.pynvml, "_nvmlGetFunctionPointer", self._pointer)
        return self

    def _guarded(self, name):
        def call(*arguments):
            if name in self.fails:
                raise pynvml.NVMLError(self.fails[name])
            return getattr(self, name)(*arguments)

        return call

    def _pointer(self, name):
        if name in self.lacking:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return self._set if name == SET else self._get

    def _set(self, handle, reference):
        given = ctypes.cast(reference, ctypes.POINTER(nvml._SetLimits)).contents
        if SET not in self.fails:
            self.limits[handle, given.name_space] = given.soft_limit, given.hard_limit
        return self.fails.get(SET, 0)

    def _get(self, handle, reference):
        asked = ctypes.cast(reference, ctypes.POINTER(nvml._GetLimits)).contents
        if GET in self.fails:
            return self.fails[GET]
        if (handle, asked.name_space) not in self.limits:
            return pynvml.NVML_ERROR_NOT_FOUND
        asked.soft_limit, asked.hard_limit = self.limits[handle, asked.name_space]
        asked.current_used = self.used
        return 0

    def nvmlInit(self):
        self.started += 1

    def nvmlShutdown(self):
        self.started -= 1

    def nvmlSystemGetDriverVersion(self):
        return "615.10"

    def nvmlDeviceGetCount(self):
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):
        if index == 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetUUID(self, handle):
        return uuid(handle)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return type("Memory", (), {"total": (handle + 1) * 40 * GIB})

    def nvmlDeviceGetMigMode(self, handle):
        return [int(handle in self.mig), 0]

    def nvmlDeviceGetPersistenceMode(self, handle):
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 1


@pytest.fixture
def driver(monkeypatch):
    return Driver().install(monkeypatch)


@pytest.fixture
def limits(driver) -> MemoryLimits:
    opened = NvmlLimits()
    opened.open()
    return opened


def test_gpus_that_can_be_limited(driver, limits):
    assert limits.gpus() == {uuid(0): GpuSupport(40 * GIB, True), uuid(1): GpuSupport(80 * GIB, None)}
    assert limits.version() == "615.10" and limits.refusal() == ""


def test_a_gpu_in_parts_is_left_out(driver, limits):
    driver.mig = {0}
    limits.renew()
    assert set(limits.gpus()) == {uuid(1)}
    with pytest.raises(LimitCallError, match="MIG mode"):
        limits.set(uuid(0), "/sys/fs/cgroup/a", 1)


def test_a_limit_is_set_without_a_soft_one_and_read(driver, limits):
    assert limits.get(uuid(1), "/sys/fs/cgroup/ä") is None
    limits.set(uuid(1), "/sys/fs/cgroup/ä", 8 * GIB)
    assert driver.limits == {(1, "/sys/fs/cgroup/ä".encode()): (0, 8 * GIB)}
    driver.used = 5
    assert limits.get(uuid(1), "/sys/fs/cgroup/ä") == Limit(8 * GIB, 5)


def test_the_largest_number_is_no_limit(driver, limits):
    driver.limits[0, b"/a"] = 0, MAX
    assert limits.get(uuid(0), "/a") == Limit(None, 0)


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_both_backends_words_for_no_limit(driver, limits, error):
    driver.fails[GET] = error
    assert limits.get(uuid(0), "/a") is None and not limits.silent


def test_a_refusal_is_a_sentence(driver, limits):
    driver.fails[SET] = pynvml.NVML_ERROR_NO_PERMISSION
    with pytest.raises(LimitCallError, match="CAP_SYS_ADMIN"):
        limits.set(uuid(0), "/a", 1)
    driver.fails[SET] = pynvml.NVML_ERROR_NOT_SUPPORTED
    with pytest.raises(LimitCallError, match="RmMemacctMode=0"):
        limits.set(uuid(0), "/a", 1)
    driver.fails[SET] = pynvml.NVML_ERROR_INVALID_ARGUMENT
    with pytest.raises(LimitCallError, match="refuses 1 bytes for /a"):
        limits.set(uuid(0), "/a", 1)
    driver.fails[GET] = pynvml.NVML_ERROR_OPERATING_SYSTEM
    with pytest.raises(LimitCallError, match="does not tell the limit of /a"):
        limits.get(uuid(0), "/a")
    assert not limits.silent, "these are answers of a driver that works"


@pytest.mark.parametrize("lacking", [SET, GET])
def test_a_driver_before_the_calls_is_said_to_be_one(driver, limits, lacking):
    driver.lacking = {lacking}
    assert lacking in limits.refusal() and "615" in limits.refusal()


def test_a_library_that_says_itself_that_there_is_no_call_is_believed(driver, limits):
    driver.fails[GET] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert GET in limits.refusal()


def test_nothing_but_errors_is_silence_until_it_is_opened_anew(driver, limits):
    driver.fails[GET] = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(LimitCallError):
        limits.get(uuid(0), "/a")
    assert limits.silent
    limits.renew()
    assert not limits.silent and driver.started == 1


def test_what_answered_before_it_was_reloaded_is_silent_too(driver, limits):
    limits.set(uuid(0), "/a", 1)
    limits.open()
    driver.fails.update({GET: pynvml.NVML_ERROR_UNINITIALIZED, SET: pynvml.NVML_ERROR_GPU_IS_LOST})
    for call in (lambda: limits.get(uuid(0), "/a"), lambda: limits.set(uuid(0), "/a", 1)):
        with pytest.raises(LimitCallError):
            call()
    assert limits.silent


def test_one_gpu_that_is_lost_is_no_silence(driver, limits):
    driver.fails[GET] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(LimitCallError):
        limits.get(uuid(0), "/a")
    del driver.fails[GET]
    limits.get(uuid(1), "/a")
    assert not limits.silent


def test_a_driver_that_is_not_there_is_tried_again(driver):
    driver.fails["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    limits = NvmlLimits()
    for _ in range(5):
        with pytest.raises(LimitCallError, match="cannot be reached"):
            limits.open()
    del driver.fails["nvmlInit"]
    limits.open()
    assert len(limits.gpus()) == 2


def test_a_driver_that_was_replaced_ends_the_role_when_that_lasts(driver, limits):
    driver.fails["nvmlInit"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    for _ in range(2):
        with pytest.raises(LimitCallError):
            limits.renew()
    with pytest.raises(MissingError, match="made anew"):
        limits.renew()
    assert limits.gpus() == {}


def test_the_structures_are_those_of_nvidias_header():
    for own, theirs in (
        (nvml._SetLimits, pynvml.c_nvmlSetMemoryLimits_v1_t),
        (nvml._GetLimits, pynvml.c_nvmlGetMemoryLimits_v1_t),
    ):
        assert ctypes.sizeof(own) == ctypes.sizeof(theirs)
        assert [(getattr(own, name).offset, getattr(own, name).size) for name, _ in own._fields_] == [
            (getattr(theirs, name).offset, getattr(theirs, name).size) for name, _ in theirs._fields_
        ]
    assert nvml._MOST == MAX
