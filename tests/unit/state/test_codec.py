import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import CheckpointError, CheckpointVersionError
from agent.state import codec
from agent.state.records import Book, ContainerRef, Grant, GrantPolicy, Hold, LiveLimit, Owner
from tests.fakes.nodes import GIB, LIBRARY, grant, uuid

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
one_token = (
    st.builds(lambda card, number: f"{uuid(card)}/{number}", st.integers(0, 3), st.integers(0, 300)) | names
)
token_sets = st.lists(one_token, min_size=1, max_size=30, unique=True)
holds = st.builds(lambda card, held: Hold(uuid(card), GIB, tuple(held)), st.integers(0, 3), token_sets)
grants = st.builds(
    Grant,
    id=st.binary(min_size=16, max_size=16).map(bytes.hex),
    number=st.integers(1, 1 << 40),
    created=st.floats(0, 1e10),
    holds=st.lists(holds, min_size=1, max_size=2).map(tuple),
    library=st.just(LIBRARY),
    lent=token_sets.map(frozenset),
    supersedes=st.lists(st.binary(min_size=16, max_size=16).map(bytes.hex), max_size=2).map(tuple),
    container=st.none() | st.builds(ContainerRef, names, names, names),
    suspects=st.none() | st.lists(names, max_size=3).map(tuple),
    gone=st.booleans(),
    waiting=st.booleans(),
    owner=st.none() | st.builds(Owner, names, names, names, names, st.booleans()),
    policy=st.builds(
        GrantPolicy,
        st.integers(0, 100),
        st.booleans(),
        st.booleans(),
        st.none() | st.integers(1, 99),
        st.booleans(),
    ),
    undecided=st.booleans(),
)


def sorted_tokens(one):
    """Tokens of a hold are a set; their order is not kept."""
    ordered = tuple(Hold(hold.gpu, hold.slice_bytes, tuple(sorted(hold.tokens))) for hold in one.holds)
    return replace(one, holds=ordered)


@given(st.lists(grants, max_size=5, unique_by=(lambda one: one.id, lambda one: one.number)))
def test_a_book_survives_the_way_through_bytes(found):
    book = Book()
    for one in found:
        book = book.with_grant(one)
    again = codec.decode_book(codec.encode_book(book))
    assert again.next_number == book.next_number
    assert [sorted_tokens(one) for one in again.grants] == [sorted_tokens(one) for one in book.grants]


def test_a_thousand_tokens_are_a_short_text():
    assert len(codec.encode_grant(grant(1, (0, range(141)), (1, range(0, 141, 2))))) < 1000


def test_it_is_json_that_tools_can_read():
    document = json.loads(codec.encode_book(Book().with_grant(grant(1, (0, range(8))))))
    assert document["version"] == codec.VERSION
    assert document["state"]["grants"][0]["holds"][0]["tokens"] == [f"{uuid(0)}/0-7"]


def sealed(version, state):
    digest = hashlib.sha256(f"{version}\n{state}".encode()).hexdigest()
    return f'{{"version":{version},"sha256":"{digest}","state":{state}}}\n'.encode()


def test_a_newer_version_is_told_from_damage():
    with pytest.raises(CheckpointVersionError, match=f"version {codec.VERSION + 1}"):
        codec.decode_book(sealed(codec.VERSION + 1, '{"anything":1}'))


GOOD = {
    "id": "0" * 32,
    "number": 1,
    "created": 1.0,
    "library": "l",
    "holds": [{"gpu": "G", "sliceBytes": 1, "tokens": ["G/0"]}],
}


def with_grant(**changes):
    return json.dumps({"next": 2, "grants": [{**GOOD, **changes}]})


def test_the_grant_that_the_next_test_damages_is_good():
    assert len(codec.decode_book(sealed(codec.VERSION, with_grant())).grants) == 1


