# SPDX-License-Identifier: Apache-2.0
"""What NVML tells of the GPUs' health: events as they happen, and vital signs when asked.

Beside `nvml` the only module that calls `pynvml`. Handles come from there; everything here may block or fail for a
single GPU, and a GPU that fails has no answer or is lost.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pynvml

from agent.inventory.source import GpuEvent, Vitals

__all__ = ["Listener", "asked", "vitals"]

_T = TypeVar("_T")
_WANTED = int(pynvml.nvmlEventTypeXidCriticalError) | int(pynvml.nvmlEventTypeDoubleBitEccError)
_DEAF_AFTER = 6  # waits in a row that end with an error
_REGISTER_AGAIN = 30.0  # seconds
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset of the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot of the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "end of all programs that use peer access",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "end of all programs and reset of the GPU",
}


def vitals(handle: Any) -> Vitals:
    """The vital signs of one GPU."""
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            return Vitals(lost=True)
        return Vitals(silent=f"the driver does not answer for it (NVML: {error})")
    rows = asked(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    count = asked(
        lambda: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
    )
    return Vitals(
        lost=False,
        uncorrectable=None if count is None else int(count),
        remap_failed=rows is not None and bool(rows[3]),
        recovery=_recovery(handle),
    )


def _recovery(handle: Any) -> str:
    values = asked(
        lambda: pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    )
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return ""
    return _ACTIONS.get(int(values[0].value.uiVal), "")


class Listener:
    """Waits for events of GPUs. For one thread; `renew` may be called from any."""

    def __init__(self) -> None:
        self._set: Any = None
        self._names: dict[int, str] = {}
        self._stale = threading.Event()
        self._failures = 0
        self._register_at = math.inf  # some GPUs could not be listened to: then again

    @property
    def deaf(self) -> bool:
        """Whether waiting fails again and again."""
        return self._failures >= _DEAF_AFTER

    def renew(self) -> None:
        """Has every GPU registered anew before the next wait: some may be new, or back."""
        self._stale.set()

    def wait(self, gpus: Mapping[str, Any], seconds: float) -> tuple[GpuEvent, ...]:
        """The events of CARDS (handles by UUID) that come within SECONDS: as soon as there is one."""
        try:
            if self._set is None or self._stale.is_set() or time.monotonic() >= self._register_at:
                self._register(gpus)
            data = pynvml.nvmlEventSetWait(self._set, int(seconds * 1000))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._failures += 1
                self.close()  # a lost GPU can end every wait at once: begin again without it, and not at full speed
                time.sleep(seconds)
            else:
                self._failures = 0
            return ()
        self._failures = 0
        name = self._names.get(_address(data.device), "")
        if int(data.eventType) == pynvml.nvmlEventTypeXidCriticalError:
            return (GpuEvent(name, int(data.eventData)),)
        return (GpuEvent(name, None),)

    def begin(self, gpus: Mapping[str, Any]) -> None:
        """Registers CARDS now. Not while another thread waits; where it fails, the next wait does it."""
        try:
            self._register(gpus)
        except pynvml.NVMLError:
            self.close()

    def close(self) -> None:
        """Lets go of the event set. Not while another thread waits."""
        event_set, self._set = self._set, None
        if event_set is not None:
            asked(lambda: pynvml.nvmlEventSetFree(event_set))

    def _register(self, gpus: Mapping[str, Any]) -> None:
        self.close()
        self._stale.clear()
        self._set = pynvml.nvmlEventSetCreate()
        self._names = {_address(handle): uuid for uuid, handle in gpus.items()}
        registered = [self._registered(handle) for handle in gpus.values()]
        self._register_at = math.inf if all(registered) else time.monotonic() + _REGISTER_AGAIN

    def _registered(self, handle: Any) -> bool:
        """Whether the GPU is listened to, or has nothing to say."""
        try:
            wanted = _WANTED & int(pynvml.nvmlDeviceGetSupportedEventTypes(handle) or 0)
            if wanted:
                pynvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except pynvml.NVMLError as error:
            return bool(error.value == pynvml.NVML_ERROR_NOT_SUPPORTED)
        return True


def _address(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def asked(query: Callable[[], _T]) -> _T | None:
    """The answer, or None where the driver has none."""
    try:
        return query()
    except pynvml.NVMLError:
        return None
