# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset prefetch` as a user sees it: what it prints, and how it judges pods."""

from __future__ import annotations

import io
import json
import time

import pytest
import yaml

from gigaslice.core.dataset.objects import DRIVER, CachedDataset, DatasetNode
from gigaslice.core.dataset.prefetch import RUN_LABEL
from gigaslice_cli import frame
from tests.fakes.kubeapi import ApiServer, Fault, node_document

READY = {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]}
PULL_FAILED = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
MOUNTING = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "low on disk"}
NODES = ("node-a", "node-b", "node-c")
SOURCE = "s3://datasets/coco"


def node_of(pod):
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]


@pytest.fixture
def api():
    with ApiServer() as server:
        for name in NODES:
            labels = {"gpu": "yes"} if name != "node-c" else {}
            server.create("nodes", node_document(name, labels=labels))
            server.create("csinodes", {"metadata": {"name": name}, "spec": {"drivers": [{"name": DRIVER}]}})
        dataset = {"metadata": {"name": "coco", "namespace": "team"}, "spec": {"source": SOURCE}}
        server.create("datasets", dataset, "team")
        yield server


@pytest.fixture
def run(api, tmp_path, capsys):
    config = api.kubeconfig(tmp_path)

    def go(*words, code=0):
        status = frame.main(["dataset", "prefetch", *words, "-n", "team", "--kubeconfig", str(config)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert status == code, out + err
        return out, err

    return go


@pytest.fixture
def judge(monkeypatch, capsys):
    def go(text, code=0):
        text = text if isinstance(text, bytes) else json.dumps(text).encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert frame.main(["dataset", "prefetch", "--judge"]) == code
        return capsys.readouterr()

    return go


def pods_in(out):
    return list(yaml.safe_load_all(out))


def test_every_node_gets_a_pod_and_nothing_is_made(api, run):
    out, err = run("coco", "--all-nodes", "--secret", "s3", "--timeout", "90s", "--tolerate", "team")
    pods = pods_in(out)
    assert sorted(map(node_of, pods)) == list(NODES)
    csi = pods[0]["spec"]["volumes"][0]["csi"]
    assert csi["volumeAttributes"] == {"dataset": "coco"}
    assert csi["nodePublishSecretRef"] == {"name": "s3"}
    assert {(pod["metadata"]["namespace"], pod["spec"]["activeDeadlineSeconds"]) for pod in pods} == {
        ("team", 90)
    }
    assert {"key": "team", "operator": "Exists"} in pods[0]["spec"]["tolerations"]
    assert len({pod["metadata"]["name"] for pod in pods}) == 3
    (run_label,) = {pod["metadata"]["labels"][RUN_LABEL] for pod in pods}
    assert f"kubectl delete pods -n team -l {RUN_LABEL}={run_label}" in err
    assert "node-a: is to fetch it" in err
    assert api.asked("POST", "/") == api.asked("GET", "/secrets") == api.asked("GET", "/pods") == 0


def test_two_runs_do_not_meet(run):
    first, second = (pods_in(run("coco", "--nodes", "node-a")[0])[0]["metadata"] for _ in range(2))
    assert first["name"] != second["name"] and first["labels"] != second["labels"]


def test_a_source_needs_no_object(run):
    out, _ = run("s3://other/data", "--options", "endpoint=http://minio:9000", "--nodes", "node-b")
    assert pods_in(out)[0]["spec"]["volumes"][0]["csi"]["volumeAttributes"] == {
        "source": "s3://other/data",
        "options": "endpoint=http://minio:9000",
    }


def test_so_many_nodes_those_that_have_it_first_and_the_same_each_time(api, run):
    first, _ = run("coco", "--count", "2", "-o", "text")
    assert len(first.splitlines()) == 2
    assert run("coco", "--count", "2", "-o", "text")[0] == first
    other = next(name for name in NODES if name not in first)
    cache = DatasetNode(other, datasets=(CachedDataset("k", SOURCE, "d", 100, "Fetching", 10),))
    api.create("datasetnodes", cache.document())
    again, _ = run("coco", "--count", "2", "-o", "text")
    assert again.splitlines()[0] == f"{other}: has it, or is fetching it"


def test_what_a_service_that_was_switched_off_has_left_is_no_copy(api, run):
    copy = CachedDataset("k", SOURCE, "d", 100)
    for name, age in (("node-a", 86400), ("node-b", 60)):
        api.create("datasetnodes", DatasetNode(name, datasets=(copy,), renewed=time.time() - age).document())
    out, _ = run("coco", "--nodes", "node-a,node-b", "-o", "text")
    assert "node-b: has it" in out and "node-a: has it" not in out


def test_nodes_that_cannot_be_used_are_named(api, run):
    api.change("nodes", "node-a", {"spec": {"unschedulable": True}})
    api.change("csinodes", "node-b", {"spec": {"drivers": []}})
    out, err = run("coco", "--nodes", "node-a,node-b,node-c,node-d", code=1)
    assert [node_of(pod) for pod in pods_in(out)] == ["node-c"]
    assert "node-a: it is cordoned; kubectl uncordon node-a" in err
    assert "node-b: it has no dataset service" in err
    assert 'node-d: there is no such node; did you mean "node-' in err
    _, err = run("coco", "--count", "3")
    assert "note: only 1 of 3 nodes can be used" in err
    _, err = run("coco", "--selector", "gpu=yes", code=1)
    assert "none of 2 nodes can be used" in err
    _, err = run("coco", "--selector", "gpu=no", code=1)
    assert "no node has the labels gpu=no" in err


def test_with_few_rights_named_nodes_are_enough(api, run):
    for part in ("/nodes", "/csinodes", "/datasetnodes", "/datasets"):
        api.faults.append(Fault("GET", part, status=403))
    out, err = run("coco", "--nodes", "node-a,elsewhere")
    assert [node_of(pod) for pod in pods_in(out)] == ["node-a", "elsewhere"]
    assert "note: nodes cannot be listed with these credentials, so they are taken as named" in err
    assert "note: Dataset team/coco cannot be read" in err
    _, err = run("coco", "--count", "2", code=1)
    assert "name some with --nodes a,b" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ("coco",),
            2,
            "no nodes are named; write --nodes a,b, --selector key=value, --count N or --all-nodes",
        ),
        (("coco", "--nodes", "a", "--count", "1"), 2, "--nodes names the nodes"),
        (("coco", "--all-nodes", "--count", "1"), 2, "--all-nodes is every node"),
        (("coco", "--count", "0"), 2, "whole number from 1"),
        (("coco", "--all-nodes", "--timeout", "soon"), 2, "must be a time"),
        (("--all-nodes",), 2, "NAME is missing"),
        (("coco", "--judge"), 2, "leave NAME and the nodes out"),
        (("--judge", "--all-nodes"), 2, "leave NAME and the nodes out"),
        (("coco", "--all-nodes", "--options", "a=b"), 2, "--options goes with a source"),
        (("s4://a/b", "--all-nodes"), 2, "s4"),
        (("cocos", "--all-nodes"), 1, 'there is no Dataset team/cocos; did you mean "coco"?'),
        (("other/coco", "--all-nodes"), 1, "there is one in namespace team"),
    ],
)
def test_mistakes(run, words, code, says):
    out, err = run(*words, code=code)
    assert says in err
    assert out == ""


