# SPDX-License-Identifier: Apache-2.0
"""How known programs manage physical memory, call by call, on NVIDIA's own Python bindings of the driver.

Only the calls are theirs: the order, what is done when memory runs out, and what is given back when.
"""

from __future__ import annotations

import os

from cuda.bindings import driver as cuda

MIB = 1 << 20
PINNED = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
ON_DEVICE = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
POSIX_FD = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
MINIMUM = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
READ_WRITE = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
TEAM_MINIMUM = cuda.CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_MINIMUM


class OutOfMemoryError(Exception):
    """The framework's own, as its users see it."""


def good(answer):
    """The values of a call that must not fail; an OutOfMemoryError where memory has run out."""
    code, *values = answer
    if code == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise OutOfMemoryError
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(code))
    return values[0] if len(values) == 1 else values


def properties(device: int, exportable: bool = False, rdma: bool = False) -> cuda.CUmemAllocationProp:
    request = cuda.CUmemAllocationProp()
    request.type = PINNED
    request.location.type = ON_DEVICE
    request.location.id = device
    if exportable:
        request.requestedHandleTypes = POSIX_FD
    request.allocFlags.gpuDirectRDMACapable = int(rdma)
    return request


def access(address: int, size: int, *devices: int) -> None:
    request = []
    for device in devices:
        one = cuda.CUmemAccessDesc()
        one.location.type = ON_DEVICE
        one.location.id = device
        one.flags = READ_WRITE
        request.append(one)
    good(cuda.cuMemSetAccess(address, size, request, len(request)))


def granularity(device: int) -> int:
    return int(good(cuda.cuMemGetAllocationGranularity(properties(device), MINIMUM)))


def rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


# --- PyTorch: expandable segments ------------------------------------------------------------------------------------


