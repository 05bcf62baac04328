# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gigaslice.core.views.ages import age, duration
from tests.unit.gigaslice.core.views.pictures import NOW


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0.9, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (48 * 3600 - 1, "47 h"),
        (48 * 3600, "2 days"),
    ],
)
def test_a_length_of_time_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("since", "text"),
    [
        ("2026-11-23T05:59:30Z", "30 s"),
        ("2026-11-20T06:00:00Z", "3 days"),
        ("", ""),
        ("<b>", ""),
        ("2026-13-40T00:00:00Z", ""),
        ("9" * 5000, ""),
    ],
)
def test_an_age_is_the_time_since_then(since: str, text: str) -> None:
    assert age(since, NOW) == text
