# SPDX-License-Identifier: Apache-2.0
"""Pools under threads, forks and random histories: the ledger has what the driver holds."""

from __future__ import annotations

import random

import pytest

from tests.native.pools import CHUNK
from tests.native.running import CONTEXT, KIB, MIB, NOT_INITIALIZED, OUT_OF_MEMORY
from tests.unit.fakedriver.conftest import Peer


def test_a_forked_child_holds_nothing(pools):
    here = pools()
    peer = here.peer()
    assert peer(f"take({MIB})") > 0
    assert (
        peer("in_child(lambda: call('cuMemAllocAsync', byref(c_uint64()), c_size_t(1), None))")
        == NOT_INITIALIZED
    )
    assert peer("used()") == CONTEXT + CHUNK == here.physical()


@pytest.mark.parametrize("own", [False, True])
def test_threads_race_for_the_last_chunks_of_a_pool(pools, own):
    limit = CONTEXT + 6 * CHUNK
    here = pools(str(limit))
    peer = here.peer()
    peer(f"globals().update(pool={'make_pool()' if own else 0})")
    assert set(peer(f"race(8, 150, {CHUNK}, pool)")) <= {OUT_OF_MEMORY}
    assert limit - CHUNK < here.peak() <= limit
    assert peer("sync()") == 0
    assert peer("used()") == CONTEXT == here.physical()


class Model:
    """What a program with three pools and three streams believes to hold."""

    def __init__(self, peer: Peer, seed: int) -> None:
        self.peer, self.chance = peer, random.Random(seed)
        self.streams = [0, peer("make_stream(0)"), peer("make_stream(1)")]
        self.pools = [peer("default_pool()"), peer("make_pool()"), peer("make_pool()")]
        self.live: dict[int, int] = {}
        self.refused = 0

    def take(self) -> None:
        size = self.chance.choice([1, 700, 64 * KIB, 5 * MIB, 40 * MIB, 150 * MIB])
        pool = self.chance.choice([0, *self.pools])
        stream = self.chance.choice(self.streams)
        address = self.peer(f"take({size}, {stream}, {pool})")
        assert address > 0 or address == -OUT_OF_MEMORY
        if address > 0:
            self.live[address] = size
        else:
            self.refused += 1

    def take_linear(self) -> None:
        size = self.chance.choice([256, 9 * MIB])
        address = self.peer(f"alloc({size})")
        assert address > 0 or address == -OUT_OF_MEMORY
        if address > 0:
            self.live[address] = size

    def give(self) -> None:
        if self.live:
            address = self.chance.choice(list(self.live))
            call = self.chance.choice(["free({})", "give({}, {})", "give({}, {})"])
            assert self.peer(call.format(address, self.chance.choice(self.streams))) == 0
            del self.live[address]

    def work(self) -> None:
        self.peer(f"launch(kernel, {self.chance.choice(self.streams)})")

    def trim(self) -> None:
        assert self.peer(f"trim({self.chance.choice(self.pools)}, {self.chance.choice([0, 70 * MIB])})") == 0

    def keep(self) -> None:
        threshold = self.chance.choice([0, 64 * MIB, 2**64 - 1])
        assert self.peer(f"keep({self.chance.choice(self.pools)}, {threshold})") == 0

    def destroy(self) -> None:
        which = self.chance.choice([1, 2])
        assert self.peer(f"destroy({self.pools[which]})") == 0
        self.pools[which] = self.peer("make_pool()")

    def sync(self) -> None:
        assert self.peer(f"sync({self.chance.choice(self.streams)})") == 0

    def step(self) -> None:
        often = [self.take] * 8 + [self.give] * 7 + [self.sync] * 2
        self.chance.choice([*often, self.take_linear, self.work, self.trim, self.keep, self.destroy])()


@pytest.mark.parametrize("seed", range(6))
def test_the_ledger_follows_whatever_a_program_does(pools, seed):
    limit = CONTEXT + 16 * CHUNK
    here = pools(str(limit))
    peer = here.peer()
    peer("globals().update(kernel=function('work_300us'))")
    model = Model(peer, seed)
    for number in range(300):
        model.step()
        used = peer("used()")
        assert CONTEXT + sum(model.live.values()) <= used <= limit, number
        if number % 20 == 0:
            assert peer("call('cuCtxSynchronize')") == 0
            assert peer("used()") == here.physical(), number
    assert model.refused > 0
    assert here.peak() <= limit
    for address in model.live:
        assert peer(f"free({address})") == 0
    for pool in model.pools:
        assert peer(f"keep({pool}, 0)") == 0
    assert peer("call('cuCtxSynchronize')") == 0
    assert peer("used()") == CONTEXT == here.physical()
