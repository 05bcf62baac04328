# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core import units
from gigaslice.core.model import (
    ANNOTATIONS,
    AnnotationRights,
    Infeasible,
    RequestOptions,
    SliceUnit,
    annotations_by_container,
    parse_options,
)
from gigaslice.core.model.options import PREFIX
from tests.fakes.nodes import GIB, inventory, uuid

UNIT = SliceUnit(GIB, units.parse_bytes)


def options(container="main", unit=UNIT, rights=AnnotationRights.CHECKED, recorded=None, **annotations):
    """Names with "_" for "-"; those without "/" get our prefix."""
    full = {
        name if "/" in name else "gigaslice.io/" + name.replace("_", "-"): text
        for name, text in annotations.items()
    }
    return parse_options(full, container, unit, rights, recorded=recorded)


def test_nothing_said_is_nothing_asked():
    assert options() == RequestOptions()
    assert (
        parse_options(
            {"example.com/gpus": "x", "hami.io/vgpu-node": "n"}, "main", UNIT, AnnotationRights.CHECKED
        )
        == RequestOptions()
    )


@pytest.mark.parametrize("name, text, field, value", [
    ("gpus", "2", "gpus", 2),
    ("gpus", " 16 ", "gpus", 16),
    ("split", "whole-first", "whole_first", True),
    ("split", "Even", "whole_first", False),
    ("memory", "8GiB,16GiB", "parts", (8, 16)),
    ("memory", "8, 16", "parts", (8, 16)),
    ("gpu_type", "A100, H100", "types", ("A100", "H100")),
    ("exclude_gpu_type", "T4", "not_types", ("T4",)),
    ("gpu_uuid", "GPU-1a,GPU-2b,GPU-1a", "uuids", ("GPU-1a", "GPU-2b")),
    ("exclude_gpu_uuid", "GPU-1a", "not_uuids", ("GPU-1a",)),
    ("exclusive", "true", "exclusive", True),
    ("exclusive", "False", "exclusive", False),
    ("same_gpu", "yes", "same_gpu", True),
    ("cores", "30", "cores", 30),
    ("elastic", "true", "elastic", True),
    ("elastic", "16GiB", "max_slices", 16),
    ("oversubscribe", "true", "oversubscribe", True),
    ("gpu_type", "", "types", ()),
])  # fmt: skip
def test_each_annotation(name, text, field, value):
    found = options(**{name: text})
    assert getattr(found, field) == value
    assert found.mistakes == ()


@pytest.mark.parametrize("name, text, says", [
    ("gpus", "0", 'gigaslice.io/gpus: "0" must be a whole number from 1 to 16, such as "2"'),
    ("gpus", "two", "whole number"),
    ("gpus", "-1", "whole number"),
    ("gpus", "9" * 30, "whole number"),
    ("gpus", "", "whole number"),
    ("split", "2.5", "must be one of even, whole-first"),
    ("memory", "8GB,1", "one size per GPU"),
    ("memory", "1.5GiB", "whole slices of 1024 MiB"),
    ("memory", "8,,8", "one size per GPU"),
    ("memory", "0", "1 slice or more"),
    ("memory", ",".join("1" * 17), "at most 16 sizes"),
    ("gpu-type", ",".join(f"a{number}" for number in range(101)), "must be at most 100 words"),
    ("exclude-gpu-uuid", ",".join(f"GPU-{number}" for number in range(101)), "must be at most 100 words"),
    ("exclude-gpu-type", "a" * 129, "must be words of at most 128 characters"),
    ("gpu_type", "*", "must name models"),
    ("gpu_uuid", "0,1", "indices change with reboots"),
    ("exclusive", "maybe", 'must be "true" or "false"'),
    ("cores", "101", "from 0 to 100"),
    ("cores", "30%", "from 0 to 100"),
    ("elastic", "much", '"true", "false" or the most'),
    ("oversubscribe", "2", 'must be "true" or "false"'),
])  # fmt: skip
def test_a_mistake_is_a_sentence_that_says_what_to_write(name, text, says):
    (sentence,) = options(**{name: text}).mistakes
    assert says in sentence
    assert sentence.startswith("gigaslice.io/" + name.replace("_", "-"))
    assert "\n" not in sentence


def test_all_mistakes_come_at_once_and_the_rest_still_counts():
    found = options(gpus="x", cores="y", exclusive="true")
    assert len(found.mistakes) == 2
    assert found.exclusive


def test_names_of_others_are_taken_and_ours_win():
    found = options(**{"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gpuuuid": "GPU-1"})
    assert (found.types, found.not_uuids) == (("A100",), ("GPU-1",))
    both = options(gpu_type="L4", **{"nvidia.com/use-gputype": "A100"})
    assert both.types == ("L4",)
    assert options(**{"nvidia.com/include-gpu-uuid": "GPU-3"}).uuids == ("GPU-3",)


def test_a_container_of_its_own():
    annotations = {"gigaslice.io/gpus": "2", "gigaslice.io/gpus.side": "1"}
    assert parse_options(annotations, "main", UNIT, AnnotationRights.CHECKED).gpus == 2
    assert parse_options(annotations, "side", UNIT, AnnotationRights.CHECKED).gpus == 1


