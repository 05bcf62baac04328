# SPDX-License-Identifier: Apache-2.0
"""Row by row what k8s.io/apimachinery's resource.ParseQuantity(…).Value() gives."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.kube.quantity import MOST, parse_quantity


@pytest.mark.parametrize("text, value", [
    ("0", 0), ("8", 8), (8, 8), ("+8", 8), ("-8", -8), ("08", 8), ("1.", 1), (".5", 1), ("0.5", 1), ("1.0", 1),
    ("5k", 5000), ("2M", 2_000_000), ("3G", 3 * 10**9), ("2T", 2 * 10**12), ("1P", 10**15), ("8E", 8 * 10**18),
    ("12E", MOST), ("1Ki", 1024), ("1Mi", 1 << 20), ("1Gi", 1 << 30), ("2Ti", 1 << 41), ("1Pi", 1 << 50),
    ("1Ei", 1 << 60), ("12Ei", MOST), ("1.5Gi", 3 << 29), ("0.1Ki", 103), ("500m", 1), ("1500m", 2), ("2000m", 2),
    ("1u", 1), ("1n", 1), ("1000000000n", 1), ("1e3", 1000), ("1E3", 1000), ("1e+3", 1000), ("1e-3", 1), ("12e0", 12),
    ("1.5e1", 15), ("15e-1", 2), ("0e99", 0), ("1e99", MOST), ("-1e99", -MOST), ("1e999999999", MOST),
    ("1e-999999999", 1), ("-1500m", -2), ("0m", 0), (1.5, 2), (1e30, MOST), ("1e020", MOST),
    ("9223372036854775808", MOST),
])  # fmt: skip
def test_quantities(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", [
    "", " ", "8 ", " 8", "k", "Ki", ".", "+", "-", "1.2.3", "1ki", "1K", "1g", "1kk", "1KiB", "1GB", "1e", "1e3k",
    "1e1.5",
    "1ee3", "0x10", "1_000", "much", "inf", "nan", "٣", "1\n", "--1", "9" * 101, None, True, [], {}, float("nan"),
])  # fmt: skip
def test_what_is_none(text):
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)


SUFFIXES = {
    "": 1,
    "Ki": 1024,
    "Gi": 1 << 30,
    "k": 1000,
    "T": 10**12,
    "m": Fraction(1, 1000),
    "n": Fraction(1, 10**9),
}


@given(st.integers(-(10**12), 10**12), st.integers(0, 9), st.sampled_from(sorted(SUFFIXES)))
def test_it_is_exact(number, places, suffix):
    sign, digits = "-" if number < 0 else "", str(abs(number)).rjust(places + 1, "0")
    text = f"{sign}{digits[: len(digits) - places]}.{digits[len(digits) - places :]}{suffix}"
    exact = Fraction(abs(number), 10**places) * SUFFIXES[suffix]
    rounded = min(-(-exact.numerator // exact.denominator), MOST)
    assert parse_quantity(text) == (-rounded if number < 0 else rounded)
