# SPDX-License-Identifier: Apache-2.0
"""Which annotations everybody may write, and which are refused where nothing compares them with a label."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core import units
from gigaslice.core.model import ANNOTATIONS, AnnotationRights, SliceUnit, annotation_rights, parse_options

UNIT = SliceUnit(1 << 30, units.parse_bytes)
MORE = {
    "exclusive": ["true", "True", "yes", "1", " true ", "TRUE\n", "no", "False", " false"],
    "elastic": ["true", " YES ", "16GiB", "1", "16", "no", "FALSE"],
    "priority": ["guaranteed", "Guaranteed", " guaranteed", "Burstable"],
    "time-slicing": ["false", "no", "0", "FALSE", "True"],
}
"""Texts that make sense and are not exactly what asks for nothing; some mean nothing more, in other words."""
FREE = {
    "exclusive": ["false"],
    "elastic": ["false"],
    "priority": ["burstable", "best-effort"],
    "time-slicing": ["true"],
}
TEXTS = [(name, text) for name, texts in MORE.items() for text in texts]


def read(annotations, rights=AnnotationRights.REFUSE, container="main", recorded=None):
    return parse_options(annotations, container, UNIT, rights, recorded=recorded)


@pytest.mark.parametrize(("name", "text"), TEXTS)
@pytest.mark.parametrize("suffix", ["", ".main"])
def test_what_is_more_than_was_counted_is_a_mistake_that_says_what_to_do(name, text, suffix):
    key = f"gigaslice.io/{name}{suffix}"
    found = read({key: text})
    (mistake,) = found.mistakes
    assert mistake.startswith(f"{key}: ") and "leave it out, or write" in mistake and "\n" not in mistake
    assert all(f'"{free}"' in mistake for free in FREE[name])
    assert f'gigaslice.io/allow-{name}: "true"' in mistake and "admission.rights=deny" in mistake
    assert found.exclusive is found.elastic is False and found.max_slices is None
    assert found.priority == "burstable" and found.time_slicing
    assert read({key: text}, AnnotationRights.CHECKED).mistakes == ()


def test_other_containers_are_none_the_worse():
    assert read({"gigaslice.io/exclusive.side": "true"}).mistakes == ()
    assert read({"gigaslice.io/exclusive": "true", "gigaslice.io/exclusive.main": "false"}).mistakes == (), (
        "its own text wins"
    )


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in FREE.items() for text in texts])
def test_what_asks_for_nothing_is_free(name, text):
    assert read({f"gigaslice.io/{name}": text}).mistakes == ()


@pytest.mark.parametrize(
    "row", [row for row in ANNOTATIONS if row.name not in MORE], ids=lambda row: row.name
)
def test_all_others_are_free(row):
    for example in re.findall(r"`([^`]+)`", row.form):
        text = example.replace("…", "-1")
        for key in (f"gigaslice.io/{row.name}", f"gigaslice.io/{row.name}.main", *row.aliases):
            assert read({key: text}) == read({key: text}, AnnotationRights.CHECKED)
            assert read({key: text}).mistakes == ()


def test_a_text_that_makes_no_sense_is_told_that_alone():
    (mistake,) = read({"gigaslice.io/exclusive": "perhaps"}).mistakes
    assert 'must be "true" or "false"' in mistake and "label" not in mistake


def test_cores_are_free_up_to_what_its_row_says():
    (row,) = (row for row in ANNOTATIONS if row.name == "cores")
    assert not row.option.needs_label(" 100 ") and row.option.needs_label("101")


def test_rows_that_need_a_label_have_no_other_spelling():
    """The policy decides by the key: one that it did not know would pass it."""
    assert {row.name for row in ANNOTATIONS if row.option.free_values is not None} == set(MORE)
    assert not any(row.aliases for row in ANNOTATIONS if row.option.free_values is not None)


def test_what_a_container_has_been_given_is_no_mistake_and_more_of_it_is():
    given_before = {"elastic": True, "max_slices": 16, "exclusive": True, "priority": "guaranteed"}
    same = {
        "gigaslice.io/elastic": "16GiB",
        "gigaslice.io/exclusive": "true",
        "gigaslice.io/priority": "guaranteed",
    }
    found = read(same, recorded=given_before)
    assert found.mistakes == () and found.elastic and found.exclusive and found.priority == "guaranteed"
    for more in (
        {"gigaslice.io/elastic": "true"},
        {"gigaslice.io/elastic": "17"},
        {"gigaslice.io/time-slicing": "0"},
    ):
        assert len(read({**same, **more}, recorded=given_before | {"time_slicing": True}).mistakes) == 1


@given(
    st.dictionaries(
        st.sampled_from([f"gigaslice.io/{name}{end}" for name in MORE for end in ("", ".main", ".side")]),
        st.one_of(
            st.sampled_from(sorted({text for texts in [*MORE.values(), *FREE.values()] for text in texts})),
            st.text(max_size=12),
        ),
    )
)
def test_refused_is_refused_whatever_is_written(annotations):
    found = read(annotations)
    assert not found.exclusive and not found.elastic and found.max_slices is None
    assert found.priority in ("burstable", "best-effort") and found.time_slicing


def test_the_setting_takes_two_words_and_is_refuse_where_nothing_is_said():
    assert annotation_rights("checked") is AnnotationRights.CHECKED
    with pytest.raises(ValueError, match="must be one of refuse, checked"):
        annotation_rights("off")
