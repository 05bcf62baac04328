# SPDX-License-Identifier: Apache-2.0
"""Bar charts as SVG text, for the documentation: labels on the left, bars with their values."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["bars", "columns"]

_ROW, _LABEL, _BAR, _VALUE, _TOP = 30, 240, 380, 90, 34


def bars(title: str, unit: str, values: Sequence[tuple[str, float]]) -> str:
    """The chart of VALUES (label, number in UNIT), from zero to the largest."""
    most = max(value for _, value in values) or 1.0
    width, height = _LABEL + _BAR + _VALUE, _TOP + _ROW * len(values) + 6
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="20" font-weight="bold" fill="#222222">{escape(title)}</text>',
    ]
    for row, (label, value) in enumerate(values):
        y, length = _TOP + row * _ROW, max(1.0, _BAR * value / most)
        lines += [
            f'<text x="{_LABEL - 8}" y="{y + 17}" text-anchor="end" fill="#222222">{escape(label)}</text>',
            f'<rect x="{_LABEL}" y="{y + 4}" width="{length:.1f}" height="18" fill="#3b78b5"/>',
            f'<text x="{_LABEL + length + 6:.1f}" y="{y + 17}" fill="#222222">{value:.1f} {escape(unit)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def columns(
    title: str, labels: Sequence[str], charts: Sequence[tuple[str, str, Sequence[float | None]]]
) -> str:
    """Several charts side by side, with a row for each label.

    Args:
        title: Of the whole.
        labels: Of the rows.
        charts: Each one's name, the format of its values, and its values, None for a row without a bar. Each chart has
            its own scale, from zero to its largest value.
    """
    label, bar, step, top = 130, 140, 200, 58
    width, height = label + step * len(charts), top + _ROW * len(labels) + 6
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="20" font-weight="bold" fill="#222222">{escape(title)}</text>',
    ]
    for row, name in enumerate(labels):
        y = top + row * _ROW + 17
        lines.append(f'<text x="{label - 8}" y="{y}" text-anchor="end" fill="#222222">{escape(name)}</text>')
    for index, (name, form, values) in enumerate(charts):
        x, most = (
            label + index * step,
            max((value for value in values if value is not None), default=0.0) or 1.0,
        )
        lines.append(f'<text x="{x}" y="46" fill="#222222">{escape(name)}</text>')
        for row, value in enumerate(values):
            y, length = top + row * _ROW, bar * (value or 0.0) / most
            shown = "not drawn" if value is None else form.format(value)
            if value is not None:
                lines.append(
                    f'<rect x="{x}" y="{y + 4}" width="{max(1.0, length):.1f}" height="18" fill="#3b78b5"/>'
                )
            lines.append(f'<text x="{x + length + 6:.1f}" y="{y + 17}" fill="#222222">{escape(shown)}</text>')
    return "\n".join([*lines, "</svg>", ""])
