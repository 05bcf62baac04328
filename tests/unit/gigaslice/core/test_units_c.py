# SPDX-License-Identifier: Apache-2.0
"""One grammar of sizes, two parsers: the pure one and the library's own in C."""

import contextlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import vcuda
from gigaslice.core import units

UNITS = [
    "",
    "b",
    "k",
    "ki",
    "kib",
    "m",
    "mi",
    "mib",
    "g",
    "gi",
    "gib",
    "t",
    "ti",
    "tib",
    "kb",
    "gb",
    "ib",
    "p",
    "gibs",
]


def parsed_by_c(text):
    with contextlib.suppress(ValueError):
        return vcuda.parse_size(text)
    return None


def parsed(text):
    with contextlib.suppress(ValueError):
        return units.parse_bytes(text)
    return None


@st.composite
def near_sizes(draw):
    near = [st.integers(edge - 3, edge + 3) for edge in (9999, 1 << 20)]
    number = str(draw(st.one_of(st.integers(0, 4096), st.integers(0, 1 << 70), *near)))
    decimals = draw(st.one_of(st.none(), st.text("0123456789", min_size=0, max_size=9)))
    text = number if decimals is None else f"{number}.{decimals}"
    text = draw(st.sampled_from(["", "0", "000", "-", "+", " "])) + text
    unit = "".join(draw(st.sampled_from([one, one.upper()])) for one in draw(st.sampled_from(UNITS)))
    return text + unit


@settings(max_examples=1000)
@given(near_sizes())
@example(str(units.MAX_BYTES))
@example(str(units.MAX_BYTES + 1))
@example(str(units.MAX_BYTES // 10 * 10 + 9))
@example("127.9999999TiB")
@example("0.9765625k")
@example("0.00009765625M")
@example("14073748835532.7k")
@example("140737488355327.00")
@example("140737488355327.000000")
def test_both_parsers_read_the_same(text):
    assert parsed(text) == parsed_by_c(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(
            ("1", 1 << 30),
            ("8", 8 << 30),
            ("008", 8 << 30),
            ("7.5", 15 << 29),
            ("0.25", 1 << 28),
            ("9999", 9999 << 30),
        ),
        *(("9999.0", 9999 << 30), ("9999.5", None), ("9999.0000001", None), ("10000", None), ("65536", None)),
        *(
            ("1048575", None),
            ("1048575.9", None),
            ("1048576", 1 << 20),
            ("1048576.0", 1 << 20),
            ("1048576.5", None),
        ),
        *(
            ("1048577", (1 << 20) + 1),
            ("8589934592", 8 << 30),
            ("0", None),
            ("0.3", None),
            ("8B", 8),
            ("10000B", 10000),
        ),
    ],
)
def test_a_number_alone(text, size):
    assert parsed(text) == parsed_by_c(text) == size


@given(st.text(max_size=20))
def test_of_any_text(text):
    assert parsed(text) == parsed_by_c(text)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "number", ["1", "1.5", "0", "01", "1.", ".5", "1e3", "0x1", "1_0", "٨", "1\n", "1\0"]
)
def test_of_every_unit(number, unit):
    assert parsed(number + unit) == parsed_by_c(number + unit)
