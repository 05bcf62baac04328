# SPDX-License-Identifier: Apache-2.0
"""The property: whatever others send, a decoder gives a value that can be used, or its documented error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.decoding.decoders import DECODERS, Decoder
from tests.unit.decoding.mutations import Damage
from tests.unit.decoding.usable import usable

OBJECTS = 100_000
_SHARES = sum(one.share for one in DECODERS)


def objects_of(decoder: Decoder) -> int:
    """How many damaged objects a decoder gets."""
    return int(OBJECTS * decoder.share / _SHARES) + 1


def damaged(damage: Damage, seed: Any) -> Any:
    if isinstance(seed, bytes):
        return damage.octets(seed)
    if isinstance(seed, str):
        return damage.text(seed)
    if all(isinstance(one, str) for one in seed.values()):
        return damage.texts(seed)
    return damage.document(seed)


def test_they_get_a_hundred_thousand_objects():
    assert sum(map(objects_of, DECODERS)) >= OBJECTS
    assert len({one.name for one in DECODERS}) == len(DECODERS)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda one: one.name)
def test_every_seed_is_understood(decoder: Decoder, tmp_path: Path):
    for seed in decoder.seeds():
        try:
            usable(decoder.call(seed, tmp_path))
        except decoder.errors as error:  # the last lines of a watch are errors, and old components send less
            assert str(error), seed
            assert len(decoder.seeds()) > 1, error


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda one: one.name)
def test_a_damaged_object_is_a_usable_value_or_a_documented_error(decoder: Decoder, tmp_path: Path):
    damage, seeds = Damage(decoder.name), decoder.seeds()
    values = refusals = 0
    for number in range(objects_of(decoder)):
        given = damaged(damage, damage.choice(seeds))
        try:
            value = decoder.call(given, tmp_path)
        except decoder.errors as error:
            refusals += 1
            str(error).encode()
            continue
        except Exception as error:
            raise AssertionError(f"{decoder.name}, object {number}: {given!r:.3000}") from error
        values += 1
        try:
            usable(value)
        except Exception as error:
            raise AssertionError(f"{decoder.name}, object {number}: {given!r:.3000}") from error
    assert values, "nothing that is nearly right was understood"
    assert refusals or not decoder.errors, "nothing was refused"
