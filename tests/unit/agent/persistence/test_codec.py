# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.persistence import codec
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationOptions, AllocationTable, LiveLimit
from gigaslice.core.deviceplugin.origin import GpuTokens, Owner, plugin
from gigaslice.core.errors import CheckpointError, CheckpointVersionError
from tests.fakes.nodes import GIB, LIBRARY, allocation, of_tokens, table, uuid

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
one_device_id = (
    st.builds(lambda gpu, number: f"{uuid(gpu)}/{number}", st.integers(0, 3), st.integers(0, 300)) | names
)
token_sets = st.lists(one_device_id, min_size=1, max_size=30, unique=True)
tokens = st.builds(lambda gpu, ids: GpuTokens(uuid(gpu), tuple(sorted(ids))), st.integers(0, 3), token_sets)
ids = st.binary(min_size=16, max_size=16).map(bytes.hex)
policies = st.builds(
    AllocationOptions,
    st.integers(0, 100),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(1, 99),
    st.booleans(),
)


@st.composite
def allocations(draw):
    return of_tokens(
        draw(st.integers(1, 1 << 40)),
        *draw(st.lists(tokens, min_size=1, max_size=2)),
        id=draw(ids),
        created=draw(st.floats(0, 1e10)),
        lent=draw(token_sets.map(frozenset)),
        supersedes=draw(st.lists(ids, max_size=2).map(tuple)),
        container=draw(st.none() | st.builds(ContainerRef, names, names, names)),
        suspects=draw(st.none() | st.lists(names, max_size=3).map(tuple)),
        ended=draw(st.booleans()),
        waiting=draw(st.booleans()),
        owner=draw(st.none() | st.builds(Owner, names, names, names, names, st.booleans())),
        policy=draw(policies),
        undecided=draw(st.booleans()),
        assigned=draw(st.booleans()),
    )


def in_order(one):
    """The device IDs of a GPU are a set; their order is not kept."""
    tokens = tuple(GpuTokens(part.gpu, tuple(sorted(part.device_ids))) for part in plugin(one).tokens)
    return replace(one, origin=replace(plugin(one), tokens=tokens))


@given(st.lists(allocations(), max_size=5, unique_by=(lambda one: one.id, lambda one: one.number)))
def test_a_allocation_table_survives_the_way_through_bytes(found):
    before = table(*found)
    again = CODEC.decode_table(CODEC.encode_table(before))
    assert again.next_number == before.next_number
    assert [in_order(one) for one in again.allocations] == [in_order(one) for one in before.allocations]


def test_a_thousand_device_ids_are_a_short_text():
    assert len(CODEC.encode_allocation(allocation(1, (0, range(141)), (1, range(0, 141, 2))))) < 1000


def test_it_is_json_that_tools_can_read():
    document = json.loads(CODEC.encode_table(AllocationTable().with_allocation(allocation(1, (0, range(8))))))
    assert document["version"] == codec.VERSION
    assert document["state"]["grants"][0]["holds"][0]["tokens"] == [f"{uuid(0)}/0-7"]


def sealed(version, state):
    digest = hashlib.sha256(f"{version}\n{state}".encode()).hexdigest()
    return f'{{"version":{version},"sha256":"{digest}","state":{state}}}\n'.encode()


def test_a_newer_version_is_told_from_damage():
    with pytest.raises(CheckpointVersionError, match=f"version {CODEC.newest + 1}"):
        CODEC.decode_table(sealed(CODEC.newest + 1, '{"anything":1}'))


GOOD = {
    "id": "0" * 32,
    "number": 1,
    "created": 1.0,
    "library": "l",
    "holds": [{"gpu": "G", "sliceBytes": 1, "tokens": ["G/0"]}],
}


def with_allocation(**changes):
    return json.dumps({"next": 2, "grants": [{**GOOD, **changes}]})


def test_the_allocation_that_the_next_test_damages_is_good():
    assert len(CODEC.decode_table(sealed(codec.VERSION, with_allocation())).allocations) == 1


@pytest.mark.parametrize(
    "state",
    [
        *("[]", "3", "null", "{}", "{", '{"next":1}', '{"next":1,"grants":3}', '{"next":"x","grants":[]}'),
        *('{"next":1,"grants":[3]}', '{"next":1,"grants":[{}]}', '{"next":NaN,"grants":[]}'),
        json.dumps({"next": 2, "grants": [GOOD, GOOD]}),
        with_allocation(id="../../etc"),
        with_allocation(id=3),
        with_allocation(library="../x"),
        with_allocation(holds=[]),
        with_allocation(holds=[{"gpu": "G", "sliceBytes": 1, "tokens": []}]),
        with_allocation(holds=[{"gpu": "G", "sliceBytes": 0, "tokens": ["G/0"]}]),
        with_allocation(holds=[{"gpu": 1, "sliceBytes": 1, "tokens": ["G/0"]}]),
        with_allocation(holds=[{"gpu": "G", "sliceBytes": 1, "tokens": ["G/0-99999999999"]}]),
        with_allocation(holds=[{"gpu": "G", "sliceBytes": 1, "tokens": ["G/5-3"]}]),
        with_allocation(holds=[{"gpu": "G", "sliceBytes": 1, "tokens": [3]}]),
        with_allocation(number=0),
        with_allocation(number=True),
        with_allocation(created="yesterday"),
        with_allocation(container=["only", "two"]),
    ],
)
def test_a_sealed_text_that_makes_no_sense_is_damage(state):
    with pytest.raises(CheckpointError):
        CODEC.decode_table(sealed(codec.VERSION, state))