@pytest.mark.parametrize(
    "state",
    [
        *("[]", "3", "null", "{}", "{", '{"next":1}', '{"next":1,"grants":3}', '{"next":"x","grants":[]}'),
        *('{"next":1,"grants":[3]}', '{"next":1,"grants":[{}]}', '{"next":NaN,"grants":[]}'),
        json.dumps({"next": 2, "grants": [GOOD, GOOD]}),
        with_grant(id="../../etc"),
        with_grant(id=3),
        with_grant(library="../x"),
        with_grant(holds=[]),
        with_grant(holds=[{"gpu": "G", "sliceBytes": 1, "tokens": []}]),
        with_grant(holds=[{"gpu": "G", "sliceBytes": 0, "tokens": ["G/0"]}]),
        with_grant(holds=[{"gpu": 1, "sliceBytes": 1, "tokens": ["G/0"]}]),
        with_grant(holds=[{"gpu": "G", "sliceBytes": 1, "tokens": ["G/0-99999999999"]}]),
        with_grant(holds=[{"gpu": "G", "sliceBytes": 1, "tokens": ["G/5-3"]}]),
        with_grant(holds=[{"gpu": "G", "sliceBytes": 1, "tokens": [3]}]),
        with_grant(number=0),
        with_grant(number=True),
        with_grant(created="yesterday"),
        with_grant(container=["only", "two"]),
    ],
)
def test_a_sealed_text_that_makes_no_sense_is_damage(state):
    with pytest.raises(CheckpointError):
        codec.decode_book(sealed(codec.VERSION, state))


@given(st.binary(max_size=200))
def test_any_bytes_are_damage(raw):
    with pytest.raises((CheckpointError, CheckpointVersionError)):
        codec.decode_book(raw)


def test_every_changed_byte_is_noticed():
    raw = codec.encode_book(Book().with_grant(grant(1, (0, range(3)), container=ContainerRef("n", "p", "c"))))
    for position in range(len(raw)):
        for change in (0x01, 0x80, 0x20):
            damaged = bytearray(raw)
            damaged[position] ^= change
            with pytest.raises(CheckpointError):
                codec.decode_book(bytes(damaged))


def test_every_cut_is_noticed():
    raw = codec.encode_book(Book().with_grant(grant(1, (0, range(3)))))
    for length in range(len(raw)):
        with pytest.raises(CheckpointError):
            codec.decode_book(raw[:length])
    with pytest.raises(CheckpointError):
        codec.decode_book(raw + raw)


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
    found = codec.decode_book(sealed(1, state))
    ref = ContainerRef("default", "a", "main")
    assert found == Book((grant(7, (0, range(8)), container=ref, suspects=("default/a",)),), 8)
    assert (found.grants[0].owner, found.grants[0].policy, found.grants[0].undecided) == (
        None,
        GrantPolicy(),
        False,
    )


def test_a_checkpoint_of_the_second_version_has_no_changed_limits():
    state = json.loads(with_grant(policy={"cores": 30, "elastic": True}))
    (found,) = codec.decode_book(sealed(2, json.dumps(state))).grants
    assert (found.limits, found.resizes, found.policy.parts) == ((), 0, ())
    assert found.policy.elastic and found.cores_of("G") == 30


def test_in_a_checkpoint_of_the_third_version_all_memory_is_the_cards_own():
    state = json.loads(with_grant(policy={"cores": 30, "oversubscribe": True}))
    (found,) = codec.decode_book(sealed(3, json.dumps(state))).grants
    assert found.physical == {}
    assert found.policy.turns


def test_physical_shares_are_kept():
    one = grant(1, (0, range(8)), policy=GrantPolicy(oversubscribe=True, turns=False))
    one = replace(one, holds=tuple(replace(hold, physical_bytes=3 * GIB) for hold in one.holds))
    found = codec.decode_grant(codec.encode_grant(one))
    assert found == one
    assert found.physical == {uuid(0): 3 * GIB}


@pytest.mark.parametrize("physical", [-1, "1", 1.5, True])
def test_physical_shares_that_make_no_sense_are_damage(physical):
    holds = [{**GOOD["holds"][0], "physical": physical}]
    with pytest.raises(CheckpointError):
        codec.decode_book(sealed(codec.VERSION, with_grant(holds=holds)))


def test_changed_limits_are_kept():
    limits = (LiveLimit(uuid(0), 3 * GIB), LiveLimit(uuid(1), None, 0))
    policy = GrantPolicy(cores=20, parts=(2, 2))
    one = grant(1, (0, range(2)), (1, range(2)), limits=limits, resizes=4, policy=policy)
    assert codec.decode_grant(codec.encode_grant(one)) == one


@pytest.mark.parametrize("limits", [[{"gpu": "H", "memory": 1}], [{"gpu": "G", "memory": 0}], [{}], [3]])
def test_limits_that_make_no_sense_are_damage(limits):
    with pytest.raises(CheckpointError):
        codec.decode_book(sealed(codec.VERSION, with_grant(limits=limits)))
