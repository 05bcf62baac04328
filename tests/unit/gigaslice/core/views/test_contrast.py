# SPDX-License-Identifier: Apache-2.0
"""What is written on the page can be read: a contrast of 4.5 in the light and in the dark, as WCAG counts."""

from __future__ import annotations

import colorsys
import re

import pytest

from gigaslice.core.views.page_assets import STYLE
from gigaslice.core.views.svg import colour

Rgb = tuple[float, float, float]
_LIGHT, _DARK = re.findall(r":root\{([^}]*)\}", STYLE)


def rgb(text: str) -> Rgb:
    digits = text.strip().removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    red, green, blue = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return red, green, blue


def contrast(one: Rgb, other: Rgb) -> float:
    def luminance(shade: Rgb) -> float:
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in shade]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def over(upper: Rgb, lower: Rgb, opacity: float) -> Rgb:
    red, green, blue = (a * opacity + b * (1 - opacity) for a, b in zip(upper, lower, strict=True))
    return red, green, blue


def test_the_arithmetic_is_that_of_wcag() -> None:
    assert contrast(rgb("#000"), rgb("#fff")) == 21
    assert round(contrast(rgb("#767676"), rgb("#fff")), 2) == 4.54


@pytest.mark.parametrize("scheme", [_LIGHT, _DARK], ids=["light", "dark"])
def test_text_can_be_read_in_both_schemes(scheme: str) -> None:
    shades = {name: rgb(value) for name, value in re.findall(r"--(\w+):(#\w+)", scheme)}
    for ground in ("paper", "card"):
        for ink in ("ink", "dim", "link", "warn"):
            assert contrast(shades[ink], shades[ground]) >= 4.5, (ink, ground)
        faint = over(shades["ink"], shades[ground], 0.8)  # what pictures write beside their boxes
        assert contrast(faint, shades[ground]) >= 4.5


def test_names_can_be_read_on_the_colours_of_all_pods() -> None:
    fills = {colour(f"namespace-{space}", f"pod-{pod}") for space in range(60) for pod in range(12)}
    assert len(fills) > 40
    for fill in fills:
        hue, saturation, lightness = map(int, re.findall(r"\d+", fill))
        shade = colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
        assert contrast(rgb("#111"), shade) >= 4.5, fill
