# SPDX-License-Identifier: Apache-2.0
"""What is said when and what ends a pod, over rounds and times that hypothesis makes up."""

from hypothesis import given
from hypothesis import strategies as st

from agent.accounting.overuse import ROUNDS, Offence, OffenceKind, OverusePolicy, due, track

KINDS = st.sampled_from(OffenceKind)
MODES = st.sampled_from(["report", "dry-run", "evict"])
# For each round: seconds since the last, and the bytes_over of allocation "a" by kind.
HISTORY = st.lists(
    st.tuples(st.floats(0, 20), st.dictionaries(KINDS, st.integers(0, 3), max_size=3)), max_size=40
)


def lived(policy, history):
    """What was said, and what was due, in each round, with the time."""
    histories, now, rows = {}, 0.0, []
    for pause, bytes_over in history:
        now += pause
        offences = [Offence("a", kind, count) for kind, count in bytes_over.items()]
        histories, fresh = track(histories, offences, now)
        rows.append(
            (now, {one.kind for one in fresh}, {one.kind for one in due(policy, histories, offences, now)})
        )
    return rows


@given(HISTORY, MODES, st.floats(0, 60), st.integers(0, 2), st.booleans())
def test_nothing_ends_a_pod_but_what_was_said_and_lasted(history, mode, grace, above, over_limit):
    policy = OverusePolicy(mode, grace, above, over_limit)
    rows = lived(policy, history)
    said = {}
    for number, (now, fresh, ended) in enumerate(rows):
        bytes_over = history[number][1]
        said = {kind: at for kind, at in said.items() if kind in bytes_over} | dict.fromkeys(fresh, now)
        for kind in fresh:
            assert all(kind in history[number - back][1] for back in range(ROUNDS))
        expected = {
            kind
            for kind, at in said.items()
            if policy.evicts(kind) and now - at >= grace and bytes_over[kind] > above
        }
        assert ended == expected


@given(HISTORY)
def test_a_report_evicts_no_pod(history):
    assert not any(ended for _, _, ended in lived(OverusePolicy("report", 0, 0, over_limit=True), history))


@given(st.integers(1, 30))
def test_each_offence_is_said_once(rounds):
    rows = lived(OverusePolicy(), [(1.0, {OffenceKind.OVER: 1})] * rounds)
    assert sum(OffenceKind.OVER in fresh for _, fresh, _ in rows) == (rounds >= ROUNDS)


def test_processes_without_the_library_alone_evict_no_pod():
    policy = OverusePolicy("evict", 0, 0, over_limit=True)
    assert not policy.evicts(OffenceKind.WITHOUT_LIBRARY)
    assert policy.evicts(OffenceKind.LIMIT) and not OverusePolicy("evict").evicts(OffenceKind.LIMIT)
