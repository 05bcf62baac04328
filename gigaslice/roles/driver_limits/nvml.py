# SPDX-License-Identifier: Apache-2.0
"""The driver's memory limits through NVML: this role's only door to `pynvml`.

NVML stays open between requests. A driver that was reloaded answers an open NVML with errors for good, so it is opened
anew when nothing but errors comes. One that was replaced cannot be opened by a process that has the old library:
then the role ends, and its container is made anew. Tests: tests/unit/gigaslice/roles/driver_limits/test_nvml.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pynvml

from gigaslice.core.limits.driver_limit_messages import GpuSupport
from gigaslice.roles.driver_limits.memory_limits import Limit, LimitCallError
from gigaslice.runtime.session import ReplacedDriver, Session, SessionBusyError

__all__ = ["NvmlLimits"]

_SET, _GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"
_MOST = (1 << 64) - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX
_NONE = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED)
"""Get's answers for no limit: not found where the kernel counts; not supported where the driver does."""
_ANSWERS = (
    *_NONE,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_OPERATING_SYSTEM,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)
"""Errors of a driver that works."""
_REMEDIES = {
    pynvml.NVML_ERROR_NO_PERMISSION: "; this container needs CAP_SYS_ADMIN in the first user namespace",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "; is the driver's module loaded with RmMemacctMode=0?",
}
T = TypeVar("T")


class _SetLimits(ctypes.Structure):  # nvml.h: nvmlSetMemoryLimits_v1_t; pynvml has it only since 13.615
    _fields_ = (
        ("name_space", ctypes.c_char_p),
        ("soft_limit", ctypes.c_ulonglong),
        ("hard_limit", ctypes.c_ulonglong),
    )


class _GetLimits(ctypes.Structure):  # nvmlGetMemoryLimits_v1_t
    _fields_ = (*_SetLimits._fields_, ("current_used", ctypes.c_ulonglong))


class NvmlLimits:
    """The `MemoryLimits` of this machine's driver."""

    def __init__(self) -> None:
        self._session = Session(self._enter, self._leave)
        self._handles: dict[str, Any] = {}
        self._gpus: dict[str, GpuSupport] = {}
        self._replaced = ReplacedDriver()
        self._answered = self._failed = 0

    @property
    def silent(self) -> bool:
        """Whether calls were made since `open` or `renew`, and none has got an answer."""
        return self._failed > 0 and self._answered == 0

    def open(self) -> None:
        """Opens NVML unless it is open. Raises LimitCallError, and MissingError for a library of another driver."""
        self._answered = self._failed = 0
        self._opened(self._session.open)

    def renew(self) -> None:
        """Opens NVML anew. Raises as `open` does."""
        self._answered = self._failed = 0
        self._opened(self._session.renew)

    def refusal(self) -> str:
        """Why there is no call to limit with; empty where there is one."""
        return next((_absent(name) for name in (_SET, _GET) if not self._has(name)), "")

    def version(self) -> str:
        """The driver's version."""
        return _text(_or_none(pynvml.nvmlSystemGetDriverVersion) or "")

    def gpus(self) -> Mapping[str, GpuSupport]:
        """The GPUs that may be limited: of one in MIG mode the parts would have to be, which cannot be."""
        return self._gpus

    def get(self, gpu: str, path: str) -> Limit | None:
        """Asks for a cgroup's limit."""
        limits = _GetLimits(name_space=os.fsencode(path))
        error = self._call(_GET, gpu, limits)
        if error is None:
            hard = None if limits.hard_limit == _MOST else limits.hard_limit
            return Limit(hard, limits.current_used)
        if error.value in _NONE:
            return None
        raise LimitCallError(f"the driver does not tell the limit of {path} (NVML: {error})") from error

    def set(self, gpu: str, path: str, hard: int) -> None:
        """Sets a cgroup's hard limit."""
        error = self._call(_SET, gpu, _SetLimits(os.fsencode(path), 0, hard))
        if error is None:
            return
        remedy = _REMEDIES.get(error.value, "")
        raise LimitCallError(f"the driver refuses {hard} bytes for {path} (NVML: {error}){remedy}") from error

    def _call(self, name: str, gpu: str, limits: ctypes.Structure) -> Any:
        """Calls the function NAME; the error, None where there is none."""
        handle = self._handles.get(gpu)
        if handle is None:
            raise LimitCallError(f"the driver does not show {gpu}, or has it in MIG mode")
        try:
            pynvml._nvmlCheckReturn(pynvml._nvmlGetFunctionPointer(name)(handle, ctypes.byref(limits)))
        except pynvml.NVMLError as error:
            if error.value not in _ANSWERS:
                self._failed += 1
                return error
            self._answered += 1
            return error
        self._answered += 1
        return None

    def _has(self, name: str) -> bool:
        """Whether the driver has the function NAME: a library may export it, and say itself that there is none."""
        limits = _GetLimits(name_space=b"/")
        try:
            function = pynvml._nvmlGetFunctionPointer(name)
            for handle in list(self._handles.values())[: name == _GET]:
                pynvml._nvmlCheckReturn(function(handle, ctypes.byref(limits)))
        except pynvml.NVMLError as error:
            return bool(error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return True

    def _opened(self, opening: Callable[[], None]) -> None:
        try:
            opening()
        except SessionBusyError:
            raise LimitCallError("the NVIDIA driver is just being opened") from None
        except pynvml.NVMLError as error:
            self._replaced.failed(error, mismatch=error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
            raise LimitCallError(f"the NVIDIA driver cannot be reached (NVML: {error})") from error
        self._replaced.opened()

    def _enter(self) -> None:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):  # one that fell off the bus
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
                total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
                mode = _or_none(lambda handle=handle: pynvml.nvmlDeviceGetMigMode(handle))  # type: ignore[misc]
                if mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
                    continue
                persistence = _or_none(lambda handle=handle: pynvml.nvmlDeviceGetPersistenceMode(handle))  # type: ignore[misc]
                self._handles[uuid] = handle
                self._gpus[uuid] = GpuSupport(total, None if persistence is None else bool(persistence))

    def _leave(self) -> None:
        self._handles, self._gpus = {}, {}
        _or_none(pynvml.nvmlShutdown)


def _absent(name: str) -> str:
    return f"this driver has no {name}: limits of the driver's own come with branch 615 (CUDA 13.4)"


def _or_none(question: Callable[[], T]) -> T | None:
    """What QUESTION returns; None where the driver has no answer."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
