# SPDX-License-Identifier: Apache-2.0
"""Physical memory of several processes, and multicast objects: who pays, and until when."""

from __future__ import annotations

import pytest

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 100 * MIB
PART = 2 * MIB
LOAD = (
    "[v := __import__('tests.native.programs.vmm', fromlist=['Driver']), "
    "globals().update(d=v.Driver(0, 1), prop=v.prop), 0][2]"
)


@pytest.fixture
def peers(small):
    """Makes processes with a context on each of two GPUs."""

    def make():
        peer = small.peer()
        peer(LOAD)
        return peer

    return make


def paid(small, *peers):
    used = {process["pid"]: process["used"][0] - CONTEXT for process in small.state()["processes"]}
    return [used[peer.pid] for peer in peers]


def exported(peer, size):
    _, handle = peer(f"d.create({size}, prop(0, 1, 1))")
    code, fd = peer(f"d.export({handle})")
    assert code == 0
    return handle, fd


def test_the_payer_changes_when_it_lets_go(small, peers):
    first, second, third = peers(), peers(), peers()
    handle, fd = exported(first, GIB)
    taken = [peer(f"d.take_in_from({first.pid}, {fd})[1]") for peer in (second, third)]
    assert paid(small, first, second, third) == [GIB, 0, 0]
    assert first(f"d.release({handle})") == 0
    assert sorted(paid(small, first, second, third)) == [0, 0, GIB]
    assert paid(small, first) == [0]
    assert second(f"d.release({taken[0]})") == 0
    assert paid(small, first, second, third) == [0, 0, GIB]
    assert third(f"d.release({taken[1]})") == 0
    assert paid(small, first, second, third) == [0, 0, 0]


def test_memory_that_only_a_descriptor_knows_is_paid_by_who_imports_it(small, peers):
    first, second = peers(), peers()
    handle, fd = exported(first, 20 * GIB)
    assert first(f"d.release({handle})") == 0
    assert paid(small, first, second) == [0, 0]
    code, filler = first(f"d.create({10 * GIB})")
    assert code == 0
    assert second(f"d.take_in_from({first.pid}, {fd})[0]") == 2, "no room"
    assert first(f"d.release({filler})") == 0
    code, taken = second(f"d.take_in_from({first.pid}, {fd})")
    assert code == 0
    assert paid(small, first, second) == [0, 20 * GIB]
    assert second(f"d.release({taken})") == 0
    assert paid(small, first, second) == [0, 0]


def test_a_dead_payer_pays_no_more(small, peers):
    first, second = peers(), peers()
    _, fd = exported(first, GIB)
    _, taken = second(f"d.take_in_from({first.pid}, {fd})")
    first.kill()
    assert small.state()["gpus"][0]["used"] == CONTEXT
    assert second(f"d.release({taken})") == 0
    assert small.state()["gpus"][0]["used"] == CONTEXT


def test_a_team_needs_all_its_devices_and_binds_each_part_once(small, peers):
    peer = peers()
    code, team = peer(f"d.multicast({4 * PART}, 2)")
    assert code == 0
    _, memory = peer(f"d.create({2 * PART}, prop(0))")
    assert peer(f"d.add_device({team}, 0)") == 0
    assert peer(f"d.add_device({team}, 0)") == 1, "it is there"
    assert peer(f"d.bind({team}, 0, {memory}, {PART})") == 101, "not all devices are there"
    assert peer(f"d.add_device({team}, 1)") == 0
    assert peer(f"d.bind({team}, 0, {memory}, {2 * PART}, 1)") == 101, "on the other device"
    assert peer(f"d.bind({team}, {3 * PART}, {memory}, {2 * PART})") == 1, "beyond the end"
    assert peer(f"d.bind({team}, {PART}, {memory}, {2 * PART})") == 0
    assert peer(f"d.bind({team}, 0, {memory}, {2 * PART})") == 1, "occupied"
    assert peer(f"d.unbind({team}, 1, {PART}, {2 * PART})") == 1, "of the other device"
    assert peer(f"d.unbind({team}, 0, {PART}, {PART})") == 1, "not what was bound"
    assert peer(f"d.release({memory})") == 0
    assert paid(small, peer) == [2 * PART]
    assert peer(f"d.unbind({team}, 0, {PART}, {2 * PART})") == 0
    assert paid(small, peer) == [0]


