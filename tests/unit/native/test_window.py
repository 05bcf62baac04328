# SPDX-License-Identifier: Apache-2.0
"""How far a stream may run ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from vcuda._native import ffi, lib


def window():
    """A new stream's."""
    made = ffi.new("struct vc_window *")
    lib.window_reset(made)
    return made


def settled(kernel_ns: int) -> int:
    """What is allowed after a while of kernels of this length, the queue always as long as allowed."""
    made = window()
    for _ in range(80):
        lib.window_passed(made, made.allowed, made.allowed * kernel_ns)
    return made.allowed


def test_a_stream_begins_with_one_launch_and_reaches_thousands_in_some_thirty_fences():
    made = window()
    assert made.allowed == 1
    sizes = []
    for _ in range(32):
        lib.window_passed(made, made.allowed, 1000 * made.allowed)
        sizes.append(made.allowed)
    assert sizes[:5] == [1, 1, 2, 3, 4]
    assert sizes[-1] > 8000


def test_a_short_kernel_between_long_ones_opens_nothing():
    made = window()
    for _ in range(10):
        lib.window_passed(made, 1, 40_000_000)
        lib.window_passed(made, 1, 250_000)
        assert made.allowed == 1


def test_a_queue_that_stood_still_is_soon_forgotten():
    made = window()
    lib.window_passed(made, 1, 60 * 10**9)
    for _ in range(10):
        lib.window_passed(made, 1, 1000)
    assert made.allowed >= 8


@given(st.integers(1, 10**10))
def test_what_is_queued_is_a_window_long_or_one_kernel(kernel_ns):
    allowed = settled(kernel_ns)
    assert 1 <= allowed <= lib.VC_WINDOW_MAX
    if allowed > 1:
        assert allowed * kernel_ns <= lib.VC_WINDOW_NS
    if allowed < lib.VC_WINDOW_MAX:
        assert (allowed + 1) * kernel_ns > lib.VC_WINDOW_NS


def test_long_kernels_after_short_ones_close_it_at_once():
    made = window()
    for _ in range(40):
        lib.window_passed(made, made.allowed, made.allowed)
    assert made.allowed > 1000
    lib.window_passed(made, 4, 4 * 50_000_000)
    assert made.allowed == 1


@given(
    st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
)
def test_nothing_closes_it_for_good(allowed, each, outstanding, delay):
    made = ffi.new("struct vc_window *", [allowed, each])
    lib.window_passed(made, outstanding, delay)
    assert 1 <= made.allowed <= lib.VC_WINDOW_MAX
