# SPDX-License-Identifier: Apache-2.0
"""A field of another type than it should have reads as an empty one."""

from __future__ import annotations

from typing import Any

import pytest

from gigaslice.core.kube.fields import object_at, objects_at, strings_at, text_at

EVERY_TYPE: list[Any] = [None, True, 1, 1.5, "text", ["a", {}, 1, "b"], {"a": 1}]


@pytest.mark.parametrize("value", EVERY_TYPE)
def test_a_field_is_what_it_should_be_or_empty(value: Any):
    document = {"key": value}
    assert object_at(document, "key") == (value if isinstance(value, dict) else {})
    assert text_at(document, "key") == (value if isinstance(value, str) else "")
    assert objects_at(document, "key") == ([{}] if isinstance(value, list) else [])
    assert strings_at(document, "key") == (("a", "b") if isinstance(value, list) else ())


def test_a_field_that_is_missing_is_empty():
    assert (object_at({}, "key"), objects_at({}, "key"), text_at({}, "key"), strings_at({}, "key")) == (
        {},
        [],
        "",
        (),
    )
