# SPDX-License-Identifier: Apache-2.0
"""What looks from a thread of its own looks until the block ends, and its error is the test's."""

from __future__ import annotations

import threading

import pytest

from tests.fakes.eventually import looking, wait_until


def test_it_looks_until_the_block_ends() -> None:
    looks: list[threading.Thread] = []
    with looking(lambda: looks.append(threading.current_thread()), 0.001):
        wait_until(lambda: len(looks) > 2)
    assert set(looks) != {threading.current_thread()} and not looks[0].is_alive()


def test_what_goes_wrong_while_it_looks_is_raised_at_the_end() -> None:
    looked = threading.Event()

    def look() -> None:
        looked.set()
        raise ValueError("one GiB too many")

    with pytest.raises(ValueError, match="one GiB too many"), looking(look, 0.001):
        assert looked.wait(30)
