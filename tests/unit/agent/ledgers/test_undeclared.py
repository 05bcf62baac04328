# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from agent.ledgers.undeclared import undeclared_bytes


@dataclass
class Process:
    pid: int
    used: dict = field(default_factory=dict)


def test_what_is_beyond_the_declared_counts_process_by_process():
    processes = [Process(10, {"A": 100}), Process(11, {"A": 500}), Process(12)]
    measured = {"A": {10: 150, 11: 300, 12: 7, 99: 1000}}
    assert undeclared_bytes(processes, processes, measured, ["A"]) == {"A": 50 + 0 + 7}


def test_a_gpu_that_was_not_measured_is_left_out():
    assert undeclared_bytes([], [Process(10)], {"A": {10: 5}}, ["A", "B"]) == {"A": 5}


def test_the_dead_and_strangers_count_nothing():
    assert undeclared_bytes([], [Process(0, {"A": 1})], {"A": {0: 50, 7: 5}}, ["A"]) == {"A": 0}


def test_what_is_freed_or_taken_during_the_measurement_does_not_count_as_undeclared():
    freed = [Process(10, {"A": 800})], [Process(10, {"A": 0})]
    taken = [Process(10, {"A": 0})], [Process(10, {"A": 800})]
    for before, after in (freed, taken):
        assert undeclared_bytes(before, after, {"A": {10: 900}}, ["A"]) == {"A": 100}


sizes = st.integers(0, 1 << 40)
process_lists = st.dictionaries(
    st.integers(1, 20), st.fixed_dictionaries({}, optional={"A": sizes, "B": sizes})
)


@given(process_lists, st.dictionaries(st.sampled_from("AB"), st.dictionaries(st.integers(1, 20), sizes)))
def test_declared_and_undeclared_together_are_the_larger_of_the_two_per_process(declared, measured):
    processes = [Process(pid, used) for pid, used in declared.items()]
    found = undeclared_bytes(processes, processes, measured, ["A", "B"])
    assert set(found) == set(measured)
    for gpu, count in found.items():
        total = sum(used.get(gpu, 0) for used in declared.values())
        assert total + count == sum(
            max(used.get(gpu, 0), measured[gpu].get(pid, 0)) for pid, used in declared.items()
        )
