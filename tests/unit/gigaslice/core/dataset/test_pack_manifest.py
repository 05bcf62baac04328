# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.errors import ImageError
from gigaslice.core.dataset.pack_manifest import PackManifest
from tests.fakes.packs import MANIFEST


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert PackManifest.parse(MANIFEST.text()) == MANIFEST
    assert PackManifest.parse(MANIFEST.text().encode()) == MANIFEST
    assert PackManifest.parse(replace(MANIFEST, source='"\n\x1b').text()).source == '"\n\x1b'


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(MANIFEST.text())
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ("[" * 100_000, "damaged"),
        ("{}", "damaged"),
        ('{"format": "other"}', "no manifest"),
        (changed(lambda one: one.update(version=2)), "another version"),
        (changed(lambda one: one["image"].update(file="../../etc/passwd")), "damaged"),
        (changed(lambda one: one["image"].update(file="/etc/passwd")), "damaged"),
        (changed(lambda one: one["image"].update(file="dataset.json")), "damaged"),
        (changed(lambda one: one["image"].update(file=".hidden")), "damaged"),
        (changed(lambda one: one["listing"].update(file="a\nb")), "damaged"),
        (changed(lambda one: one["listing"].update(size=-1)), "damaged"),
        (changed(lambda one: one["listing"].update(size=1.5)), "damaged"),
        (changed(lambda one: one["listing"].update(size=True)), "damaged"),
        (changed(lambda one: one["image"].update(size=1 << 63)), "damaged"),
        (changed(lambda one: one["image"].update(size=4096)), "damaged"),
        (changed(lambda one: one["image"].update(blake3="A" * 64)), "damaged"),
        (changed(lambda one: one["parts"].pop()), "damaged"),
        (changed(lambda one: one["parts"].reverse()), "damaged"),
        (changed(lambda one: one["parts"][0].update(size=0)), "damaged"),
        (changed(lambda one: one["parts"][0].pop("blake3")), "damaged"),
        (changed(lambda one: one.pop("source")), "damaged"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(ImageError, match=says) as caught:
        PackManifest.parse(text)
    assert str(caught.value).isprintable()


_values = st.recursive(
    st.none() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
)


@given(st.binary() | _values.map(json.dumps))
def test_anything_else_is_an_error_of_one_kind(data: bytes | str) -> None:
    with pytest.raises(ImageError):
        PackManifest.parse(data)
