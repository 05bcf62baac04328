# SPDX-License-Identifier: Apache-2.0
"""Frameworks at the edge of their quota: they run out of memory, empty a cache, try again and go on.

The programs replay the calls of PyTorch's expandable segments, vLLM's sleep mode, llama.cpp's pool and NCCL's buffers
(tests/native/programs/frameworks.py)."""

from __future__ import annotations

import pytest

from tests.native.running import CONTEXT, GIB, MIB, eventually

UNIT = 20 * MIB
ROOM = GIB - CONTEXT


def start(program, what):
    program(f"[f := __import__('tests.native.programs.frameworks', fromlist=['f']), x := f.{what}, 0][2]")


def exact(program, used, device=0):
    assert program(f"[d.used({device}), d.really_used({device})]") == [used, used]


def ends_with(program, used, device):
    """What was measured meanwhile is measured again."""
    assert eventually(lambda: program(f"[d.used({device}), d.really_used({device})]") == [used, used])


# --- PyTorch ---------------------------------------------------------------------------------------------------------


def test_torch_fills_its_quota_and_empties_its_cache_to_go_on(place):
    with place.program("1GiB") as program:
        start(program, f"Torch(0, {GIB})")
        tensors = program(f"x.fill({3 * UNIT})")
        assert len(tensors) == ROOM // (3 * UNIT)
        assert program("x.retries") == 1
        exact(program, CONTEXT + len(tensors) * 3 * UNIT)
        assert program(f"x.fails({3 * UNIT})"), "a part of it would fit, and is given back"
        exact(program, CONTEXT + len(tensors) * 3 * UNIT)
        for tensor in tensors[1::2]:
            program(f"x.free({tensor})")
        exact(program, CONTEXT + len(tensors) * 3 * UNIT)
        assert not program(f"x.fails({5 * UNIT})"), "the cache is emptied, in the middle of the segment"
        kept = len(tensors[::2])
        exact(program, CONTEXT + kept * 3 * UNIT + 5 * UNIT)
        program("x.close()")
        exact(program, CONTEXT)


def test_two_torches_in_one_quota_give_each_other_room(place):
    with place.program("1GiB") as first, place.program("1GiB") as second:
        for program in (first, second):
            start(program, f"Torch(0, {GIB})")
        tensors = first(f"x.fill({UNIT})")
        assert len(tensors) == (ROOM - CONTEXT) // UNIT
        assert second(f"x.fails({UNIT})")
        for tensor in tensors[:10]:
            first(f"x.free({tensor})")
        assert second(f"x.fails({UNIT})"), "what another process caches is not free"
        first("x.empty_cache()")
        assert not second(f"x.fails({10 * UNIT})")
        assert first(f"x.fails({UNIT})")
        second("x.close()")
        assert not first(f"x.fails({10 * UNIT})")
        first("x.close()")
        exact(first, 2 * CONTEXT)


def test_torch_shares_a_tensor_and_the_receiver_pays_nothing(place):
    with place.program("1GiB") as sender, place.program("1GiB") as receiver:
        start(sender, f"Torch(0, {GIB})")
        tensor = sender(f"x.alloc({UNIT})")
        fd = sender(f"x.segment.share({tensor})")
        _, taken = receiver(f"d.take_in_from({sender.pid}, {fd})")
        base = receiver(f"d.reserve({UNIT})")
        assert receiver(f"[d.map({base}, {UNIT}, {taken}), d.release({taken})]") == [0, 0]
        exact(receiver, 2 * CONTEXT + UNIT)
        assert receiver(f"d.unmap({base}, {UNIT})") == 0
        exact(receiver, 2 * CONTEXT + UNIT)
        sender("x.close()")
        exact(sender, 2 * CONTEXT)


# --- vLLM ------------------------------------------------------------------------------------------------------------


