# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigaslice.core.kube.object_reader import ANY, PRESENCE, Document, ObjectReader

OUTLINE = {"a": {ANY: PRESENCE, "c": None}, "b": {"a": {"b": PRESENCE}}}
ENVELOPE = {"a": PRESENCE, "d": {"b": PRESENCE}}
TEXT = st.text('ab"\\{}[],:\u00e9\u2028\U0001f600 \n', max_size=6)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd") | TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)
HEAD = b'{"items":['


def kept(value, outline):
    """What OUTLINE keeps of VALUE."""
    if isinstance(value, dict):
        inner = {key: outline.get(key, outline.get(ANY)) for key in value}
        return {key: kept(value[key], inner[key]) for key in value if inner[key] is not None}
    if isinstance(value, list):
        return [kept(entry, outline) for entry in value if not isinstance(entry, list)]
    return value


def read(reader, text, size):
    """What a reader gives for a text that comes in pieces of SIZE."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [document for piece in pieces for document in reader.feed(piece)] + [*reader.end()]


def written(value, spaces):
    separators = (", ", " : ") if spaces else (",", ":")
    return json.dumps(value, separators=separators, ensure_ascii=not spaces).encode()


@settings(max_examples=150, deadline=None)
@given(st.lists(VALUES, max_size=4), st.integers(1, 40), st.booleans())
def test_values_come_one_by_one_with_what_is_kept_of_them_however_they_are_cut(values, size, spaces):
    text = b"\n".join(written(value, spaces) for value in values)
    documents = read(ObjectReader(OUTLINE, at_once=0), text, size)
    assert documents == [Document(kept(value, OUTLINE), True) for value in values]


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, max_size=4), VALUES, VALUES, st.integers(1, 40), st.booleans())
def test_the_entries_of_a_list_come_one_by_one_and_the_object_around_them_at_last(
    items, one, other, size, spaces
):
    around = {"a": one, "items": items, "c": other, "d": other}
    reader = ObjectReader(OUTLINE, items="items", envelope=ENVELOPE, at_once=0)
    documents = read(reader, written(around, spaces), size)
    assert documents == [Document(kept(item, OUTLINE), True) for item in items]
    assert reader.envelope == kept(around, {**ENVELOPE, "items": PRESENCE}) | {"items": []}


@settings(max_examples=100, deadline=None)
@given(VALUES, st.integers(1, 200))
def test_an_object_that_is_there_as_a_whole_has_what_is_kept_and_may_have_more(value, size):
    text = written([value], spaces=False)[1:-1] + b" "
    (document,) = read(ObjectReader(OUTLINE), text, size)
    assert document.value == value or document.value == kept(value, OUTLINE)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=80), st.integers(1, 40))
def test_any_bytes_are_values_or_no_json(text, size):
    for reader in (ObjectReader(OUTLINE), ObjectReader(OUTLINE, items="items")):
        with contextlib.suppress(ValueError):
            read(reader, text, size)


@pytest.mark.parametrize("text", [
    b"{", b"[", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b"[1,]", b"[1 2]", b'{"a" 1}', b'{1:2}', b'"a',
    b'{"a":1]', b"]", b",", b'{"a":{"b":nul}}', b'{"a":{"b":NaN}}', b'{"b":[}', b"\x00" * 100, b"1" * 100,
    b'{"' + b"k" * 5000 + b'":1}', b'{"a":' * 3,
])  # fmt: skip
def test_what_is_no_json(text):
    with pytest.raises(ValueError):
        read(ObjectReader(OUTLINE), text, 7)


def test_a_text_that_is_too_long_is_none():
    text = json.dumps({"a": {"b": "x" * 200_000, "a": "y" * 100_000}}).encode()
    (document,) = read(ObjectReader(OUTLINE), text, 4096)
    assert document == Document({"a": {"b": None, "a": "y" * 100_000}}, True)


def test_of_an_object_with_too_much_to_keep_the_essential_is_kept():
    labels = {f"k{number}": "v" * 100 for number in range(1000)}
    for text in (
        json.dumps({"a": labels, "b": {"a": {"b": 7}}, "c": 1}).encode(),
        json.dumps({"b": {"a": {"b": 7}}, "a": labels}).encode(),
    ):
        (document,) = read(ObjectReader(OUTLINE, {"b": {"a": {"b": PRESENCE}}}, most=10_000), text, 4096)
        assert document.value["b"] == {"a": {"b": 7}} and not document.complete
        assert 80 < len(document.value["a"]) < 100


def test_an_object_whose_essential_is_too_much_is_refused():
    text = json.dumps({"a": {f"k{number}": "v" * 100 for number in range(10_000)}}).encode()
    with pytest.raises(ValueError, match="too large"):
        read(ObjectReader(OUTLINE, {"a": {ANY: PRESENCE}}, most=10_000), text, 4096)


def test_an_object_without_an_end_is_refused():
    reader = ObjectReader(OUTLINE)
    assert not list(reader.feed(b'{"x":"'))
    with pytest.raises(ValueError, match="longer than 16 MiB"):
        for _ in range(1000):
            assert not list(reader.feed(b"x" * 65536))


UNITS = {
    "lists": b"[],", "objects": b'{"a":{}},', "numbers": b"1,", "texts": b'"",', "deep": b'{"a":', "arrays": b"[",
    "quotes": rb'"\"\"\"\"\"\"\"\"",', "halves": b'"' + rb"\ud800" * 2000 + b'",', "emoji": '"\U0001f600x",'.encode(),
    "long": b'"' + b"x" * 60_000 + b'",', "escapes": b'"' + rb"\n" * 30_000 + b'",', "no UTF-8": b'"\xff\xff",',
}  # fmt: skip


@pytest.mark.parametrize("place", [b'"x":[', b'"a":{"a":['], ids=["passed over", "kept"])
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_what_a_reader_takes_does_not_depend_on_what_it_reads(unit, place):
    """Of the 64 KiB that come a pattern for whole strings takes 16 MiB."""
    piece = (unit * (32768 // len(unit) + 1))[:32768]
    reader = ObjectReader(OUTLINE, items="items", envelope=ENVELOPE)
    tracemalloc.start()
    try:
        for chunk in [HEAD + b"{" + place, piece, piece]:
            try:
                for _ in reader.feed(chunk):
                    pass
            except ValueError:
                break
            assert reader.held_bytes < 1 << 20
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20
