# SPDX-License-Identifier: Apache-2.0
"""Random maps and unmaps of sparse arrays: after each, what the library counts is what the device holds.

The simulated driver keeps one reference for every tile, the library one for every box; both must end at the same call.
"""

from __future__ import annotations

import ctypes
import random
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

from tests.native.programs.vmm import TILE_POOL, Driver, prop

PART = 2 << 20
TILE = 65536
FLOAT = 0x20
LAYERED, SPARSE, DEFERRED = 0x01, 0x40, 0x80
MAP, UNMAP = 1, 2
STEPS = 700


class Descriptor(ctypes.Structure):
    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


class Level(ctypes.Structure):
    _fields_ = [
        ("level", c_uint),
        ("layer", c_uint),
        ("offset", c_uint * 3),
        ("extent", c_uint * 3),
    ]


class Tail(ctypes.Structure):
    _fields_ = [("layer", c_uint), ("offset", c_ulonglong), ("size", c_ulonglong)]


class Where(ctypes.Union):
    _fields_ = [("level", Level), ("tail", Tail)]


class MapInfo(ctypes.Structure):
    _fields_ = [
        ("resource_type", c_int),
        ("resource", c_void_p),
        ("where_type", c_int),
        ("where", Where),
        ("operation", c_int),
        ("handle_type", c_int),
        ("handle", c_ulonglong),
        ("offset", c_ulonglong),
        ("devices", c_uint),
        ("flags", c_uint),
        ("reserved", c_uint * 2),
    ]


class Array:
    """A sparse array; TILES is its size in tiles of EXTENT texels."""

    def __init__(self, cuda: ctypes.CDLL, shape: str) -> None:
        self.cuda = cuda
        self.mipmapped = shape == "mipmap"
        self.extent = (32, 32, 16) if shape == "3d" else (128, 128, 1)
        self.tiles = {"2d": (6, 6, 1), "3d": (4, 3, 3), "layers": (4, 4, 1)}.get(shape, (8, 8, 1))
        self.layers = 3 if shape == "layers" else 1
        self.deferred = shape == "deferred"
        depth = {"3d": 3 * 16, "layers": 3}.get(shape, 0)
        flags = DEFERRED if self.deferred else SPARSE | (LAYERED if shape == "layers" else 0)
        width, height = (self.tiles[axis] * self.extent[axis] for axis in (0, 1))
        request = Descriptor(width, height, depth, FLOAT, 1, flags)
        made = c_void_p()
        if self.mipmapped:
            code = cuda.cuMipmappedArrayCreate(byref(made), byref(request), 3)
        else:
            code = cuda.cuArray3DCreate_v2(byref(made), byref(request))
        assert code == 0, (shape, code)
        self.handle = made.value or 0

    def destroy(self) -> int:
        call = self.cuda.cuMipmappedArrayDestroy if self.mipmapped else self.cuda.cuArrayDestroy
        return int(call(c_void_p(self.handle)))

    def random_box(self, rng: random.Random) -> tuple[MapInfo, int]:
        """Somewhere in the array, and the tiles it takes."""
        info = MapInfo(
            resource_type=1 if self.mipmapped else 0, resource=self.handle, handle_type=0, devices=1
        )
        if self.deferred:
            return info, self.tiles[0] * self.tiles[1]
        if rng.random() < 0.2:
            start, length = rng.randrange(6), rng.randrange(1, 5)
            info.where_type = 1
            info.where.tail = Tail(rng.randrange(self.layers), start * TILE, length * TILE)
            return info, length
        level = rng.randrange(3) if self.mipmapped else 0
        offset, extent, count = [], [], 1
        for axis in range(3):
            size = max(self.tiles[axis] >> level, 1)
            first = rng.randrange(size)
            last = rng.randrange(first, size) + 1
            offset.append(first * self.extent[axis])
            extent.append((last - first) * self.extent[axis])
            count *= last - first
        info.where.level = Level(
            level, rng.randrange(self.layers), (c_uint * 3)(*offset), (c_uint * 3)(*extent)
        )
        return info, count


def operate(driver: Driver, array: Array, operation: int, handle: int = 0) -> int:
    """Maps memory into one box of ARRAY, always the same, or unmaps it; what the driver answers."""
    info, _ = array.random_box(random.Random(1))
    info.operation, info.handle = operation, handle
    driver.current(0)
    return int(driver.cuda.cuMemMapArrayAsync(byref(info), 1, None))


def main() -> None:
    rng = random.Random(int(sys.argv[1]))
    driver = Driver(0)
    context = driver.really_used()
    arrays: list[Array] = []
    pools: list[int] = []

    def compare(what: str) -> None:
        counted, real = driver.used(), driver.really_used()
        if counted != real:
            print(f"{what}: {counted - context} are counted, {real - context} are taken")
            sys.exit(1)

    for step in range(STEPS):
        driver.current(0)
        choice = rng.random()
        if len(arrays) < 3 or choice < 0.05:
            arrays.append(Array(driver.cuda, rng.choice(("2d", "3d", "layers", "mipmap", "deferred"))))
        elif choice < 0.25 or not pools:
            code, handle = driver.create(rng.choice((2, 4)) * PART, prop(0, usage=TILE_POOL))
            assert code == 0, code
            pools.append(handle)
        elif choice < 0.45:
            assert driver.release(pools.pop(rng.randrange(len(pools)))) == 0
        elif choice < 0.48:
            assert arrays.pop(rng.randrange(len(arrays))).destroy() == 0
        elif choice < 0.50:
            driver.good(driver.cuda.cuDevicePrimaryCtxReset_v2(0))
            driver.__init__(0)  # type: ignore[misc]
            arrays.clear()
        else:
            operations = (MapInfo * rng.randrange(1, 4))()
            wrong = rng.random() < 0.05
            for i in range(len(operations)):
                operations[i], tiles = rng.choice(arrays).random_box(rng)
                operations[i].operation = MAP if rng.random() < 0.65 and tiles * TILE <= 2 * PART else UNMAP
                if operations[i].operation == MAP:
                    operations[i].handle = rng.choice(pools)
            if wrong:
                operations[len(operations) - 1].flags = 1
            call = rng.choice((driver.cuda.cuMemMapArrayAsync, driver.cuda.cuMemMapArrayAsync_ptsz))
            code = call(operations, len(operations), None)
            assert code == (1 if wrong else 0), code
        compare(f"step {step}")
    driver.current(0)
    for array in arrays:
        assert array.destroy() == 0
    for handle in pools:
        assert driver.release(handle) == 0
    compare("the end")
    print("nothing is left" if driver.used() == context else "something is left")


if __name__ == "__main__":
    main()
