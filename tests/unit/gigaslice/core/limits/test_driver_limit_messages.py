# SPDX-License-Identifier: Apache-2.0
"""Messages between the node agent and `gigaslice driver-limits`: what is taken, and each thing that is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.errors import InputError
from gigaslice.core.kube.json_text import read_json
from gigaslice.core.limits.driver_limit_messages import (
    MOST_LEAVES,
    MOST_PIDS,
    ApplyAnswer,
    ApplyRequest,
    ContainerLimits,
    GpuLimitState,
    GpuSupport,
    Leaf,
    MessageError,
    PodLimits,
    PodLimitState,
    SupportAnswer,
    WatchAnswer,
    WatchRequest,
)

UID = "2c48913c-b29f-11e7-9350-020968147796"
GPU = "GPU-00000000-0000-4000-8000-000000000001"
CONTAINER = "a1" * 32

hexadecimal = "0123456789abcdef"
uids = st.uuids().map(str) | st.text(hexadecimal, min_size=32, max_size=32)
gpus = st.uuids().map(lambda uuid: f"GPU-{uuid}")
containers = st.text(hexadecimal, min_size=64, max_size=64)
numbers = st.integers(0, (1 << 63) - 1)
sentences = st.text(st.characters(categories=["L", "N", "P"]), max_size=20)
limits = st.dictionaries(gpus, numbers, max_size=4)
states = st.builds(GpuLimitState, st.none() | numbers, st.none() | numbers, sentences)
leaves = st.builds(
    Leaf,
    st.just("") | containers,
    gpus,
    st.none() | numbers,
    st.lists(st.integers(1, 4_000_000), max_size=MOST_PIDS).map(tuple),
)


@st.composite
def apply_requests(draw):
    pods = draw(st.lists(st.builds(PodLimits, uids, limits), max_size=4, unique_by=lambda pod: pod.uid))
    if not pods:
        return ApplyRequest(())
    named = st.builds(ContainerLimits, st.sampled_from([pod.uid for pod in pods]), containers, limits)
    return ApplyRequest(
        tuple(pods), tuple(draw(st.lists(named, max_size=3, unique_by=lambda each: each.container)))
    )


support_answers = st.builds(
    lambda backend, reason, driver, shown: SupportAnswer(
        backend, reason or "no call" if backend == "none" else "", driver, shown
    ),
    st.sampled_from(["dmem", "misc", "none"]),
    sentences,
    sentences,
    st.dictionaries(gpus, st.builds(GpuSupport, numbers, st.none() | st.booleans()), max_size=3),
)
apply_answers = st.lists(
    st.builds(
        PodLimitState,
        uids,
        st.booleans(),
        sentences,
        st.dictionaries(gpus, states, max_size=3),
        st.lists(leaves, max_size=3).map(tuple),
    ),
    max_size=4,
    unique_by=lambda pod: pod.uid,
).map(lambda pods: ApplyAnswer(tuple(pods)))
watch_answers = st.builds(WatchAnswer, numbers, st.lists(uids, max_size=4, unique=True).map(tuple))


def sent(document):
    return read_json(json.dumps(document).encode())


@given(support_answers | apply_answers | watch_answers)
def test_an_answer_arrives_as_it_was(answer):
    assert type(answer).decode(sent(answer.encode())) == answer


@given(apply_requests())
def test_limits_arrive_as_they_were_asked_for(request):
    assert ApplyRequest.decode(sent(request.encode())["apply"]) == request


@given(st.builds(WatchRequest, numbers, st.floats(0, 60)))
def test_a_watch_arrives_as_it_was_asked_for(request):
    assert WatchRequest.decode(sent(request.encode())["watch"]) == request


def test_what_is_not_known_is_ignored():
    assert ApplyRequest.decode({"pods": [{"uid": UID, "gpus": {}, "new": 1}], "more": {}}) == ApplyRequest(
        (PodLimits(UID, {}),)
    )


POD = {"uid": UID, "gpus": {GPU: 1 << 30}}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"pods": {}},
        {"pods": [7]},
        {"pods": [{"uid": UID}]},
        {"pods": [{**POD, "uid": 7}]},
        {"pods": [{**POD, "uid": UID.upper()}]},
        {"pods": [{**POD, "uid": UID + "\n"}]},
        {"pods": [{**POD, "uid": "../" + UID}]},
        {"pods": [{**POD, "uid": "0f" * 15}]},
        {"pods": [{**POD, "uid": UID.replace("-", "_")}]},
        {"pods": [{**POD, "gpus": [GPU]}]},
        {"pods": [{**POD, "gpus": {"GPU-1": 1}}]},
        {"pods": [{**POD, "gpus": {GPU.replace("GPU", "MIG"): 1}}]},
        {"pods": [{**POD, "gpus": {GPU + "/..": 1}}]},
        {"pods": [{**POD, "gpus": {GPU: True}}]},
        {"pods": [{**POD, "gpus": {GPU: False}}]},
        {"pods": [{**POD, "gpus": {GPU: -1}}]},
        {"pods": [{**POD, "gpus": {GPU: 1.0}}]},
        {"pods": [{**POD, "gpus": {GPU: "1"}}]},
        {"pods": [{**POD, "gpus": {GPU: None}}]},
        {"pods": [{**POD, "gpus": {GPU: (1 << 64) - 1}}]},
        {"pods": [POD, POD]},
        {"pods": [POD], "containers": None},
        {"pods": [POD], "containers": [{**POD, "container": "a1" * 31}]},
        {"pods": [POD], "containers": [{**POD, "container": "A1" * 32}]},
        {"pods": [POD], "containers": [{**POD, "container": f"{'a1' * 32}/.."}]},
        {"pods": [POD], "containers": [{**POD, "container": CONTAINER}] * 2},
        {"pods": [], "containers": [{**POD, "container": CONTAINER}]},
    ],
)
def test_limits_that_make_no_sense_are_refused_in_one_sentence(document):
    with pytest.raises(InputError) as refusal:
        ApplyRequest.decode(document)
    text = str(refusal.value)
    assert text and text.isprintable() and len(text) < 200


@pytest.mark.parametrize("sequence", [-1, True, 1.0, "1", None])
def test_a_watch_has_a_number(sequence):
    with pytest.raises(MessageError):
        WatchRequest.decode({"sequence": sequence, "seconds": 1})


@pytest.mark.parametrize("seconds", [-1, 61, True, "1", None, float("nan")])
def test_a_watch_ends(seconds):
    with pytest.raises(MessageError):
        WatchRequest.decode({"sequence": 1, "seconds": seconds})


SUPPORT = {"backend": "misc", "reason": "", "driver": "615.10", "gpus": {GPU: {"total": 1}}}
LEAF = {"container": CONTAINER, "gpu": GPU, "hard": None, "pids": [7]}
STATE = {
    "uid": UID,
    "present": True,
    "problem": "",
    "gpus": {GPU: {"hard": 1, "used": None, "problem": ""}},
    "leaves": [LEAF],
}


@pytest.mark.parametrize(
    ("answer", "document"),
    [
        (SupportAnswer, {**SUPPORT, "backend": "v1"}),
        (SupportAnswer, {**SUPPORT, "backend": None}),
        (SupportAnswer, {**SUPPORT, "backend": "none"}),
        (SupportAnswer, {**SUPPORT, "reason": "but"}),
        (SupportAnswer, {**SUPPORT, "driver": 615}),
        (SupportAnswer, {**SUPPORT, "gpus": {GPU: {"total": True}}}),
        (SupportAnswer, {**SUPPORT, "gpus": {GPU: {"total": 1, "persistence": 1}}}),
        (SupportAnswer, {**SUPPORT, "gpus": {"0": {"total": 1}}}),
        (ApplyAnswer, {"pods": [STATE, STATE]}),
        (ApplyAnswer, {"pods": [{**STATE, "present": 1}]}),
        (ApplyAnswer, {"pods": [{**STATE, "problem": None}]}),
        (ApplyAnswer, {"pods": [{**STATE, "gpus": {GPU: {"hard": -1, "used": 0, "problem": ""}}}]}),
        (ApplyAnswer, {"pods": [{**STATE, "gpus": {GPU: {"hard": 1, "used": False, "problem": ""}}}]}),
        (ApplyAnswer, {"pods": [{**STATE, "gpus": {GPU: 7}}]}),
        (ApplyAnswer, {"pods": [{**STATE, "leaves": [{**LEAF, "container": "x"}]}]}),
        (ApplyAnswer, {"pods": [{**STATE, "leaves": [{**LEAF, "gpu": "x"}]}]}),
        (ApplyAnswer, {"pods": [{**STATE, "leaves": [{**LEAF, "pids": [0]}]}]}),
        (ApplyAnswer, {"pods": [{**STATE, "leaves": [{**LEAF, "pids": [7] * (MOST_PIDS + 1)}]}]}),
        (ApplyAnswer, {"pods": [{**STATE, "leaves": [LEAF] * (MOST_LEAVES + 1)}]}),
        (WatchAnswer, {"sequence": 1, "uids": [UID, UID]}),
        (WatchAnswer, {"sequence": 1, "uids": ["kubepods"]}),
        (WatchAnswer, {"sequence": True, "uids": []}),
        (WatchAnswer, {"sequence": 1}),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(answer, document):
    with pytest.raises(MessageError):
        answer.decode(document)


def test_text_of_an_answer_is_one_line():
    answer = SupportAnswer.decode({**SUPPORT, "backend": "none", "reason": "a\x1b[2J\nb"})
    assert answer.reason.isprintable()
