# SPDX-License-Identifier: Apache-2.0
"""Sizes and UUIDs: what is accepted, what is refused, and that text and value are each other's inverse."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gigaslice.core.errors import SizeError
from gigaslice.core.units import exact_size, format_bytes, parse_bytes
from vcuda import errors, parse_size
from vcuda._bridge import ffi, lib
from vcuda.sizes import format_uuid, parse_uuid

LARGEST = (1 << 47) - 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1 << 30),
        ("7.5", 15 << 29),
        ("9999", 9999 << 30),
        ("1048576", 1 << 20),
        ("1B", 1),
        ("1073741824", 1 << 30),
        ("8GiB", 8 << 30),
        ("8gib", 8 << 30),
        ("8G", 8 << 30),
        ("8Gi", 8 << 30),
        ("512MiB", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("0.25k", 256),
        ("2TiB", 2 << 40),
        ("7b", 7),
        (str(LARGEST), LARGEST),
    ],
)
def test_accepted(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "0",
            "0GiB",
            "-1",
            "-8GiB",
            "+8GiB",
            "8GB",
            "8 GiB",
            " 8GiB",
            "8GiB ",
            "8GiBs",
            "GiB",
            "0x10",
        ),
        *(
            "1e9",
            "1_000",
            "8,5GiB",
            ".5GiB",
            "8.GiB",
            "0.3GiB",
            "1.5B",
            "10000",
            "1048575",
            "nan",
            "inf",
            "unlimited",
            "٨GiB",
        ),
        *("8GiB\0", "\udcff", str(LARGEST + 1), "128TiB", "9" * 23, "1" * 5000, "0." + "1" * 5000 + "GiB"),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(errors.BadSizeError) as caught:
        parse_size(text)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(SizeError) as of_commands:
        parse_bytes(text)
    assert str(caught.value) == str(of_commands.value)
    assert "8GiB" in caught.value.remedy
    assert str(caught.value).isprintable()


@given(st.integers(1, LARGEST))
def test_formatting_is_exact(size: int) -> None:
    assert parse_size(exact_size(size)) == parse_bytes(exact_size(size)) == size


@given(st.integers(1 << 20, LARGEST))
def test_a_large_number_alone_is_bytes(size: int) -> None:
    assert parse_size(str(size)) == size


@pytest.mark.parametrize("text", ["10000", "9999.5", "1048575"])
def test_a_number_alone_between_gib_and_bytes_is_told_what_it_lacks(text: str) -> None:
    with pytest.raises(errors.BadSizeError, match="GiB up to 9999 and bytes from 1048576 on"):
        parse_size(text)


@given(st.text(max_size=40))
def test_any_text_is_a_size_or_an_error(text: str) -> None:
    try:
        assert 0 < parse_size(text) <= LARGEST
    except errors.BadSizeError:
        assert not text.isascii() or not text.isdigit() or not 0 < int(text) <= 9999


@given(st.binary(min_size=16, max_size=16), st.sampled_from([0, 1]))
def test_uuids_round_trip(raw: bytes, flags: int) -> None:
    text = format_uuid(raw, flags)
    assert parse_uuid(text) == parse_uuid(text.upper()) == (raw, flags)
    assert text.startswith("MIG-" if flags else "GPU-") and len(text) == 40


@given(st.text(max_size=60))
def test_any_text_is_a_uuid_or_an_error(text: str) -> None:
    with contextlib.suppress(errors.BadUuidError):
        assert format_uuid(*parse_uuid(text)) == text.lower().replace("gpu", "GPU").replace("mig", "MIG")


@pytest.mark.parametrize(
    "text",
    [
        *("", "GPU-", "0", "6e1b0000-0000-4000-8000-00000000000a", "GPU-6e1b0000-0000-4000-8000-00000000000"),
        *("GPU-6e1b0000-0000-4000-8000-00000000000a1", "GPU-6e1b0000-0000-4000-8000-00000000000g"),
        *("GPU-6e1b000000004000800000000000000a", "CPU-6e1b0000-0000-4000-8000-00000000000a"),
        "GPU-6e1b0000-0000-4000-8000-00000000000a\0",
    ],
)
def test_not_a_uuid(text: str) -> None:
    with pytest.raises(errors.BadUuidError):
        parse_uuid(text)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_raw_uuids_have_a_length(length: int) -> None:
    with pytest.raises(errors.BadUuidError):
        format_uuid(bytes(length))


@given(
    st.one_of(
        st.integers(0, (1 << 64) - 1),
        st.builds(lambda power, off: (1 << power) + off, st.integers(9, 62), st.integers(-9, 9)),
    )
)
@example((1 << 30) - 1)
@example((99 << 30) + 1020054733)
@example((1 << 40) - (51 << 20))
def test_the_library_prints_sizes_as_commands_do(size: int) -> None:
    buffer = ffi.new("char[32]")
    assert ffi.string(lib.text_exact(size, buffer)).decode() == exact_size(size)
    assert ffi.string(lib.text_size(size, buffer)).decode() == format_bytes(size)
