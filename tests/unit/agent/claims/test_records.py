# SPDX-License-Identifier: Apache-2.0
"""Allocations for claims as records: what was written is read, and what makes no sense is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent.deviceplugin.records import DevicePluginRecords
from agent.persistence.codec import Codec, sealed
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import Consumer, ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.claims.origin import ClaimDevice, ClaimOrigin, with_unprepared
from gigaslice.core.errors import CheckpointError, CheckpointVersionError
from tests.fakes.nodes import allocation, uuid

ORIGIN = ClaimOrigin(
    "team", "mine", "uid-1", ("a", "b"),
    (ClaimDevice("a", "node", "gpu-0", "s1", uuid(0)), ClaimDevice("b/x", "node", "gpu-0", "", uuid(0))),
    (Consumer(ContainerRef("team", "p", "i"), "u", init=True), Consumer(ContainerRef("team", "p", "m"), "u")),
    "boot", True,
)  # fmt: skip
CLAIM = replace(allocation(3, (0, range(8))), origin=ORIGIN, assigned=True)
PLUGIN = allocation(1, (1, range(4)))
BOTH = AllocationTable().with_allocation(CLAIM).with_allocation(PLUGIN)


def test_both_kinds_stand_beside_each_other():
    assert CODEC.decode_table(CODEC.encode_table(BOTH)) == BOTH
    assert CODEC.decode_allocation(CODEC.encode_allocation(CLAIM)) == CLAIM
    given_up = with_unprepared(CLAIM, True)
    assert CODEC.decode_allocation(CODEC.encode_allocation(given_up)) == given_up != CLAIM


def test_an_agent_that_knows_no_claims_says_so_and_reads_all_else():
    older = Codec([DevicePluginRecords()])
    with pytest.raises(CheckpointVersionError, match="version 5"):
        older.decode_table(CODEC.encode_table(BOTH))
    without = BOTH.without([CLAIM.id])
    assert older.decode_table(CODEC.encode_table(without)) == without, (
        "once the last claim has ended it may go back"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"claim": ["team", "mine"]}, {"claim": ["team", "mine", ""]}, {"claim": ["team", "mine", 5]},
        {"requests": [1]}, {"devices": [["a"]]}, {"consumers": [["team", "p"]]}, {"boot": None},
        {"holds": [{"gpu": uuid(0), "sliceBytes": 1 << 30, "bytes": 0}]}, {"origin": "later"},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_a_damaged_record(change):
    document = json.loads(CODEC.encode_allocation(CLAIM))["state"] | change
    with pytest.raises(CheckpointError):
        CODEC.decode_allocation(sealed(json.dumps(document).encode(), 5))


def test_fields_of_a_later_agent_are_passed_over():
    document = json.loads(CODEC.encode_allocation(CLAIM))["state"] | {"later": {"x": 1}}
    assert CODEC.decode_allocation(sealed(json.dumps(document).encode(), 5)) == CLAIM


def test_claims_that_only_directories_know_come_back_once():
    again = replace(CLAIM, id=f"{9:032x}", number=9)
    table = CODEC.recovered(AllocationTable(), [again, CLAIM])
    assert table.allocations == (CLAIM,), "the same requests are not answered twice"
    assert CODEC.recovered(table, [CLAIM, again]) == table