def test_one_engine_sleeps_and_another_takes_its_place(place):
    with place.program("1GiB") as first, place.program("1GiB") as second:
        sizes = [300 * MIB, 7 * MIB + 1, 200 * MIB]
        total = 300 * MIB + 8 * MIB + 200 * MIB
        for program in (first, second):
            start(program, "Vllm(0)")
            program("d.current(0)")
        blocks = [first(f"x.malloc({size})") for size in sizes]
        first(f"[x.write(a, f'weights {{a:08x}}'[:16]) for a in {blocks}]")
        exact(first, 2 * CONTEXT + total)
        assert second(f"[d.current(0), d.create({500 * MIB})[0]][1]") == 2
        first("[d.current(0), x.sleep()]")
        exact(first, 2 * CONTEXT)
        other = second(f"[d.current(0), x.malloc({500 * MIB})][1]")
        exact(second, 2 * CONTEXT + 500 * MIB)
        assert first("[d.current(0), x.wake_up()][1]") is False
        exact(first, 2 * CONTEXT + 500 * MIB + 308 * MIB)
        second("[d.current(0), x.sleep()]")
        assert first("[d.current(0), x.wake_up()][1]") is True
        exact(first, 2 * CONTEXT + total)
        read = first(f"[d.current(0), [x.read(a, 16) for a in {blocks}]][1]")
        assert read == [f"weights {address:08x}"[:16] for address in blocks]
        second(f"x.free({other})")
        first(f"[x.free(a) for a in {blocks}]")
        exact(first, 2 * CONTEXT)


# --- llama.cpp -------------------------------------------------------------------------------------------------------


def test_llama_releases_handles_at_once_and_pays_until_the_pool_ends(place):
    with place.program("1GiB") as program:
        start(program, "LlamaPool(0)")
        for _ in range(9):
            program(f"x.alloc({100 * MIB - 5})")
        exact(program, CONTEXT + 900 * MIB)
        assert program(f"x.fails({100 * MIB})")
        exact(program, CONTEXT + 900 * MIB)
        program(f"x.free({100 * MIB})")
        assert not program(f"x.fails({110 * MIB})"), "what is free at the end is used first"
        exact(program, CONTEXT + 910 * MIB)
        assert program(f"d.create({20 * MIB})[0]") == 2, "the pool keeps what it has"
        program("x.close()")
        exact(program, CONTEXT)
        assert not program(f"x.fails({ROOM // (2 * MIB) * 2 * MIB})")
        program("x.close()")
        exact(program, CONTEXT)


# --- NCCL ------------------------------------------------------------------------------------------------------------


def test_nccl_gives_everything_back_when_a_communicator_does_not_fit(place):
    with place.program("0=1GiB,1=1GiB", "0,1") as program:
        start(program, "Nccl(1)")
        program("d.current(None)")
        for _ in range(3):
            assert program(f"x.init(20, {60 * MIB})") == []
            exact(program, CONTEXT, 1)
        buffers = program(f"x.init(20, {40 * MIB})")
        assert len(buffers) == 20
        exact(program, CONTEXT + 800 * MIB, 1)
        exact(program, CONTEXT, 0)
        program(f"[x.free(address) for address in {buffers}]")
        exact(program, CONTEXT, 1)


@pytest.mark.parametrize("last", ["importer", "exporter"])
def test_ranks_take_each_others_buffers_and_end_in_any_order(place, last):
    size = 100 * MIB
    with place.program("0=1GiB,1=1GiB", "0,1") as zero, place.program("0=1GiB,1=1GiB", "0,1") as one:
        ranks = [(zero, 0), (one, 1)]
        for program, device in ranks:
            start(program, f"Nccl({device})")
        own = [program(f"x.alloc({size})") for program, _ in ranks]
        fds = [program(f"x.share({address})") for (program, _), address in zip(ranks, own, strict=True)]
        taken = [
            zero(f"x.take_in({one.pid}, {fds[1]}, {size})"),
            one(f"x.take_in({zero.pid}, {fds[0]}, {size})"),
        ]
        for program, _ in ranks:
            for device in (0, 1):
                exact(program, 2 * CONTEXT + size, device)
        for ends in (taken, own) if last == "exporter" else (own, taken):
            zero(f"x.free({ends[0]})")
            one(f"x.free({ends[1]})")
        for program, _ in ranks:
            ends_with(program, 2 * CONTEXT, 0)
            ends_with(program, 2 * CONTEXT, 1)


def test_nvls_binds_memory_that_is_paid_until_it_is_unbound(place):
    with place.program("1GiB") as program:
        start(program, "Nccl(0)")
        program("d.current(None)")
        program(f"[t := x.nvls({300 * MIB}), u := x.nvls({300 * MIB}), 0][2]")
        exact(program, CONTEXT + 600 * MIB)
        assert program(f"x.init(1, {400 * MIB})") == []
        exact(program, CONTEXT + 600 * MIB)
        program("[x.nvls_free(*t), 0][1]")
        exact(program, CONTEXT + 300 * MIB)
        program(f"[t := x.nvls({600 * MIB}), 0][1]")
        exact(program, CONTEXT + 900 * MIB)
        program("[x.nvls_free(*t), x.nvls_free(*u), 0][2]")
        exact(program, CONTEXT)
