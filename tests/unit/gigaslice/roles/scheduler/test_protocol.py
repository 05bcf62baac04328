# SPDX-License-Identifier: Apache-2.0
"""What kube-scheduler sends is read, whatever its version; what it would never send is refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gigaslice.roles.scheduler.protocol import (
    BindRequest,
    ExtenderRequestError,
    PodRequest,
    PreemptRequest,
    encode,
    scores_reply,
)

POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}


def text(**document: Any) -> bytes:
    return json.dumps(document).encode()


def test_names_of_nodes():
    found = PodRequest.decode(text(Pod=POD, Nodes=None, NodeNames=["a", "b"]))
    assert (str(found.pod), list(found.names), found.nodes) == ("n/p", ["a", "b"], None)
    reply = found.filter_reply(["a"], {"b": "too full"}, {})
    assert reply == {
        "NodeNames": ["a"],
        "FailedNodes": {"b": "too full"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_whole_nodes_come_back_as_they_were():
    nodes = [{"metadata": {"name": name}, "spec": {"x": name}} for name in ("a", "b")]
    found = PodRequest.decode(text(Pod=POD, Nodes={"items": nodes}, NodeNames=None))
    assert list(found.names) == ["a", "b"]
    reply = found.filter_reply(["b"], {}, {"a": "unhealthy"})
    assert reply["Nodes"] == {"items": [nodes[1]]} and "NodeNames" not in reply


@pytest.mark.parametrize(
    "document", [{"NodeNames": []}, {"Nodes": {"items": []}}, {"Nodes": {"items": None}}, {}]
)
def test_no_nodes_are_no_mistake(document: dict[str, Any]):
    found = PodRequest.decode(text(Pod=POD, **document))
    assert list(found.names) == []
    assert encode(found.filter_reply([], {}, {}))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON object"),
        (b"\xff\xfe{", "no JSON object"),
        (b"[]", "no JSON object"),
        (b'{"Pod": ' + b"[" * 100_000, "no JSON object"),
        (text(NodeNames=["a"]), "no Pod"),
        (text(Pod=[], NodeNames=["a"]), "no Pod"),
        (text(Pod={"metadata": {}}, NodeNames=["a"]), "cannot be understood"),
        (text(Pod=POD, NodeNames="a"), "NodeNames is no list"),
        (text(Pod=POD, NodeNames=[1, "a"]), "NodeNames is no list of names"),
        (text(Pod=POD, NodeNames=["a", None]), "NodeNames is no list of names"),
        (text(Pod=POD, NodeNames=[["a"]]), "NodeNames is no list of names"),
        (text(Pod=POD, Nodes={"items": 5}), "the nodes are no list"),
        (text(Pod=POD, Nodes={"items": {"a": 1}}), "the nodes are no list"),
        (text(Pod=POD, Nodes={"items": [{}]}), "a node has no name"),
        (text(Pod=POD, Nodes={"items": ["a"]}), "a node has no name"),
        (text(Pod=POD, Nodes={"items": [{"metadata": {"name": 3}}]}), "a node has no name"),
    ],
)
def test_what_no_scheduler_sends_is_refused_with_a_sentence(body: bytes, words: str):
    with pytest.raises(ExtenderRequestError, match=words):
        PodRequest.decode(body)


def test_scores():
    assert scores_reply([("a", 400), ("b", 0)]) == [{"Host": "a", "Score": 400}, {"Host": "b", "Score": 0}]
    assert scores_reply([]) == []


def test_victims_by_uid_and_as_whole_pods():
    by_uid = {"a": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1}, "b": {"Pods": None}}
    found = PreemptRequest.decode(text(Pod=POD, NodeNameToMetaVictims=by_uid))
    assert found.victims == {"a": ("u1", "u2"), "b": ()}
    whole = {"a": {"Pods": [{"metadata": {"uid": "u1"}}]}}
    assert PreemptRequest.decode(text(Pod=POD, NodeNameToVictims=whole)).victims == {"a": ("u1",)}
    assert found.reply({"a": ("u2",)}) == {
        "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u2"}], "NumPDBViolations": 1}}
    }
    assert found.reply({}) == {"NodeNameToMetaVictims": {}}


@pytest.mark.parametrize(
    ("victims", "words"),
    [
        (["a"], "the victims are no object"),
        ({"a": ["u"]}, "the victims of a node are no list"),
        ({"a": {"Pods": "u"}}, "the victims of a node are no list"),
        ({"a": {"Pods": ["u"]}}, "a victim has no UID"),
        ({"a": {"Pods": [{"metadata": None}]}}, "a victim has no UID"),
    ],
)
def test_victims_that_make_no_sense(victims: object, words: str):
    with pytest.raises(ExtenderRequestError, match=words):
        PreemptRequest.decode(text(Pod=POD, NodeNameToMetaVictims=victims))


def test_a_binding_needs_pod_uid_and_node():
    whole = {"PodNamespace": "n", "PodName": "p", "PodUID": "u", "Node": "a"}
    assert BindRequest.decode(text(**whole)) == BindRequest("n", "p", "u", "a")
    for key in whole:
        for absent in ({key: ""}, {key: None}, {key: 3}):
            with pytest.raises(ExtenderRequestError, match="is missing"):
                BindRequest.decode(text(**{**whole, **absent}))