def test_a_name_that_is_nearly_one_is_mentioned_and_others_are_left_alone():
    (note,) = options(gpuz="2", dataset="imagenet", occupant="x").notes
    assert "gigaslice.io/gpuz" in note and 'did you mean "gigaslice.io/gpus"?' in note


def test_contradictions():
    assert "3 sizes for 2 GPUs" in options(gpus="2", memory="1,2,3").mistakes[0]
    assert "leave one of the two out" in options(gpu_uuid="GPU-1", exclude_gpu_uuid="GPU-1").mistakes[0]
    assert "3 GPUs cannot share 2 slices" in options(gpus="3").contradictions(2)[0]
    assert "make the limit 24" in options(memory="8,16").contradictions(20)[0]
    assert (
        "less than the 16 that the container is given"
        in options(memory="8,16", elastic="4").contradictions(24)[0]
    )
    assert options(memory="8,16", gpus="2", elastic="20").contradictions(24) == ()


@pytest.mark.parametrize("said, names, left", [
    ({"gpus": "2", "memory": "1,2,3"}, ("memory", "gpus"), {"gpus": None, "parts": ()}),
    ({"gpu_uuid": "GPU-1", "exclude_gpu_uuid": "GPU-1"}, ("exclude-gpu-uuid", "also asked for"), {"uuids": ()}),
    ({"gpu_uuid": "GPU-1a,GPU-2", "exclude_gpu_uuid": "GPU-1A"}, ("exclude-gpu-uuid",), {"uuids": ("GPU-2",)}),
    ({"gpu_type": "A100", "exclude_gpu_type": "a100"}, ("exclude-gpu-type",), {"types": (), "not_types": ()}),
    ({"gpu_type": "A100-SXM4,L4", "exclude_gpu_type": "A100"}, ("exclude-gpu-type",), {"types": ("L4",)}),
    ({"gpus": "2", "gpu_uuid": "GPU-1"}, ("gpu-uuid", "gpus"), {"uuids": (), "gpus": 2}),
    ({"memory": "4,4", "gpu_uuid": "GPU-1,GPU-1"}, ("gpu-uuid", "memory"), {"uuids": ()}),
    ({"split": "whole-first", "gpus": "3"}, ("split", "gpus"), {"whole_first": False, "gpus": 3}),
    ({"split": "whole-first", "memory": "4,4"}, ("split", "memory"), {"whole_first": False, "parts": (4, 4)}),
    ({"split": "whole-first", "same_gpu": "true"}, ("split", "same-gpu"), {"whole_first": False, "same_gpu": True}),
])  # fmt: skip
def test_annotations_that_contradict_each_other(said, names, left):
    """One sentence that names both, and what is left can be had meanwhile: the pod is held back, not failed."""
    found = options(**said)
    (sentence,) = found.mistakes
    assert all(name in sentence for name in names)
    assert {name: getattr(found, name) for name in left} == left


@pytest.mark.parametrize("said, slices", [
    ({"gpus": "9"}, 8), ({"memory": "3,4"}, 8), ({"gpus": "2", "elastic": "3"}, 8),
    ({"memory": "2,6", "elastic": "5"}, 8),
    ({"gpus": "3", "elastic": "2"}, 8),
])  # fmt: skip
def test_annotations_that_contradict_the_request(said, slices):
    (sentence,) = options(**said).contradictions(slices)
    assert sentence.startswith("gigaslice.io/")


@pytest.mark.parametrize("said", [
    {"gpu_type": "A100", "exclude_gpu_type": "A10"}, {"gpu_type": "A10", "exclude_gpu_type": "A100"},
    {"gpu_uuid": "GPU-1,GPU-2", "gpus": "2"}, {"gpu_uuid": "GPU-1", "gpus": "1"}, {"gpu_uuid": "", "gpus": "2"},
    {"gpu_uuid": "GPU-1", "exclude_gpu_uuid": "GPU-2"}, {"gpus": "2", "elastic": "4"}, {"gpus": "2", "elastic": "8"},
    {"split": "even", "gpus": "2", "same_gpu": "true"}, {"split": "whole-first", "exclusive": "true", "cores": "5"},
    {"elastic": "1"}, {"exclusive": "true", "same_gpu": "true", "cores": "50", "gpus": "2"},
])  # fmt: skip
def test_annotations_that_go_together(said):
    assert options(**said).mistakes == () and options(**said).contradictions(8) == ()


