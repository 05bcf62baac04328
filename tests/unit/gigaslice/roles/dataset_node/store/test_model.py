# SPDX-License-Identifier: Apache-2.0
"""Random operations against a model of the cache: never too little room, never a dataset in use deleted.

The trash is emptied at random: at once, or not before it is released. What a fetch waits for meanwhile, and in which
order room is given, follows from the operations, too.
"""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gigaslice.core.dataset.errors import CacheFullError
from gigaslice.core.dataset.eviction import room_for
from gigaslice.roles.dataset_node.store import VolumeSource, digest_of
from gigaslice.roles.dataset_node.store.trash import Trash
from tests.unit.gigaslice.roles.dataset_node.store.conftest import KEYS


class Model:
    """What must be so after each operation, worked out from the operations alone."""

    def __init__(self, world, chance, gate, pool):
        self.world, self.chance, self.gate, self.pool = world, chance, gate, pool
        self.sizes, self.used, self.volumes, self.pins = {}, {}, {}, set()
        self.trash = 0  # bytes; known while the gate is shut
        self.begun = {}  # fetches that wait for room, in the order of their promises
        self.refused = self.evictions = self.waits = 0

    def in_use(self):
        return {
            *(number for one in self.volumes.values() for number in one),
            *(number for _, number in self.pins),
            *self.begun,
        }

    def free(self):
        return self.world.size - sum(self.sizes.values()) - self.world.outside

    def step(self):
        self.world.now += self.chance.uniform(0.001, 10)
        steps = (
            self.fetch,
            self.fetch,
            self.publish,
            self.remove,
            self.pin,
            self.unpin,
            self.evict,
            self.fill,
            self.shut,
            self.release,
        )
        self.chance.choice(steps)()
        stored = {KEYS.index(one.metadata.key): one.metadata.size for one in self.world.store.stored()}
        assert stored == self.sizes
        assert self.world.store.room() == self.free(), "whatever is in the trash"

    def shut(self):
        """From now on the trash is not emptied."""
        if self.gate.is_set():
            self.world.emptied()
            self.gate.clear()
            self.trash = 0

    def release(self):
        """The trash is emptied, and every fetch gets its room."""
        self.gate.set()
        for number, (future, size) in self.begun.items():
            self.completed(number, size, future.result(20))
        self.begun.clear()

    def completed(self, number, size, part):
        part.image.write_bytes(bytes([number]) * size)
        self.world.store.complete(part, digest_of(part.image))
        self.used[number] = self.world.now

    def deleted(self, number):
        self.trash += self.sizes.pop(number)

    def fetch(self):
        number, size = self.chance.randrange(9), self.chance.choice((50, 100, 200, 400))
        if number in self.sizes:
            return
        free, idle = (
            self.free(),
            sorted(
                (one for one in self.sizes if one not in self.in_use()),
                key=lambda one: (self.used[one], KEYS[one]),
            ),
        )
        expected = []
        while free < room_for(size) and idle:
            expected.append(idle.pop(0))
            free += self.sizes[expected[-1]]
        if free < room_for(size):
            with pytest.raises(CacheFullError):
                self.world.store.begin_fetch(self.world.metadata(number, size))
            self.refused += 1
            return
        promised = sum(size for _, size in self.begun.values())
        for one in expected:
            self.deleted(one)
            self.evictions += 1
        # What the disk has now, less what was promised before. Fetches that wait are not on the disk.
        now = self.world.size - sum(self.sizes.values()) - self.world.outside - self.trash
        assert promised == sum(self.sizes[one] for one in self.begun)
        self.sizes[number], self.used[number] = size, self.world.now
        begun = self.pool.submit(self.world.store.begin_fetch, self.world.metadata(number, size))
        if self.gate.is_set() or now >= room_for(size):
            self.completed(number, size, begun.result(20))
            return
        self.waits += 1
        self.begun[number] = (begun, size)
        until = time.monotonic() + 20
        while number not in {KEYS.index(one.metadata.key) for one in self.world.store.stored()}:
            assert not begun.done() and time.monotonic() < until
            time.sleep(0.001)
        assert not begun.done(), "the disk does not have the room yet"

    def publish(self):
        if complete := sorted(self.sizes.keys() - self.begun.keys()):
            number, name = self.chance.choice(complete), f"v{self.chance.randrange(4)}"
            if name not in self.volumes:
                self.world.store.publish(self.world.volume(name), [VolumeSource(key=KEYS[number])])
                self.volumes[name] = {number}

    def remove(self):
        name = f"v{self.chance.randrange(4)}"
        volume = self.world.volume(name)
        self.world.store.remove(volume.id, volume.target)
        for number in self.volumes.pop(name, ()):
            self.used[number] = self.world.now
        for one in [one for one in self.pins if one[0] == name]:
            self.pins.discard(one)
            self.used[one[1]] = self.world.now

    def pin(self):
        if self.sizes:
            number, name = self.chance.choice(sorted(self.sizes)), f"v{self.chance.randrange(4)}"
            self.world.store.pin(self.world.volume(name), self.world.metadata(number, self.sizes[number]))
            self.pins.add((name, number))

    def unpin(self):
        if self.pins:
            name, number = self.chance.choice(sorted(self.pins))
            self.world.store.unpin(f"csi-{name}", KEYS[number])
            self.pins.discard((name, number))
            self.used[number] = self.world.now

    def evict(self):
        number = self.chance.randrange(9)
        refused = self.world.store.evict([KEYS[number]])
        if number not in self.sizes or number in self.in_use():
            assert KEYS[number] in refused
        else:
            assert refused == {}
            self.deleted(number)

    def fill(self):
        if self.begun:
            return  # what a disk that is filled meanwhile does to a fetch is the file system's to say
        self.world.outside = self.chance.choice((0, 0, 100, 300))

    def again(self):
        self.release()
        self.world.again()
        self.pins.clear()  # the kubelet asks again


def play(world, monkeypatch, seed, steps):
    gate, real = threading.Event(), Trash._remove

    def remove(trash, one):
        while not gate.wait(0.01):
            if trash.closed:
                return
        real(trash, one)

    monkeypatch.setattr(Trash, "_remove", remove)
    gate.set()
    print("seed", seed)
    with ThreadPoolExecutor(9) as pool:
        model = Model(world, random.Random(seed), gate, pool)
        try:
            for number in range(steps):
                model.step()
                if number % 50 == 49:
                    model.again()
        finally:
            gate.set()
    return model


@pytest.mark.parametrize("seed", range(4))
def test_a_store_does_as_the_model_says(world, monkeypatch, seed):
    model = play(world, monkeypatch, seed, 800)
    assert model.evictions and model.refused and model.waits, "all of it happened"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_operations(world, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nothing is killed here, and it takes most of the time
    model = play(world, monkeypatch, random.SystemRandom().randrange(1 << 30), 100_000)
    print(f"{model.evictions} evictions, {model.refused} refused, {model.waits} waits")
