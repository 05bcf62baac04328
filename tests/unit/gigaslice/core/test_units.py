# SPDX-License-Identifier: Apache-2.0
import pytest

from gigaslice.core import units


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GiB", 8 << 30), ("512MiB", 512 << 20), ("8G", 8 << 30), ("1073741824", 1 << 30), ("8", 8 << 30)],
)
def test_sizes_that_people_write(text, count):
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "8 apples", "1e9", "999999TiB", "8GiB ", "GiB"])
def test_anything_else_is_refused_with_a_sentence(text):
    with pytest.raises(ValueError, match="KiB, MiB, GiB or TiB"):
        units.parse_bytes(text)


@pytest.mark.parametrize("text", ["10000", "9999.5", "1048575"])
def test_a_number_alone_between_gib_and_bytes_is_told_what_it_lacks(text):
    with pytest.raises(ValueError, match="GiB up to 9999 and bytes from 1048576 on"):
        units.parse_bytes(text)


@pytest.mark.parametrize("count, text", [
    (0, "0 B"), (1023, "1023 B"), (1 << 30, "1 GiB"), (3 << 29, "1.5 GiB"), (24 << 30, "24 GiB"),
    (8160437862, "7.6 GiB"), ((100 << 30) + (6 << 28), "102 GiB"), ((1 << 30) - 1, "1 GiB"), (-3 << 29, "-1.5 GiB"),
    (1 << 40, "1 TiB"), (1 << 50, "1024 TiB"), ((99 << 30) + 1020054733, "100 GiB"),
])  # fmt: skip
def test_bytes_are_written_in_the_largest_unit(count, text):
    assert units.format_bytes(count) == text


@pytest.mark.parametrize("count, text", [
    (8 << 30, "8GiB"), (3 << 29, "1536MiB"), (1000, "1000B"), (1 << 40, "1TiB"), ((8 << 30) + 1, "8589934593B"),
])  # fmt: skip
def test_what_is_to_be_typed_again_is_exact(count, text):
    assert units.exact_size(count) == text
    assert units.parse_bytes(text) == count
