# SPDX-License-Identifier: Apache-2.0
"""The annotation by which the scheduler tells the agent which GPUs a pod gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.cluster.assignment import Assignment, AssignmentError
from gigaslice.core.model import Share

NAMES = st.from_regex(r"[a-z][-a-z0-9]{0,8}", fullmatch=True)
SHARES = st.lists(
    st.builds(
        Share, st.from_regex(r"GPU-[0-9a-f]{4}", fullmatch=True), st.integers(1, 200), st.integers(0, 100)
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda share: share.gpu,
).map(tuple)


@given(st.dictionaries(NAMES, SHARES, max_size=3))
def test_what_is_written_is_read(containers):
    text = Assignment(containers).encode()
    assert Assignment.decode(text) == Assignment(containers)
    assert Assignment(dict(reversed(containers.items()))).encode() == text


def test_the_form():
    shares = (Share("GPU-1", 8), Share("GPU-2", 8, 30))
    assert Assignment({"a": shares}).encode() == '{"a":[["GPU-1",8],["GPU-2",8,30]]}'


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"a":[]}', '{"a":[["GPU-1"]]}', '{"a":[["GPU-1",0]]}', '{"a":[["GPU-1",true]]}', '{"a":[["",1]]}',
     '{"a":[["GPU-1",1],["GPU-1",2]]}', '{"a":[["GPU-1",1,101]]}', '{"a":[["GPU-1","1"]]}', "[" * 100_000],
)  # fmt: skip
def test_what_no_scheduler_writes_is_refused(text):
    with pytest.raises(AssignmentError):
        Assignment.decode(text)
