# SPDX-License-Identifier: Apache-2.0
"""Locks by name: same names exclude each other, others do not, and none is left behind."""

import threading

import pytest

from gigaslice.runtime.keyed_locks import KeyedLocks


def test_work_on_one_thing_waits_for_the_same_thing_only():
    locks, entered, done = KeyedLocks(), threading.Event(), []

    def work(name):
        with locks.held(name):
            done.append(name)
            entered.set()

    with locks.held("a"):
        other, same = threading.Thread(target=work, args=("b",)), threading.Thread(target=work, args=("a",))
        other.start()
        other.join(10)
        same.start()
        same.join(0.1)
        assert done == ["b"] and same.is_alive() and len(locks) == 1
    same.join(10)
    assert done == ["b", "a"] and len(locks) == 0


def test_a_failure_gives_the_lock_back():
    locks = KeyedLocks()
    with pytest.raises(ValueError, match="x"), locks.held("a"):
        raise ValueError("x")
    with locks.held("a"):
        assert len(locks) == 1