def test_a_handle_is_no_handle_after_its_last_reference(small, peers):
    peer = peers()
    base = peer(f"d.reserve({2 * PART})")
    _, memory = peer(f"d.create({PART})")
    assert peer(f"[d.map({base}, {PART}, {memory}), d.release({memory})]") == [0, 0]
    assert peer(f"d.map({base + PART}, {PART}, {memory})") == 1
    assert peer(f"d.release({memory})") == 1
    assert peer(f"d.retain({base})") == [0, memory]
    assert peer(f"d.map({base + PART}, {PART}, {memory})") == 0


def test_an_endpoint_is_one_devices_or_needs_all_of_them(small, peers):
    peer = peers()
    code, alone = peer(f"d.endpoint({2 * PART}, device=0)")
    assert code == 0
    _, memory = peer(f"d.create({PART}, prop(0))")
    assert peer(f"d.join_endpoint({alone}, 1)") == 1, "it has its device"
    assert peer(f"d.bind_endpoint({alone}, 1, 0, {memory}, {PART})") == 101, "on the other device"
    assert peer(f"d.bind_endpoint({alone}, 0, 0, {memory}, {PART})") == 0
    assert peer(f"d.bind_endpoint({alone}, 0, {PART}, {memory}, {PART})") == 0
    assert peer(f"d.release({memory})") == 0
    assert peer(f"d.unbind_endpoint({alone}, 0, 0, {PART})") == 0
    assert paid(small, peer) == [PART], "it is still bound behind that"
    assert peer(f"d.cuda.cuLogicalEndpointIdRelease({alone}, 1)") == 1, "it is in use"
    assert peer(f"d.end_endpoint({alone})") == 0
    assert paid(small, peer) == [0]
    code, team = peer(f"d.endpoint({2 * PART}, devices=2)")
    _, memory = peer(f"d.create({PART}, prop(0))")
    assert (code, peer(f"d.join_endpoint({team}, 0)")) == (0, 0)
    assert peer(f"d.bind_endpoint({team}, 0, 0, {memory}, {PART})") == 101, "not all devices are there"
    assert peer(f"d.join_endpoint({team}, 1)") == 0
    assert peer(f"d.bind_endpoint({team}, 0, 0, {memory}, {PART})") == 0
    assert peer(f"d.endpoint({PART + 1}, device=0)")[0] == 1, "not a multiple of the granularity"


def test_an_endpoint_that_was_exported_has_two_numbers_in_its_process_and_none_elsewhere(small, peers):
    peer, other = peers(), peers()
    _, kept = peer(f"d.endpoint({PART}, device=0)")
    assert peer(f"d.cuda.cuLogicalEndpointExport((c_char * 64)(), {kept}, 1)") == 1, (
        "it was not made for that"
    )
    _, endpoint = peer(f"d.endpoint({PART}, device=0, shared=True)")
    code, again = peer(f"d.endpoint_again({endpoint})")
    assert code == 0
    _, memory = peer(f"d.create({PART}, prop(0))")
    assert peer(f"d.bind_endpoint({again}, 0, 0, {memory}, {PART}) or d.release({memory})") == 0
    assert peer(f"d.end_endpoint({endpoint})") == 0
    assert paid(small, peer) == [PART], "it has another number"
    assert peer(f"d.end_endpoint({again})") == 0
    assert paid(small, peer) == [0]
    _, endpoint = peer(f"d.endpoint({PART}, device=0, shared=True)")
    export = f"(h := (c_char * 64)()) and d.cuda.cuLogicalEndpointExport(h, {endpoint}, 1) or h.raw.hex()"
    handle = peer(export)
    take = f"d.cuda.cuLogicalEndpointImport({kept}, bytes.fromhex('{handle}'), 1)"
    assert other(take) == 801, "another process"
    assert peer(take) == 1, "the number has an endpoint"
    assert peer(f"d.cuda.cuLogicalEndpointImport({kept}, bytes(64), 1)") == 1
