# SPDX-License-Identifier: Apache-2.0
"""Vital signs and events by a driver made of functions; tests/integration has the simulated library."""

from types import SimpleNamespace

import pynvml
import pytest

from agent.inventory import nvml_health
from agent.inventory.source import GpuEvent, Vitals

XID, DBE = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeDoubleBitEccError


def answers(monkeypatch, **calls):
    """Each call of NVML returns what CALLS say; an int is raised as that NVML error, what is missing is unsupported."""

    def made(name):
        def call(*_):
            value = calls.get(name, pynvml.NVML_ERROR_NOT_SUPPORTED)
            if isinstance(value, list):
                value = value.pop(0)
            if isinstance(value, int) and not isinstance(value, bool):
                raise pynvml.NVMLError(value)
            return value() if callable(value) else value

        return call

    for name in dir(pynvml):
        if name.startswith(("nvmlDevice", "nvmlEventSet")) and callable(getattr(pynvml, name)):
            monkeypatch.setattr(nvml_health.pynvml, name, made(name))


def field(value, result=pynvml.NVML_SUCCESS):
    return lambda: [SimpleNamespace(nvmlReturn=result, value=SimpleNamespace(uiVal=value))]


def test_a_gpu_that_says_nothing_is_well(monkeypatch):
    answers(monkeypatch, nvmlDeviceGetMemoryInfo=object())
    assert nvml_health.vitals(1) == Vitals()


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, True),
        (pynvml.NVML_ERROR_RESET_REQUIRED, True),
        (pynvml.NVML_ERROR_UNKNOWN, False),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, False),
        (pynvml.NVML_ERROR_UNINITIALIZED, False),
    ],
)
def test_only_a_lost_gpu_is_lost(monkeypatch, error, lost):
    answers(monkeypatch, nvmlDeviceGetMemoryInfo=error)
    found = nvml_health.vitals(1)
    assert (found.lost, bool(found.silent)) == (lost, not lost)


def test_everything_a_gpu_can_say(monkeypatch):
    answers(
        monkeypatch,
        nvmlDeviceGetMemoryInfo=object(),
        nvmlDeviceGetTotalEccErrors=lambda: 3,
        nvmlDeviceGetRemappedRows=lambda: [0, 1, 0, 1],
        nvmlDeviceGetFieldValues=field(pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET),
    )
    assert nvml_health.vitals(1) == Vitals(False, 3, True, "reset of the GPU")


@pytest.mark.parametrize(
    "fields",
    [field(0), field(1, pynvml.NVML_ERROR_NOT_SUPPORTED), field(99), pynvml.NVML_ERROR_FUNCTION_NOT_FOUND],
)
def test_without_a_need_nothing_is_asked_for(monkeypatch, fields):
    answers(monkeypatch, nvmlDeviceGetMemoryInfo=object(), nvmlDeviceGetFieldValues=fields)
    assert nvml_health.vitals(1).recovery == ""


def event(gpu, kind, data):
    return lambda: SimpleNamespace(device=gpu, eventType=kind, eventData=data)


@pytest.fixture
def listening(monkeypatch):
    """listening(*waits) -> a listener whose waits end so."""
    monkeypatch.setattr(nvml_health, "_address", lambda handle: handle)

    def start(*waits, **more):
        answers(
            monkeypatch,
            nvmlEventSetCreate=object(),
            nvmlEventSetFree=lambda: None,
            nvmlDeviceGetSupportedEventTypes=lambda: XID | DBE,
            nvmlDeviceRegisterEvents=lambda: None,
            nvmlEventSetWait=list(waits),
            **more,
        )
        return nvml_health.Listener()

    return start


def test_an_xid_comes_with_its_gpu(listening):
    listener = listening(event(7, XID, 95), event(7, DBE, 0), event(9, XID, 31))
    found = [listener.wait({"GPU-a": 7}, 0.0) for _ in range(3)]
    assert found == [(GpuEvent("GPU-a", 95),), (GpuEvent("GPU-a", None),), (GpuEvent("", 31),)]


def test_a_quiet_while_is_no_event(listening):
    assert listening(pynvml.NVML_ERROR_TIMEOUT).wait({"GPU-a": 7}, 0.0) == ()


def test_after_an_error_it_begins_anew(listening):
    listener = listening(pynvml.NVML_ERROR_GPU_IS_LOST, event(7, XID, 79))
    assert listener.wait({"GPU-a": 7}, 0.0) == ()
    assert listener.wait({"GPU-a": 7}, 0.0) == (GpuEvent("GPU-a", 79),)


def test_a_gpu_that_cannot_be_listened_to_does_not_keep_the_others_from_it(listening):
    listener = listening(event(8, XID, 95))
    assert listener.wait({"GPU-a": 7, "GPU-b": 8}, 0.0) == (GpuEvent("GPU-b", 95),)


def test_a_gpu_that_could_not_be_listened_to_is_tried_again(listening, monkeypatch):
    registered = []

    def register(handle, *_):
        registered.append(handle)
        if len(registered) == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    listener = listening(*[pynvml.NVML_ERROR_TIMEOUT] * 3)
    monkeypatch.setattr(nvml_health.pynvml, "nvmlDeviceRegisterEvents", register)
    listener.wait({"GPU-a": 7, "GPU-b": 8}, 0.0)
    listener.wait({"GPU-a": 7, "GPU-b": 8}, 0.0)
    assert registered == [7, 8], "not at once"
    monkeypatch.setattr(nvml_health.time, "monotonic", lambda: listener._register_at)
    listener.wait({"GPU-a": 7, "GPU-b": 8}, 0.0)
    assert registered == [7, 8, 7, 8]


def test_waits_that_fail_again_and_again_are_noticed(listening):
    errors = [pynvml.NVML_ERROR_UNINITIALIZED] * 6
    listener = listening(*errors, pynvml.NVML_ERROR_TIMEOUT)
    heard = []
    for _ in range(7):
        listener.wait({"GPU-a": 7}, 0.0)
        heard.append(listener.deaf)
    assert heard == [False] * 5 + [True, False]
