"""`gigaslice dataset prefetch` as a user sees it, against the API server stand-in and a kubelet that tests direct."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest
import yaml

from agent import cli
from agent.commands import dataset_prefetch
from gigaslice.dataset.objects import DRIVER, CachedDataset, DatasetNode
from gigaslice.dataset.prefetch import MANAGED_BY, MANAGER, UNTIL
from tests.fakes.kubeapi import ApiServer, Fault
from tests.fakes.kubeapi.store import Refused

READY = {"status": {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]}}
NODES = ("node-a", "node-b", "node-c")
SOURCE = "s3://datasets/coco"


class Kubelets:
    """Gives every pod the status that `answers` has for its node; READY where it has none, nothing for None."""

    def __init__(self, api):
        self.api, self.answers, self.seen = api, {}, []
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._ended.wait(0.005):
            pods = [pod for pod in self.api.all("pods") if pod["metadata"]["labels"].get(MANAGED_BY)]
            self.most = max(self.most, len(pods))
            for pod in pods:
                name = pod["metadata"]["name"]
                if name not in self.seen:
                    self.seen.append(name)
                    answer = self.answers.get(node_of(pod), READY)
                    with contextlib.suppress(Refused):  # the pod has been deleted meanwhile
                        if callable(answer):
                            answer(pod)
                        elif answer:
                            self.api.change("pods", name, answer, "team")

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


def node_of(pod):
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]


def a_node(name, ready="True", driver=True, labels=None, **spec):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def event(pod, reason, text, at="2026-01-01T00:00:00Z"):
    return {
        "metadata": {"name": f"{pod['metadata']['name']}.{reason}.{at[-2]}", "namespace": "team"},
        "involvedObject": {"kind": "Pod", "name": pod["metadata"]["name"]},
        "reason": reason,
        "message": text,
        "lastTimestamp": at,
    }


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setattr(dataset_prefetch, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(dataset_prefetch, "_TELL_SECONDS", 0.02)
    with ApiServer() as server:
        for name in NODES:
            server.create("nodes", a_node(name, labels={"gpu": "yes"} if name != "node-c" else {}))
            server.create("csinodes", {"metadata": {"name": name}, "spec": {"drivers": [{"name": DRIVER}]}})
        dataset = {"metadata": {"name": "coco", "namespace": "team"}, "spec": {"source": SOURCE}}
        server.create("datasets", dataset, "team")
        yield server


@pytest.fixture
def kubelets(api):
    with Kubelets(api) as found:
        yield found


@pytest.fixture
def run(api, kubelets, tmp_path, capsys):
    config = api.kubeconfig(tmp_path)

    def go(*words, code=0):
        found = cli.main(["dataset", "prefetch", *words, "-n", "team", "--kubeconfig", str(config)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert found == code, out + err
        return out, err

    return go


def made(api):
    return [body for body in api.accepted("POST", "/pods") if body["kind"] == "Pod"]


def test_every_node_gets_a_pod_and_none_stays(api, run):
    out, err = run("coco", "--all-nodes", "--secret", "s3")
    assert sorted(line.partition(":")[0] for line in out.splitlines()) == list(NODES)
    assert err == ""
    assert sorted(map(node_of, made(api))) == list(NODES)
    csi = made(api)[0]["spec"]["volumes"][0]["csi"]
    assert csi["volumeAttributes"] == {"dataset": "coco"}
    assert csi["nodePublishSecretRef"] == {"name": "s3"}
    assert api.all("pods") == []
    assert api.asked("GET", "/secrets") == 0


def test_a_source_needs_no_object(api, run):
    run("s3://other/data", "--options", "endpoint=http://minio:9000", "--nodes", "node-b")
    assert made(api)[0]["spec"]["volumes"][0]["csi"]["volumeAttributes"] == {
        "source": "s3://other/data",
        "options": "endpoint=http://minio:9000",
    }


def test_so_many_nodes_those_that_have_it_first_and_the_same_each_time(api, run):
    first, _ = run("coco", "--count", "2", "--dry-run")
    assert len(first.splitlines()) == 2
    assert run("coco", "--count", "2", "--dry-run")[0] == first
    other = next(name for name in NODES if name not in first)
    cache = DatasetNode(other, datasets=(CachedDataset("k", SOURCE, "d", 100, "Fetching", 10),))
    api.create("datasetnodes", cache.document())
    again, _ = run("coco", "--count", "2", "--dry-run")
    assert again.splitlines()[0] == f"{other}: has it, or is fetching it"
    assert made(api) == []


def test_what_a_service_that_was_switched_off_has_left_is_no_copy(api, run):
    copy = CachedDataset("k", SOURCE, "d", 100)
    for name, age in (("node-a", 86400), ("node-b", 60)):
        api.create("datasetnodes", DatasetNode(name, datasets=(copy,), renewed=time.time() - age).document())
    out, _ = run("coco", "--nodes", "node-a,node-b", "--dry-run")
    assert "node-b: has it" in out and "node-a: has it" not in out


def test_what_would_be_made_is_shown_as_it_is_made(api, run):
    out, _ = run("coco", "--nodes", "node-a,node-b", "--dry-run", "-o", "yaml", "--tolerate", "team")
    shown = list(yaml.safe_load_all(out))
    run("coco", "--nodes", "node-a,node-b", "--tolerate", "team")
    for one, other in zip(shown, made(api), strict=True):
        assert one["spec"] == other["spec"]
        assert one["metadata"]["namespace"] == "team"


def test_nodes_that_cannot_be_used_are_named(api, run):
    api.change("nodes", "node-a", {"spec": {"unschedulable": True}})
    api.change("csinodes", "node-b", {"spec": {"drivers": []}})
    out, err = run("coco", "--nodes", "node-a,node-b,node-c,node-d", code=1)
    assert out.startswith("node-c: ready")
    assert "node-a: it is cordoned; kubectl uncordon node-a" in err
    assert "node-b: it has no dataset service" in err
    assert 'node-d: there is no such node; did you mean "node-' in err
    assert "3 of 4 nodes do not have it" in err
    _, err = run("coco", "--count", "3")
    assert "note: only 1 of 3 nodes can be used" in err
    _, err = run("coco", "--selector", "gpu=yes", code=1)
    assert "none of 2 nodes can be used" in err
    _, err = run("coco", "--selector", "gpu=no", code=1)
    assert "no node has the labels gpu=no" in err


def test_a_pod_that_waits_says_why_and_is_deleted_in_the_end(api, run, kubelets):
    def stuck(pod):
        prefix = 'MountVolume.SetUp failed for volume "data" : rpc error: code = Aborted desc = '
        vague = "Unable to attach or mount volumes: unmounted volumes=[data]"
        text = 'secrets "s3" not found\x1b[2J'
        for reason, message, at in (
            ("DatasetFetching", "older", "2026-01-01T00:00:01Z"),
            ("FailedMount", prefix + text, "2026-01-01T00:00:02Z"),
            ("FailedMount", vague, "2026-01-01T00:00:03Z"),
            ("Scheduled", "assigned", "2026-01-01T00:00:04Z"),
        ):
            api.create("events", event(pod, reason, message, at), "team")

    kubelets.answers["node-b"] = stuck
    out, err = run("coco", "--all-nodes", "--timeout", "2s", code=1)
    assert len(out.splitlines()) == 2
    assert 'node-b: secrets "s3" not found\\x1b[2J' in err
    assert 'node-b: not there after 2 s: secrets "s3" not found' in err
    assert "1 of 3 nodes do not have it; what they have fetched is kept: run it again to go on" in err
    assert api.all("pods") == []


def test_a_pod_that_is_not_scheduled_says_why(api, run, kubelets):
    message = "0/3 nodes are available: 1 node(s) had untolerated taint {team: a}"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    kubelets.answers["node-a"] = {"status": {"phase": "Pending", "conditions": [condition]}}
    _, err = run("coco", "--nodes", "node-a", "--timeout", "2s", code=1)
    assert f"not there after 2 s: not scheduled: {message}" in err


def test_an_image_that_cannot_be_pulled_is_no_hindrance(run, kubelets):
    kubelets.answers["node-a"] = {
        "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    }
    assert run("coco", "--nodes", "node-a", "--image", "no.such/image")[0].startswith("node-a: ready")


def test_a_pod_that_goes_has_failed(api, run, kubelets):
    kubelets.answers["node-a"] = lambda pod: api.delete("pods", pod["metadata"]["name"], "team")
    kubelets.answers["node-b"] = {
        "status": {"phase": "Failed", "reason": "Evicted", "message": "low on disk"}
    }
    out, err = run("coco", "--all-nodes", code=1)
    assert out.startswith("node-c: ready")
    assert "node-a: its pod is gone: it was deleted, or the node has left the cluster" in err
    assert "node-b: the pod failed: Evicted: low on disk" in err


def test_a_node_that_goes_away_while_it_is_waited_for_is_said(api, run, kubelets):
    kubelets.answers["node-a"] = lambda pod: api.change("nodes", "node-a", a_node("node-a", ready="Unknown"))
    _, err = run("coco", "--nodes", "node-a", "--timeout", "2s", code=1)
    assert "not there after 2 s: the node is not Ready any more" in err


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            'pods "x" is forbidden: exceeded quota: compute, requested: pods=1',
            "a quota of the namespace refuses",
        ),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": x', "Pod Security refuses"),
        ("admission webhook denied the request: image is not signed", "image is not signed"),
    ],
)
def test_a_pod_that_is_refused_says_why_and_the_others_go_on(api, run, message, says, monkeypatch):
    create = api.answers._create

    def refuse(target, body):
        if target.resource.plural == "pods" and node_of(body) == "node-a":
            raise Refused(403, "Forbidden", message)
        return create(target, body)

    monkeypatch.setattr(api.answers, "_create", refuse)
    out, err = run("coco", "--all-nodes", code=1)
    assert len(out.splitlines()) == 2
    assert says in err and "node-a:" in err


def test_only_so_many_fetch_at_a_time(run, kubelets):
    run("coco", "--all-nodes", "--parallel", "1")
    assert len(kubelets.seen) == 3
    assert kubelets.most == 1


def test_a_creation_without_an_answer_is_found_again(api, run):
    api.faults.append(Fault("POST", "/pods", status=0, effect=True, count=1))
    api.faults.append(Fault("GET", "/pods?labelSelector=gigaslice.io%2Fprefetch-run", status=503, count=2))
    out, _ = run("coco", "--all-nodes")
    assert len(out.splitlines()) == 3
    assert len(made(api)) == 3
    assert api.all("pods") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_from_outside_it_deletes_its_pods(api, run, kubelets, number):
    kubelets.answers = dict.fromkeys(NODES)

    def end():
        end = time.monotonic() + 20
        while len(kubelets.seen) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=end).start()
    run("coco", "--all-nodes", code=130)
    assert len(made(api)) == 3
    assert api.all("pods") == []


def test_pods_that_a_killed_run_left_are_deleted_by_the_next(api, run):
    for name, until in (("old", time.time() - 700), ("others", time.time() + 60), ("odd", -1)):
        metadata = {"name": name, "labels": {MANAGED_BY: MANAGER}, "annotations": {UNTIL: str(int(until))}}
        spec = made_for_nothing()
        api.create("pods", {"kind": "Pod", "metadata": metadata, "spec": spec}, "team")
    run("coco", "--nodes", "node-a")
    assert sorted(api.named("pods")) == ["odd", "others"]


def made_for_nothing():
    on_node = {"key": "metadata.name", "operator": "In", "values": [""]}
    terms = {"nodeSelectorTerms": [{"matchFields": [on_node]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def test_kept_pods_stay(api, run):
    run("coco", "--nodes", "node-a", "--keep")
    assert len(api.all("pods")) == 1


def test_two_runs_at_once_do_not_meet(api, run, kubelets):
    kubelets.answers["node-a"] = None
    run("coco", "--nodes", "node-a", "--timeout", "300ms", "--keep", code=1)
    kubelets.answers.clear()
    run("coco", "--nodes", "node-a")
    assert len(api.all("pods")) == 1, "the one of the first run"


def test_with_few_rights_named_nodes_are_enough(api, run):
    for part in ("/nodes", "/csinodes", "/datasetnodes", "/datasets", "/events"):
        api.faults.append(Fault("GET", part, status=403))
    out, err = run("coco", "--nodes", "node-a,elsewhere")
    assert len(out.splitlines()) == 2
    assert "note: nodes cannot be listed with these credentials, so they are taken as named" in err
    assert "note: Dataset team/coco cannot be read" in err
    _, err = run("coco", "--count", "2", code=1)
    assert "name some with --nodes a,b" in err


def test_without_the_right_to_make_pods(api, run):
    api.faults.append(Fault("POST", "/pods", status=403))
    _, err = run("coco", "--all-nodes", code=1)
    assert api.asked("POST", "/pods") >= 1
    assert "403" in err


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
        (("coco", "--all-nodes", "--parallel", "no"), 2, "whole number from 1"),
        (("coco", "--all-nodes", "-o", "yaml"), 2, "write --dry-run too"),
        (("coco", "--all-nodes", "--options", "a=b"), 2, "--options goes with a source"),
        (("s4://a/b", "--all-nodes"), 2, "s4"),
        (("cocos", "--all-nodes"), 1, 'there is no Dataset team/cocos; did you mean "coco"?'),
        (("other/coco", "--all-nodes"), 1, "there is one in namespace team"),
    ],
)
def test_mistakes(api, run, words, code, says):
    _, err = run(*words, code=code)
    assert says in err
    assert made(api) == []


def test_a_dataset_of_another_namespace_has_to_allow_it(api, run):
    spec = {"source": SOURCE, "allowedNamespaces": []}
    api.create("datasets", {"metadata": {"name": "secret", "namespace": "other"}, "spec": spec}, "other")
    _, err = run("other/secret", "--all-nodes", code=1)
    assert "not for pods of namespace team; add it to allowedNamespaces" in err
    api.change("datasets", "secret", {"spec": {"allowedNamespaces": ["team"]}}, "other")
    assert len(run("other/secret", "--all-nodes")[0].splitlines()) == 3


def test_the_bar_shows_how_much_of_the_data_is_there(api, run, kubelets, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(
        "agent.cli._dataset._bar.Bar.draw", lambda self, share, text: drawn.append((share, text))
    )
    kubelets.answers["node-a"] = lambda pod: api.create(
        "events", event(pod, "DatasetFetching", "dataset coco: 40 %"), "team"
    )
    cache = DatasetNode("node-a", datasets=(CachedDataset("k", SOURCE, "d", 100, "Fetching", 40),))
    api.create("datasetnodes", cache.document())
    run("coco", "--nodes", "node-a", "--timeout", "2s", code=1)
    assert (0.4, "0 of 1 nodes; node-a: dataset coco: 40 %") in drawn
