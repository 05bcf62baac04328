"""Random operations against a model of the cache: never too little room, never a dataset in use deleted."""

import os
import random

import pytest

from gigaslice.dataset.errors import CacheFullError
from gigaslice.dataset.eviction import room_for
from gigaslice.dataset_node.store import Piece
from tests.unit.gigaslice.dataset_node.store.conftest import KEYS


class Model:
    """What must be so after each operation, worked out from the operations alone."""

    def __init__(self, world, chance):
        self.world, self.chance = world, chance
        self.sizes, self.used, self.volumes, self.pins = {}, {}, {}, set()
        self.refused = self.evictions = 0

    def in_use(self):
        return {number for one in self.volumes.values() for number in one} | {
            number for _, number in self.pins
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
        )
        self.chance.choice(steps)()
        stored = {KEYS.index(one.about.key): one.about.size for one in self.world.store.stored()}
        assert stored == self.sizes

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
                self.world.store.begin(self.world.about(number, size))
            self.refused += 1
            return
        self.world.fetch(number, size)
        for one in expected:
            del self.sizes[one]
            self.evictions += 1
        self.sizes[number], self.used[number] = size, self.world.now

    def publish(self):
        if self.sizes:
            number, name = self.chance.choice(sorted(self.sizes)), f"v{self.chance.randrange(4)}"
            if name not in self.volumes:
                self.world.store.publish(self.world.volume(name), [Piece(key=KEYS[number])])
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
            self.world.store.pin(self.world.volume(name), self.world.about(number, self.sizes[number]))
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
            del self.sizes[number]

    def fill(self):
        self.world.outside = self.chance.choice((0, 0, 100, 300))

    def again(self):
        self.world.again()
        self.pins.clear()  # the kubelet asks again


def play(world, seed, steps):
    model = Model(world, random.Random(seed))
    print("seed", seed)
    for number in range(steps):
        model.step()
        if number % 50 == 49:
            model.again()
    return model


@pytest.mark.parametrize("seed", range(4))
def test_a_store_does_as_the_model_says(world, seed):
    model = play(world, seed, 300)
    assert model.evictions and model.refused, "both happened"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_operations(world, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nothing is killed here, and it takes most of the time
    model = play(world, random.SystemRandom().randrange(1 << 30), 100_000)
    print(f"{model.evictions} evictions, {model.refused} refused")