class ExpandableSegment:
    """One reservation that grows and shrinks by handles; a failed growth gives its own handles back."""

    def __init__(self, device: int, total: int, unit: int = 20 * MIB) -> None:
        self.device, self.unit = device, unit
        self.size = rounded(total + total // 8, unit)
        self.base = int(good(cuda.cuMemAddressReserve(self.size, 0, 0, 0)))
        self.handles: dict[int, object] = {}

    def map(self, begin: int, end: int) -> None:
        """Units BEGIN to END, which are not mapped."""
        made: dict[int, object] = {}
        for unit in range(begin, end):
            try:
                made[unit] = good(cuda.cuMemCreate(self.unit, properties(self.device, True, True), 0))
            except OutOfMemoryError:
                for handle in made.values():
                    good(cuda.cuMemRelease(handle))
                raise
        for unit, handle in made.items():
            good(cuda.cuMemMap(self.base + unit * self.unit, self.unit, 0, handle, 0))
        access(self.base + begin * self.unit, (end - begin) * self.unit, self.device)
        self.handles |= made

    def unmap(self, units: list[int]) -> None:
        for unit in units:
            good(cuda.cuMemUnmap(self.base + unit * self.unit, self.unit))
            good(cuda.cuMemRelease(self.handles.pop(unit)))

    def share(self, unit: int) -> int:
        return int(good(cuda.cuMemExportToShareableHandle(self.handles[unit], POSIX_FD, 0)))

    def close(self) -> None:
        self.unmap(list(self.handles))
        good(cuda.cuMemAddressFree(self.base, self.size))


class Torch:
    """The caching allocator above it: what is freed stays mapped, until memory runs out or the cache is emptied."""

    def __init__(self, device: int, total: int) -> None:
        self.segment = ExpandableSegment(device, total)
        self.live: dict[int, list[int]] = {}
        self.cached: list[int] = []
        self.next = 0
        self.retries = 0

    def alloc(self, size: int) -> int:
        """The first unit of a tensor, which stands for it."""
        count = rounded(size, self.segment.unit) // self.segment.unit
        for start in self.cached:
            units = list(range(start, start + count))
            if set(units) <= set(self.cached):
                self.cached = [unit for unit in self.cached if unit not in units]
                self.live[start] = units
                return start
        try:
            self.segment.map(self.next, self.next + count)
        except OutOfMemoryError:
            self.retries += 1
            self.empty_cache()
            self.segment.map(self.next, self.next + count)
        self.live[self.next] = list(range(self.next, self.next + count))
        self.next += count
        return self.next - count

    def free(self, tensor: int) -> None:
        self.cached = sorted(self.cached + self.live.pop(tensor))

    def empty_cache(self) -> None:
        self.segment.unmap(self.cached)
        self.cached = []

    def fill(self, size: int) -> list[int]:
        """Tensors until there is no room."""
        made = []
        while True:
            try:
                made.append(self.alloc(size))
            except OutOfMemoryError:
                return made

    def fails(self, size: int) -> bool:
        try:
            self.alloc(size)
        except OutOfMemoryError:
            return True
        return False

    def close(self) -> None:
        self.segment.close()


# --- vLLM: sleep mode -------------------------------------------------------------------------------------------------


class Vllm:
    """Addresses stay, memory comes and goes; the context of the device is current."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.blocks: dict[int, tuple[int, object, bytes]] = {}

    def _create_and_map(self, address: int, size: int) -> object:
        handle = good(cuda.cuMemCreate(size, properties(self.device, rdma=True), 0))
        good(cuda.cuMemMap(address, size, 0, handle, 0))
        access(address, size, self.device)
        return handle

    def malloc(self, size: int) -> int:
        size = rounded(size, granularity(self.device))
        address = int(good(cuda.cuMemAddressReserve(size, 0, 0, 0)))
        try:
            self.blocks[address] = (size, self._create_and_map(address, size), b"")
        except OutOfMemoryError:
            good(cuda.cuMemAddressFree(address, size))
            raise
        return address

    def free(self, address: int) -> None:
        size, handle, _ = self.blocks.pop(address)
        if handle is not None:
            good(cuda.cuMemUnmap(address, size))
            good(cuda.cuMemRelease(handle))
        good(cuda.cuMemAddressFree(address, size))

    def write(self, address: int, text: str) -> None:
        good(cuda.cuMemcpyHtoD(address, text.encode(), len(text)))

    def read(self, address: int, size: int) -> str:
        buffer = bytearray(size)
        good(cuda.cuMemcpyDtoH(buffer, address, size))
        return buffer.decode()

    def sleep(self) -> None:
        """Level 1: what matters goes to the host, all memory goes back."""
        for address, (size, handle, _) in self.blocks.items():
            if handle is None:
                continue
            kept = self.read(address, 16).encode()
            good(cuda.cuMemUnmap(address, size))
            good(cuda.cuMemRelease(handle))
            self.blocks[address] = (size, None, kept)

    def wake_up(self) -> bool:
        """False: there is no room yet; what has come back stays."""
        for address, (size, handle, kept) in self.blocks.items():
            if handle is not None:
                continue
            try:
                self.blocks[address] = (size, self._create_and_map(address, size), b"")
            except OutOfMemoryError:
                return False
            good(cuda.cuMemcpyHtoD(address, kept, len(kept)))
        return True


# --- llama.cpp: the pool ----------------------------------------------------------------------------------------------


class LlamaPool:
    """A stack in 32 GiB of addresses. Handles are released as soon as they are mapped; one unmap ends it all."""

    SIZE = 32 << 30

    def __init__(self, device: int) -> None:
        self.device = device
        self.base = self.mapped = self.used = 0

    def alloc(self, size: int) -> int:
        size = rounded(size, 128)
        missing = size - (self.mapped - self.used)
        if missing > 0:
            more = rounded(missing, granularity(self.device))
            handle = good(cuda.cuMemCreate(more, properties(self.device), 0))
            if not self.base:
                self.base = int(good(cuda.cuMemAddressReserve(self.SIZE, 0, 0, 0)))
            good(cuda.cuMemMap(self.base + self.mapped, more, 0, handle, 0))
            good(cuda.cuMemRelease(handle))
            access(self.base + self.mapped, more, self.device)
            self.mapped += more
        self.used += size
        return size

    def fails(self, size: int) -> bool:
        try:
            self.alloc(size)
        except OutOfMemoryError:
            return True
        return False

    def free(self, size: int) -> None:
        self.used -= size

    def close(self) -> None:
        if self.base:
            good(cuda.cuMemUnmap(self.base, self.mapped))
            good(cuda.cuMemAddressFree(self.base, self.SIZE))
        self.base = self.mapped = self.used = 0


# --- NCCL -------------------------------------------------------------------------------------------------------------


class Nccl:
    """Buffers of one rank; no context is current."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.sizes: dict[int, int] = {}

    def alloc(self, size: int) -> int:
        size = rounded(size, granularity(self.device))
        handle = good(cuda.cuMemCreate(size, properties(self.device, True, True), 0))
        address = int(good(cuda.cuMemAddressReserve(size, granularity(self.device), 0, 0)))
        good(cuda.cuMemMap(address, size, 0, handle, 0))
        access(address, size, self.device)
        self.sizes[address] = size
        return address

    def init(self, buffers: int, size: int) -> list[int]:
        """All buffers of a communicator, or none."""
        made: list[int] = []
        try:
            for _ in range(buffers):
                made.append(self.alloc(size))
        except OutOfMemoryError:
            for address in made:
                self.free(address)
            return []
        return made

    def free(self, address: int) -> None:
        """Two releases: one for the handle that the address is asked for, one for the first."""
        handle = good(cuda.cuMemRetainAllocationHandle(address))
        good(cuda.cuMemRelease(handle))
        size = self.sizes.pop(address)
        good(cuda.cuMemUnmap(address, size))
        good(cuda.cuMemRelease(handle))
        good(cuda.cuMemAddressFree(address, size))

    def share(self, address: int) -> int:
        handle = good(cuda.cuMemRetainAllocationHandle(address))
        fd = int(good(cuda.cuMemExportToShareableHandle(handle, POSIX_FD, 0)))
        good(cuda.cuMemRelease(handle))
        return fd

    def take_in(self, pid: int, fd: int, size: int) -> int:
        """A buffer of another rank, which frees it like one of its own."""
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        handle = good(cuda.cuMemImportFromShareableHandle(own, POSIX_FD))
        os.close(own)
        size = rounded(size, granularity(self.device))
        address = int(good(cuda.cuMemAddressReserve(size, 0, 0, 0)))
        good(cuda.cuMemMap(address, size, 0, handle, 0))
        access(address, size, self.device)
        self.sizes[address] = size
        return address

    def nvls(self, size: int) -> tuple[int, object, int, int]:
        """A team of one, with memory bound to it and both mapped: size, team and the two addresses."""
        request = cuda.CUmulticastObjectProp()
        request.numDevices, request.size, request.handleTypes = 1, size, int(POSIX_FD)
        size = request.size = rounded(size, int(good(cuda.cuMulticastGetGranularity(request, TEAM_MINIMUM))))
        team = good(cuda.cuMulticastCreate(request))
        good(cuda.cuMulticastAddDevice(team, self.device))
        try:
            memory = self.alloc(size)
        except OutOfMemoryError:
            good(cuda.cuMemRelease(team))
            raise
        good(cuda.cuMulticastBindAddr(team, 0, memory, size, 0))
        address = int(good(cuda.cuMemAddressReserve(size, 0, 0, 0)))
        good(cuda.cuMemMap(address, size, 0, team, 0))
        access(address, size, self.device)
        return size, team, memory, address

    def nvls_free(self, size: int, team: object, memory: int, address: int) -> None:
        good(cuda.cuMulticastUnbind(team, self.device, 0, size))
        good(cuda.cuMemUnmap(address, size))
        good(cuda.cuMemRelease(team))
        good(cuda.cuMemAddressFree(address, size))
        self.free(memory)
