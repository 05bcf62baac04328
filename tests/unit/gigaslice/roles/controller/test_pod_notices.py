# SPDX-License-Identifier: Apache-2.0
"""Who is told what, and how often."""

from __future__ import annotations

import math

from gigaslice.roles.controller.pod_notices import Notices


def test_a_new_text_is_said_at_once_and_once():
    notices = Notices()
    assert notices.seconds_until_due("u", "no GPU has 8 GiB", 0.0) == 0
    notices.note_sent("u", "no GPU has 8 GiB", 0.0)
    assert notices.seconds_until_due("u", "no GPU has 8 GiB", 1e9) == math.inf
    assert notices.seconds_until_due("v", "no GPU has 8 GiB", 0.0) == 0


def test_changed_texts_are_said_ever_more_rarely():
    notices, now, waits = Notices(), 0.0, []
    for number in range(7):
        wait = notices.seconds_until_due("u", f"text {number}", now)
        now += wait
        waits.append(wait)
        assert notices.seconds_until_due("u", f"text {number}", now) == 0
        notices.note_sent("u", f"text {number}", now)
    assert waits == [0, 30, 60, 120, 300, 300, 300]


def test_what_is_over_begins_anew():
    notices = Notices()
    notices.note_sent("u", "a", 0.0)
    notices.forget("u")
    notices.forget("never")
    assert len(notices) == 0
    assert notices.seconds_until_due("u", "a", 1.0) == 0