def test_a_dataset_of_another_namespace_has_to_allow_it(api, run):
    spec = {"source": SOURCE, "allowedNamespaces": []}
    api.create("datasets", {"metadata": {"name": "secret", "namespace": "other"}, "spec": spec}, "other")
    _, err = run("other/secret", "--all-nodes", code=1)
    assert "not for pods of namespace team; add it to allowedNamespaces" in err
    api.change("datasets", "secret", {"spec": {"allowedNamespaces": ["team"]}}, "other")
    assert len(pods_in(run("other/secret", "--all-nodes")[0])) == 3


def test_the_pods_of_a_run_are_judged(run, judge):
    pods = pods_in(run("coco", "--all-nodes")[0])
    for pod, status in zip(
        sorted(pods, key=node_of), (READY, PULL_FAILED, {"phase": "Succeeded"}), strict=True
    ):
        pod["status"] = status
    other = {"metadata": {"name": "other"}, "status": {"phase": "Failed"}}
    out, err = judge({"items": [*pods, other]})
    assert (out, err) == ("node-a: ready\nnode-b: ready\nnode-c: ready\n", "")
    assert judge(pods[0]).out.endswith(": ready\n"), "one pod is no list"


def test_a_node_without_the_data_is_told_with_the_reason(run, judge):
    pods = sorted(pods_in(run("coco", "--all-nodes")[0]), key=node_of)
    untolerated = "0/3 nodes are available: 1 node(s) had untolerated taint {team: a}\x1b[2J"
    condition = {"type": "PodScheduled", "status": "False", "message": untolerated}
    pods[0]["status"], pods[1]["status"] = EVICTED, {"phase": "Pending", "conditions": [condition]}
    pods[2]["status"] = MOUNTING
    out, err = judge({"items": pods}, code=1)
    assert out.splitlines() == [
        "node-a: failed: the pod failed: Evicted: low on disk",
        "node-b: waiting: not scheduled: " + untolerated.replace("\x1b", "\\x1b"),
        "node-c: waiting",
    ]
    assert "3 of 3 nodes do not have it; what they have fetched is kept" in err


@pytest.mark.parametrize("text", [b"", b"NAME READY", b"[]", b"\xff"])
def test_what_is_no_list_of_pods_is_refused(judge, text):
    assert "standard input is no list of pods" in judge(text, code=1).err


@pytest.mark.parametrize("document", [{}, {"items": []}, {"items": [{"metadata": {"name": "other"}}]}])
def test_a_list_without_such_pods_is_refused(judge, document):
    assert "there is no pod of a prefetch among them" in judge(document, code=1).err
