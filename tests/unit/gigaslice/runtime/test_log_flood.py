# SPDX-License-Identifier: Apache-2.0
from gigaslice.runtime.log_flood import Flood, subject


def test_a_loop_is_written_some_times_and_then_once_a_minute_with_its_count():
    flood = Flood()
    written = [left for second in range(600) if (left := flood.left_out("x", float(second))) is not None]
    assert len(written) == 10 + 9
    assert written[:10] == [0] * 10 and sum(written) + len(written) + 59 >= 600


def test_others_are_not_silenced_with_it():
    flood = Flood()
    for _ in range(100):
        flood.left_out("loud", 0.0)
    assert flood.left_out("loud", 0.0) is None
    assert flood.left_out("quiet", 0.0) == 0


def test_after_a_silence_everything_is_written_again():
    flood = Flood()
    for _ in range(100):
        flood.left_out("x", 0.0)
    assert flood.left_out("x", 3600.0) == 90
    assert [flood.left_out("x", 3600.0) for _ in range(9)] == [0] * 9


def test_what_is_remembered_is_bounded():
    flood = Flood()
    for number in range(10_000):
        flood.left_out(number, 0.0)
    assert len(flood._seen) <= 2048


def test_the_subject_is_who_and_what_and_not_what_is_said_of_it():
    line = {"part": "health", "event": "xid", "gpu": "GPU-1", "xid": 31}
    assert subject({**line, "detail": "one"}) == subject({**line, "detail": "other"})
    assert subject(line) != subject({**line, "xid": 79}) != subject({**line, "xid": 79, "gpu": "GPU-2"})
