# SPDX-License-Identifier: Apache-2.0
"""Virtual memory management through ctypes, by exact names, for programs that run under the library.

`Driver` makes the calls and returns their codes. It also knows what the library says is used and, past every hook, what
really is.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_ushort, c_void_p
from pathlib import Path

MIB = 1 << 20
UNTOUCHED = 0x5555
DEVICE, HOST, HOST_NUMA = 1, 2, 3
POSIX_FD = 1
TILE_POOL = 1


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocFlags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_char * 4),
    ]


class Prop(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", AllocFlags),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class MulticastProp(ctypes.Structure):
    _fields_ = [
        ("devices", c_uint),
        ("size", c_size_t),
        ("handle_types", c_ulonglong),
        ("flags", c_ulonglong),
    ]


class EndpointProp(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("device_or_devices", c_uint),
        ("size", c_ulonglong),
        ("handle_types", c_uint),
        ("flags", c_uint),
    ]


class ExternalMemory(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("fd", c_ulonglong),  # a union of 16 bytes
        ("rest", c_void_p),
        ("size", c_ulonglong),
        ("flags", c_uint),
        ("reserved", c_uint * 16),
    ]


class ExternalBuffer(ctypes.Structure):
    _fields_ = [("offset", c_ulonglong), ("size", c_ulonglong), ("flags", c_uint), ("reserved", c_uint * 16)]


def prop(device: int = 0, kind: int = DEVICE, handle_types: int = 0, usage: int = 0) -> Prop:
    return Prop(
        type=1, handle_types=handle_types, location=Location(kind, device), flags=AllocFlags(usage=usage)
    )


def past_the_hooks(library: ctypes.CDLL, name: str, neighbour: str = "cuGetErrorName") -> int:
    """Address of a driver function that is hooked, by its distance from one that is not."""
    function = ctypes.cast(getattr(library, neighbour), c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= function < high:
            path = line.split()[-1]
    plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", path], env=plain, capture_output=True, text=True, check=True
    ).stdout
    address = {line.split()[-1]: int(line.split()[0], 16) for line in listing.splitlines()}
    return function + address[name] - address[neighbour]


class Driver:
    """The calls. Numbers go in and come out as Python's; a creator returns (code, handle)."""

    def __init__(self, *devices: int) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.contexts: dict[int, c_void_p] = {}
        self.good(self.cuda.cuInit(0))
        for device in devices:
            context = c_void_p()
            self.good(self.cuda.cuDevicePrimaryCtxRetain(byref(context), device))
            self.contexts[device] = context
        self.real_info = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(
            past_the_hooks(self.cuda, "cuMemGetInfo_v2")
        )

    def make(self, name: str, *numbers: int) -> tuple[int, int]:
        """A call that writes an address or handle to its first argument; the others are 64 bits each."""
        made = c_uint64(UNTOUCHED)
        return getattr(self.cuda, name)(byref(made), *map(c_uint64, numbers)), made.value

    def call(self, name: str, *numbers: int) -> int:
        return int(getattr(self.cuda, name)(*map(c_uint64, numbers)))

    def past(self, name: str, *numbers: int) -> int:
        """A call with numbers of 64 bits that the library does not see."""
        call = ctypes.CFUNCTYPE(c_int, *[c_uint64] * len(numbers))(past_the_hooks(self.cuda, name))
        return int(call(*numbers))

    def good(self, code: int) -> None:
        if code:
            raise RuntimeError(f"the driver answered {code}")

    def current(self, device: int | None) -> None:
        self.good(self.cuda.cuCtxSetCurrent(None if device is None else self.contexts[device]))

    def free(self, device: int = 0) -> int:
        """What the library says is left."""
        left, total = c_size_t(), c_size_t()
        self.current(device)
        self.good(self.cuda.cuMemGetInfo_v2(byref(left), byref(total)))
        self.current(None)
        return left.value

    def used(self, device: int = 0) -> int:
        left, total = c_size_t(), c_size_t()
        self.current(device)
        self.good(self.cuda.cuMemGetInfo_v2(byref(left), byref(total)))
        self.current(None)
        return total.value - left.value

    def really_used(self, device: int = 0) -> int:
        left, total = c_size_t(), c_size_t()
        self.current(device)
        self.good(self.real_info(ctypes.addressof(left), ctypes.addressof(total)))
        self.current(None)
        return total.value - left.value

    # --- physical memory and mappings

    def create(self, size: int, properties: Prop | None = None) -> tuple[int, int]:
        handle = c_uint64(UNTOUCHED)
        request = properties or prop()
        code = self.cuda.cuMemCreate(byref(handle), c_size_t(size), byref(request), c_ulonglong(0))
        return code, handle.value

    def release(self, handle: int) -> int:
        return int(self.cuda.cuMemRelease(c_uint64(handle)))

    def reserve(self, size: int) -> int:
        address = c_uint64()
        self.good(
            self.cuda.cuMemAddressReserve(
                byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_ulonglong(0)
            )
        )
        return address.value

    def unreserve(self, address: int, size: int) -> int:
        return int(self.cuda.cuMemAddressFree(c_uint64(address), c_size_t(size)))

    def map(self, address: int, size: int, handle: int) -> int:
        return int(
            self.cuda.cuMemMap(
                c_uint64(address), c_size_t(size), c_size_t(0), c_uint64(handle), c_ulonglong(0)
            )
        )

    def access(self, address: int, size: int, device: int = 0) -> int:
        request = Access(Location(DEVICE, device), 3)
        return int(self.cuda.cuMemSetAccess(c_uint64(address), c_size_t(size), byref(request), c_size_t(1)))

    def unmap(self, address: int, size: int) -> int:
        return int(self.cuda.cuMemUnmap(c_uint64(address), c_size_t(size)))

    def retain(self, address: int) -> tuple[int, int]:
        handle = c_uint64(UNTOUCHED)
        return self.cuda.cuMemRetainAllocationHandle(byref(handle), c_void_p(address)), handle.value

    # --- other processes

    def export(self, handle: int) -> tuple[int, int]:
        fd = c_int(-1)
        code = self.cuda.cuMemExportToShareableHandle(byref(fd), c_uint64(handle), POSIX_FD, c_ulonglong(0))
        return code, fd.value

    def take_in(self, fd: int) -> tuple[int, int]:
        """cuMemImportFromShareableHandle."""
        handle = c_uint64(UNTOUCHED)
        code = self.cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(fd), POSIX_FD)
        return code, handle.value

    def open_of(self, pid: int, fd: int) -> int:
        """A descriptor of another process as one of this process."""
        return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)

    def take_in_from(self, pid: int, fd: int) -> tuple[int, int]:
        """cuMemImportFromShareableHandle of a descriptor of another process."""
        own = self.open_of(pid, fd)
        code, handle = self.take_in(own)
        os.close(own)
        return code, handle

    def external(self, fd: int, size: int) -> int:
        """cuImportExternalMemory, which takes the descriptor over."""
        request, made = ExternalMemory(type=1, fd=fd, size=size), c_void_p()
        self.good(self.cuda.cuImportExternalMemory(byref(made), byref(request)))
        return made.value or 0

    def external_buffer(self, external: int, size: int) -> int:
        request, made = ExternalBuffer(offset=0, size=size), c_uint64()
        self.good(self.cuda.cuExternalMemoryGetMappedBuffer(byref(made), c_void_p(external), byref(request)))
        return made.value

    # --- multicast

    def multicast(self, size: int, devices: int = 1, handle_types: int = 0) -> tuple[int, int]:
        handle = c_uint64(UNTOUCHED)
        request = MulticastProp(devices, size, handle_types, 0)
        return self.cuda.cuMulticastCreate(byref(handle), byref(request)), handle.value

    def add_device(self, team: int, device: int) -> int:
        return int(self.cuda.cuMulticastAddDevice(c_uint64(team), device))

    def bind(self, team: int, offset: int, handle: int, size: int, device: int | None = None) -> int:
        middle = () if device is None else (c_int(device),)
        call = self.cuda.cuMulticastBindMem if device is None else self.cuda.cuMulticastBindMem_v2
        return int(
            call(
                c_uint64(team),
                *middle,
                c_size_t(offset),
                c_uint64(handle),
                c_size_t(0),
                c_size_t(size),
                c_ulonglong(0),
            )
        )

    def bind_address(self, team: int, offset: int, address: int, size: int, device: int | None = None) -> int:
        middle = () if device is None else (c_int(device),)
        call = self.cuda.cuMulticastBindAddr if device is None else self.cuda.cuMulticastBindAddr_v2
        return int(
            call(
                c_uint64(team),
                *middle,
                c_size_t(offset),
                c_uint64(address),
                c_size_t(size),
                c_ulonglong(0),
            )
        )

    def unbind(self, team: int, device: int, offset: int, size: int) -> int:
        return int(
            self.cuda.cuMulticastUnbind(c_uint64(team), c_int(device), c_size_t(offset), c_size_t(size))
        )

    # --- logical endpoints

    def endpoint(
        self, size: int, device: int | None = None, devices: int = 0, shared: bool = False
    ) -> tuple[int, int]:
        """A unicast endpoint of DEVICE, or a multicast one for DEVICES of them: (code, number)."""
        number = c_uint(UNTOUCHED)
        assert self.cuda.cuLogicalEndpointIdReserve(byref(number), c_uint(1)) == 0
        kind, value = (1, device) if device is not None else (2, devices)
        request = EndpointProp(kind, value or 0, size, int(shared), 0)
        return self.cuda.cuLogicalEndpointCreate(number, byref(request)), number.value

    def endpoint_again(self, number: int) -> tuple[int, int]:
        """The endpoint, exported and imported under another number: (code, that number)."""
        handle, other = (c_char * 64)(), c_uint()
        self.good(self.cuda.cuLogicalEndpointExport(handle, c_uint(number), 1))
        self.good(self.cuda.cuLogicalEndpointIdReserve(byref(other), c_uint(1)))
        return int(self.cuda.cuLogicalEndpointImport(other, handle, 1)), other.value

    def join_endpoint(self, number: int, device: int) -> int:
        return int(self.cuda.cuLogicalEndpointAddDevice(c_uint(number), c_int(device)))

    def bind_endpoint(self, number: int, device: int, offset: int, handle: int, size: int) -> int:
        return int(
            self.cuda.cuLogicalEndpointBindMem(
                c_uint(number),
                c_int(device),
                c_ulonglong(offset),
                c_uint64(handle),
                c_ulonglong(0),
                c_ulonglong(size),
                c_ulonglong(0),
            )
        )

    def bind_endpoint_address(self, number: int, device: int, offset: int, address: int, size: int) -> int:
        return int(
            self.cuda.cuLogicalEndpointBindAddr(
                c_uint(number),
                c_int(device),
                c_ulonglong(offset),
                c_void_p(address),
                c_ulonglong(size),
                c_ulonglong(0),
            )
        )

    def unbind_endpoint(self, number: int, device: int, offset: int, size: int) -> int:
        return int(
            self.cuda.cuLogicalEndpointUnbind(
                c_uint(number), c_int(device), c_ulonglong(offset), c_ulonglong(size)
            )
        )

    def end_endpoint(self, number: int) -> int:
        return int(self.cuda.cuLogicalEndpointDestroy(c_uint(number)))
