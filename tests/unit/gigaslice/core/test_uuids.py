# SPDX-License-Identifier: Apache-2.0
"""Short forms of UUIDs tell GPUs apart, whatever those are."""

from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.uuids import matching, short_uuids

A, B = "GPU-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ab", "GPU-9f020000-0f3d-4a5b-8c7d-0123456789ab"
NEAR = "GPU-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ac"


def test_a_group_of_digits_is_enough_where_it_tells_them_apart():
    assert short_uuids([A, B, A]) == {A: "GPU-6e1b0a2c", B: "GPU-9f020000"}
    assert short_uuids(["-", "all"]) == {"-": "-", "all": "all"}
    assert short_uuids([]) == {}


def test_as_many_more_as_it_takes():
    assert short_uuids([A, NEAR]) == {A: A, NEAR: NEAR}
    other = A.replace("0f3d", "0f4d")
    assert short_uuids([A, other, B]) == {A: A[:16], other: other[:16], B: B[:16]}


@given(st.sets(st.uuids().map(lambda raw: f"GPU-{raw}"), max_size=5))
def test_every_short_form_means_its_own_gpu(uuids):
    for uuid, short in short_uuids(uuids).items():
        assert matching(short, uuids) == [uuid]


def test_what_a_person_writes_is_found():
    assert matching("gpu-6E1B", [A, B]) == [A]
    assert matching(A, [A, NEAR]) == [A] and matching(A.upper(), [A, NEAR]) == [A]
    assert matching("GPU-6e1b0a2c", [A, NEAR, B]) == [A, NEAR]
    assert matching("GPU-", [A, B]) == matching("", [A]) == matching("GPU-7", [A]) == []