@given(st.binary(max_size=200))
def test_any_bytes_are_damage(raw):
    with pytest.raises((CheckpointError, CheckpointVersionError)):
        CODEC.decode_table(raw)


def test_every_changed_byte_is_noticed():
    raw = CODEC.encode_table(
        AllocationTable().with_allocation(allocation(1, (0, range(3)), container=ContainerRef("n", "p", "c")))
    )
    for position in range(len(raw)):
        for change in (0x01, 0x80, 0x20):
            damaged = bytearray(raw)
            damaged[position] ^= change
            with pytest.raises(CheckpointError):
                CODEC.decode_table(bytes(damaged))


def test_every_cut_is_noticed():
    raw = CODEC.encode_table(AllocationTable().with_allocation(allocation(1, (0, range(3)))))
    for length in range(len(raw)):
        with pytest.raises(CheckpointError):
            CODEC.decode_table(raw[:length])
    with pytest.raises(CheckpointError):
        CODEC.decode_table(raw + raw)


def test_a_checkpoint_of_the_first_version_is_read_and_means_what_it_meant():
    """As written by 0.1.0: no owner, no policy."""
    state = json.dumps(
        {
            "next": 8,
            "grants": [
                {
                    "id": f"{7:032x}",
                    "number": 7,
                    "created": 1700000000.5,
                    "library": LIBRARY,
                    "holds": [{"gpu": uuid(0), "sliceBytes": GIB, "tokens": [f"{uuid(0)}/0-7"]}],
                    "container": ["default", "a", "main"],
                    "suspects": ["default/a"],
                }
            ],
        }
    )
    found = CODEC.decode_table(sealed(1, state))
    ref = ContainerRef("default", "a", "main")
    assert found == AllocationTable(
        (allocation(7, (0, range(8)), container=ref, suspects=("default/a",)),), 8
    )
    assert (
        plugin(found.allocations[0]).owner,
        found.allocations[0].policy,
        plugin(found.allocations[0]).undecided,
    ) == (
        None,
        AllocationOptions(),
        False,
    )


def test_a_checkpoint_of_the_second_version_has_no_changed_limits():
    state = json.loads(with_allocation(policy={"cores": 30, "elastic": True}))
    (found,) = CODEC.decode_table(sealed(2, json.dumps(state))).allocations
    assert (found.limits, found.resizes, found.policy.parts) == ((), 0, ())
    assert found.policy.elastic and found.cores_of("G") == 30


def test_in_a_checkpoint_of_the_third_version_all_memory_is_the_gpus_own():
    state = json.loads(with_allocation(policy={"cores": 30, "oversubscribe": True}))
    (found,) = CODEC.decode_table(sealed(3, json.dumps(state))).allocations
    assert found.physical == {}
    assert found.policy.time_slicing


def test_physical_shares_are_kept():
    one = allocation(1, (0, range(8)), policy=AllocationOptions(oversubscribe=True, time_slicing=False))
    one = replace(one, holds=tuple(replace(hold, physical_bytes=3 * GIB) for hold in one.holds))
    found = CODEC.decode_allocation(CODEC.encode_allocation(one))
    assert found == one
    assert found.physical == {uuid(0): 3 * GIB}


@pytest.mark.parametrize("physical", [-1, "1", 1.5, True])
def test_physical_shares_that_make_no_sense_are_damage(physical):
    holds = [{**GOOD["holds"][0], "physical": physical}]
    with pytest.raises(CheckpointError):
        CODEC.decode_table(sealed(codec.VERSION, with_allocation(holds=holds)))


def test_changed_limits_are_kept():
    limits = (LiveLimit(uuid(0), 3 * GIB), LiveLimit(uuid(1), None, 0))
    policy = AllocationOptions(cores=20, parts=(2, 2))
    one = allocation(1, (0, range(2)), (1, range(2)), limits=limits, resizes=4, policy=policy)
    assert CODEC.decode_allocation(CODEC.encode_allocation(one)) == one


@pytest.mark.parametrize("limits", [[{"gpu": "H", "memory": 1}], [{"gpu": "G", "memory": 0}], [{}], [3]])
def test_limits_that_make_no_sense_are_damage(limits):
    with pytest.raises(CheckpointError):
        CODEC.decode_table(sealed(codec.VERSION, with_allocation(limits=limits)))
