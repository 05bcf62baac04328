# SPDX-License-Identifier: Apache-2.0
"""Options that no annotation says, as the parameters of another API do: the same values, sentences and rights."""

from __future__ import annotations

import pytest

from gigaslice.core import units
from gigaslice.core.model import AnnotationRights, RequestOptions, SliceUnit, parse_options
from gigaslice.core.model.options import OPTIONS, GivenOption, request_options
from tests.fakes.nodes import GIB

UNIT = SliceUnit(GIB, units.parse_bytes)
CHECKED, REFUSE = AnnotationRights.CHECKED, AnnotationRights.REFUSE


def of(
    values: dict[str, object], rights: AnnotationRights = CHECKED, recorded: dict[str, object] | None = None
) -> RequestOptions:
    given = [GivenOption.of(name, f"parameters.{name}", value) for name, value in values.items()]
    return request_options(given, UNIT, rights, recorded=recorded)


@pytest.mark.parametrize("name, value, fields", [
    ("gpus", 2, {"gpus": 2}),
    ("split", "whole-first", {"whole_first": True}),
    ("memory", ["8GiB", 16], {"parts": (8, 16)}),
    ("gpu-type", ["A100", "H100", "A100"], {"types": ("A100", "H100")}),
    ("exclude-gpu-type", (), {}),
    ("gpu-uuid", ["GPU-1a"], {"uuids": ("GPU-1a",)}),
    ("exclude-gpu-uuid", ["MIG-1a"], {"not_uuids": ("MIG-1a",)}),
    ("exclusive", True, {"exclusive": True}),
    ("same-gpu", True, {"same_gpu": True}),
    ("cores", 30, {"cores": 30}),
    ("cores-policy", "elastic", {"cores_elastic": True}),
    ("priority", "guaranteed", {"priority": "guaranteed"}),
    ("elastic", "16GiB", {"elastic": True, "max_slices": 16}),
    ("elastic", 16, {"elastic": True, "max_slices": 16}),
    ("elastic", False, {}),
    ("oversubscribe", True, {"oversubscribe": True}),
    ("time-slicing", False, {"time_slicing": False}),
])  # fmt: skip
def test_each_option(name: str, value: object, fields: dict[str, object]) -> None:
    assert of({name: value}) == RequestOptions(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name, value, says", [
    ("gpus", "2", 'parameters.gpus: "2" must be a whole number from 1 to 16, such as "2"'),
    ("gpus", True, "whole number"),
    ("gpus", 2.0, "whole number"),
    ("cores", 101, "whole number from 0 to 100"),
    ("split", 3, "must be one of even, whole-first"),
    ("split", ["even"], "must be one of even, whole-first"),
    ("memory", "8GiB", "one size per GPU"),
    ("memory", [], ""),
    ("memory", [True], "one size per GPU"),
    ("memory", [0], "1 slice or more"),
    ("memory", [-1], "one size per GPU"),
    ("memory", ["1.5GiB"], "whole slices of 1024 MiB"),
    ("memory", [1] * 17, "at most 16 sizes"),
    ("gpu-type", "A100", "must name models"),
    ("gpu-type", [4], "must name models"),
    ("gpu-type", [f"a{number}" for number in range(101)], "must be at most 100 words"),
    ("gpu-type", ["a" * 129], "words of at most 128 characters"),
    ("gpu-uuid", [{"GPU-1a": 1}], "must be UUIDs"),
    ("exclusive", 1, 'must be "true" or "false"'),
    ("exclusive", None, 'must be "true" or "false"'),
    ("elastic", [16], 'must be "true", "false" or the most'),
    ("priority", "high", "must be one of guaranteed, burstable, best-effort"),
])  # fmt: skip
def test_what_makes_no_sense_is_a_mistake_and_left_out(name: str, value: object, says: str) -> None:
    options = of({name: value})
    assert options == RequestOptions(mistakes=options.mistakes)
    assert len(options.mistakes) == bool(says) and says in "".join(options.mistakes)


def test_an_option_that_there_is_not_is_the_callers_mistake() -> None:
    with pytest.raises(KeyError):
        GivenOption.of("gpu", "parameters.gpu", 2)


@pytest.mark.parametrize("value", [
    {"gpus": 2, "memory": [8]},
    {"split": "whole-first", "gpus": 2},
    {"gpu-uuid": ["GPU-1a"], "exclude-gpu-uuid": ["GPU-1A"]},
    {"gpu-type": ["A100"], "exclude-gpu-type": ["A100"]},
    {"gpu-uuid": ["GPU-1a"], "gpus": 2},
    {"exclusive": True, "elastic": 16, "priority": "guaranteed", "time-slicing": False, "cores": 100},
    {"exclusive": False, "elastic": False, "priority": "best-effort", "time-slicing": True},
])  # fmt: skip
@pytest.mark.parametrize("rights", list(AnnotationRights))
def test_they_mean_what_annotations_mean(value: dict[str, object], rights: AnnotationRights) -> None:
    given = [GivenOption.of(name, f"gigaslice.io/{name}", said) for name, said in value.items()]
    texts = {written.key: written.text for written in given}
    ordered = sorted(given, key=lambda written: list(OPTIONS).index(written.option.name))
    assert request_options(ordered, UNIT, rights) == parse_options(texts, "main", UNIT, rights)


@pytest.mark.parametrize("name, free, more", [
    ("exclusive", [False], [True]),
    ("elastic", [False], [True, 16, "16GiB"]),
    ("priority", ["burstable", "best-effort"], ["guaranteed"]),
    ("time-slicing", [True], [False]),
])  # fmt: skip
def test_what_is_more_than_was_counted_needs_the_same_label(
    name: str, free: list[object], more: list[object]
) -> None:
    assert all(of({name: value}, REFUSE) == of({name: value}) for value in free)
    for value in more:
        options, checked = of({name: value}, REFUSE), of({name: value})
        assert options == RequestOptions(mistakes=options.mistakes) != checked and not checked.mistakes
        assert f'gigaslice.io/allow-{name}: "true"' in options.mistakes[0]
        recorded = {field: getattr(checked, field) for field in OPTIONS[name].fields(value, UNIT)}
        assert of({name: value}, REFUSE, recorded) == checked
