# SPDX-License-Identifier: Apache-2.0
"""What lasts is reported once, what changes or comes back again."""

from gigaslice.runtime.log_once import LogOnce


def test_a_text_is_new_once_until_it_changes_or_is_over():
    once = LogOnce()
    assert [once.new("disk", text) for text in ("full", "full", "slow", "full")] == [True, False, True, True]
    assert once.new("net", "full") and once.new("disk") and not once.new("disk")
    assert once.over("disk") and not once.over("disk")
    assert once.new("disk", "full")


def test_subjects_that_are_gone_are_forgotten():
    once = LogOnce()
    for subject in ("a", "b"):
        once.new(subject, "x")
    once.keep({"b"}.__contains__)
    assert [once.new(subject, "x") for subject in ("a", "b")] == [True, False]