@pytest.mark.parametrize("said, given, lends, names", [
    ({"elastic": "4"}, (8,), False, "elastic"), ({"elastic": "8"}, (8,), False, "elastic"),
    ({"elastic": "4"}, (4, 4), False, "elastic"), ({"cores_policy": "elastic"}, (8,), False, "cores-policy"),
    ({"time_slicing": "false"}, (8,), True, "time-slicing"), ({"oversubscribe": "true"}, (8,), False, "oversubscribe"),
    ({"split": "whole-first"}, (8,), False, "split"), ({"split": "whole-first"}, (8, 4), False, ""),
    ({"split": "whole-first"}, (8, 8), False, ""), ({"split": "whole-first"}, (), False, ""),
    ({"elastic": "9"}, (8,), False, ""), ({"elastic": "true"}, (8,), False, ""), ({"elastic": "5"}, (4, 4), False, ""),
    ({"elastic": "5"}, (4, 8), False, ""), ({"elastic": "8"}, (), False, ""),
    ({"cores_policy": "elastic", "cores": "5"}, (8,), False, ""), ({"cores_policy": "hard"}, (8,), False, ""),
    ({"time_slicing": "false", "oversubscribe": "true"}, (8,), True, ""), ({}, (8,), False, ""),
])  # fmt: skip
def test_what_has_no_effect_is_said(said, given, lends, names):
    found = options(**said).idle(given, lends)
    assert len(found) == bool(names)
    assert not names or (f"gigaslice.io/{names}" in found[0] and "no effect" in found[0])


def test_a_named_gpu_of_another_kind_is_not_said_to_be_missing():
    answer = options(gpu_uuid=uuid(1), exclude_gpu_type="L40").allowed_gpus(inventory(2).gpus)
    assert answer == {uuid(1)}
    mixed = [replace(gpu, model="NVIDIA A100") if gpu.index else gpu for gpu in inventory(2).gpus]
    answer = options(gpu_uuid=uuid(0), gpu_type="A100").allowed_gpus(mixed)
    assert isinstance(answer, Infeasible)
    assert f"{uuid(0)}, NVIDIA L4" in answer.detail and "no GPU of type A100" in answer.detail


def test_the_size_of_a_slice_counts():
    coarse = SliceUnit(8 * GIB, units.parse_bytes)
    assert options(unit=coarse, memory="8GiB,16GiB").parts == (1, 2)
    assert "whole slices of 8192 MiB" in options(unit=coarse, memory="12GiB").mistakes[0]


def test_which_gpus_are_allowed():
    gpus = inventory(3).gpus
    everything = frozenset(gpu.uuid for gpu in gpus)
    assert options().allowed_gpus(gpus) == everything
    assert options(gpu_type="l4").allowed_gpus(gpus) == everything
    assert options(exclude_gpu_uuid=uuid(1).replace("6e1b", "6E1B")).allowed_gpus(gpus) == everything - {
        uuid(1)
    }
    assert options(gpu_uuid=uuid(2)).allowed_gpus(gpus) == {uuid(2)}
    for said, words in (
        ({"gpu_type": "A100"}, "no GPU of type A100 on this node; it has NVIDIA L4"),
        ({"gpu_type": "L"}, "no GPU of type L"),
        ({"exclude_gpu_type": "NVIDIA"}, "no GPU other than NVIDIA"),
        ({"gpu_uuid": "GPU-0"}, uuid(0)),
    ):
        answer = options(**said).allowed_gpus(gpus)
        assert isinstance(answer, Infeasible) and answer.permanent and words in answer.detail


@given(
    st.dictionaries(
        st.sampled_from([f"gigaslice.io/{row.name}" for row in ANNOTATIONS]), st.text(max_size=30)
    )
)
def test_no_text_breaks_it(annotations):
    found = parse_options(annotations, "main", UNIT, AnnotationRights.CHECKED)
    assert all("\n" not in sentence for sentence in found.mistakes)
    found.contradictions(8)
    found.allowed_gpus(inventory().gpus)


KEYS = st.one_of(
    st.sampled_from([row.name for row in ANNOTATIONS]).map(lambda name: PREFIX + name),
    st.sampled_from([f"{row.name}.c{number}" for row in ANNOTATIONS for number in range(3)]).map(
        lambda name: PREFIX + name
    ),
    st.sampled_from([alias for row in ANNOTATIONS for alias in row.aliases]),
    st.sampled_from(
        ["a/b", PREFIX + "oops", PREFIX + "gpus.", PREFIX + "gpus.a.b", PREFIX, "gpus", "gpus.c1"]
    ),
)


@given(
    st.dictionaries(KEYS, st.sampled_from(["1", "2", "true", "H100", "8GiB", "x"])),
    st.sampled_from(["c0", "c1", "", "a.b"]),
)
def test_what_means_something_to_a_container_is_all_that_counts_for_it(annotations, container):
    meant = annotations_by_container(annotations)(container)
    assert meant.items() <= annotations.items()
    for rights in AnnotationRights:
        whole, part = (parse_options(texts, container, UNIT, rights) for texts in (annotations, meant))
        assert replace(whole, notes=()) == replace(part, notes=())


def test_a_container_costs_what_is_meant_for_it():
    """Or a pod of thousands of containers, with an annotation for each, would be millions of looks."""
    meant = annotations_by_container({f"{PREFIX}gpus.c{number}": "1" for number in range(5000)})
    assert meant("c7") == {f"{PREFIX}gpus.c7": "1"}


def test_few_names_are_compared_with_ours():
    notes = parse_options(
        {f"{PREFIX}gpuss{number}": "1" for number in range(5000)}, "c", UNIT, AnnotationRights.REFUSE
    ).notes
    assert len(notes) == 10 and all("did you mean" in note for note in notes)
