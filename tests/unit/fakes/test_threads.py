# SPDX-License-Identifier: Apache-2.0
"""A stand-in's thread that does not end is told, with what it does."""

from __future__ import annotations

import threading

import pytest

from tests.fakes.threads import await_end


def test_one_that_ends_is_waited_for():
    thread = threading.Thread(target=threading.Event().wait, args=(0.05,))
    await_end(thread)
    thread.start()
    await_end(thread)
    assert not thread.is_alive()


def test_one_that_does_not_is_told_with_what_it_does():
    halt = threading.Event()

    def waits_for_ever():
        halt.wait()

    thread = threading.Thread(target=waits_for_ever, name="worker", daemon=True)
    thread.start()
    with pytest.raises(RuntimeError, match=r"(?s)worker still runs after 0.05 s:\n.*in waits_for_ever"):
        await_end(thread, 0.05)
    halt.set()
    await_end(thread)
