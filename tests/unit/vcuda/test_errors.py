# SPDX-License-Identifier: Apache-2.0
"""Statuses of the C code become exactly one class each, and every message is one line with a remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vcuda import errors
from vcuda._bridge import checked, path_bytes

STATUS_DEF = Path(__file__).parents[3] / "native" / "base" / "status.def"
STATUSES = {
    name: (int(value), text)
    for name, value, text in re.findall(
        r'^STATUS\((\w+), (-\d+), "([^"]*)"\)', STATUS_DEF.read_text(encoding="utf-8"), re.MULTILINE
    )
}


def classes(root: type[errors.VcudaError]) -> set[type[errors.VcudaError]]:
    return {root}.union(*(classes(child) for child in root.__subclasses__()))


def test_every_status_has_a_class_of_its_own() -> None:
    assert set(errors.STATUS) == set(STATUSES)
    assert len(set(errors.STATUS.values())) == len(STATUSES)


@pytest.mark.parametrize("name", STATUSES)
def test_a_status_raises_its_class_with_the_sentence(name: str) -> None:
    value, sentence = STATUSES[name]
    with pytest.raises(errors.STATUS[name]) as caught:
        checked(value, "cannot do it")
    assert type(caught.value) is errors.STATUS[name]
    assert caught.value.cause == ("no such file" if name == "VC_ENOENT" else sentence)
    assert str(caught.value).startswith("cannot do it: ")
    assert caught.value.remedy and str(caught.value).endswith(caught.value.remedy)


def test_an_unknown_status_is_still_an_error() -> None:
    with pytest.raises(errors.VcudaError):
        checked(-9999, "cannot do it")


@pytest.mark.parametrize("count", [0, 1, 1024])
def test_counts_pass(count: int) -> None:
    assert checked(count, "cannot do it") == count


def test_the_tree_is_the_one_that_is_drawn() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)|^    (VcudaError)", errors.__doc__ or "", re.MULTILINE))
    assert {a or b for a, b in drawn} == {found.__name__ for found in classes(errors.VcudaError)}
    assert {found.__name__ for found in classes(errors.VcudaError)} <= set(errors.__all__)


def test_exit_codes() -> None:
    codes = {found.__name__: found.exit_code for found in classes(errors.VcudaError)}
    assert codes["BadSizeError"] == codes["InvalidArgumentError"] == 2
    assert codes["CorruptError"] == codes["SystemError_"] == 1
    assert codes["NoDriverError"] == codes["PermissionDeniedError"] == 3


def test_a_message_is_one_line_whatever_the_path() -> None:
    error = errors.CorruptError("cannot read /tmp/a\nb\x1b[31m\udcff", "damaged")
    assert str(error).isprintable()
    assert r"a\nb\x1b[31m" in str(error)


def test_a_nul_in_a_path_is_refused() -> None:
    with pytest.raises(errors.UsageError):
        path_bytes("/tmp/a\0b")
