# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from gigaslice.core.kube.json_text import read_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud800"', "\ufffd"),
        (r'"\uD83D\uDE00"', "😀"),
        (r'"\ude00\ud83d"', "\ufffd\ufffd"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd😀"),
        (r'"\\ud800"', r"\ud800"),
        (r'"\\\ud800x"', "\\\ufffdx"),
        (r'{"\udfff":1}', {"\ufffd": 1}),
        ('"\ud800"', "\ufffd"),
        (b'"\xed\xa0\x80"', "\ufffd\ufffd\ufffd"),
        (b'"\xff"', "\ufffd"),
        ("9223372036854775807", (1 << 63) - 1),
        ("-9223372036854775808", -1 << 63),
        ("9" * 30, None),
        ("9" * 5000, None),
        ("1e999", None),
        ("[1.5, 1e3]", [1.5, 1000.0]),
    ],
)
def test_what_is_read_can_be_written(text, value):
    assert read_json(text) == value
    json.dumps(read_json(text), allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "-Infinity", "", "{", "[" * 100_000, b"\xef\xbb\xbf{}", r'"\ud8"']
)
def test_what_is_no_json(text):
    with pytest.raises(ValueError):
        read_json(text)
