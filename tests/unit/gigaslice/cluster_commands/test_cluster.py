# SPDX-License-Identifier: Apache-2.0
"""`gigaslice explain`, `top` and `nodes` against an API server."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from gigaslice.cluster_commands.cluster import target
from gigaslice.core.cluster.state import NodeFacts
from gigaslice.core.errors import ConfigError
from gigaslice.core.model import AnnotationRights, Occupant, Pod, PodContainer, Share
from gigaslice.runtime import progress
from gigaslice.runtime.command_line import watch
from gigaslice_cli.frame import main
from tests.fakes.clusters import bound, container, facts, inventory_gpu, pod, uuid
from tests.fakes.kubeapi import ApiServer, Fault, node_document

CLASSES = "/apis/gigaslice.io/v1alpha1/resourceclasses"


@pytest.fixture
def api():
    """node-a with 6 + 6 GiB free, node-b cordoned, and a pod that wants 8."""
    with ApiServer() as found:
        found.token = ""  # as behind `kubectl proxy`
        put_node(found, facts("node-a", [inventory_gpu("node-a", index, 12) for index in range(2)]))
        put_node(found, facts("node-b", schedulable=False))
        put_pod(found, bound("u1", "node-a", (0, 6), phase="Running"))
        put_pod(found, bound("u2", "node-a", (1, 6), phase="Running"))
        put_pod(found, pod("waits", container(slices=8)))
        put_pod(found, pod("plain", container()))
        yield found


def put_node(api: ApiServer, found: NodeFacts) -> None:
    api.create(
        "nodes",
        node_document(found.name, found.inventory_text, schedulable=found.schedulable, ready=found.ready),
    )


def put_pod(api: ApiServer, made: Pod) -> None:
    limits = [{key: str(count) for key, count in one.requests.items()} for one in made.containers]
    containers = [
        {"name": one.name, "resources": {"limits": asked}}
        for one, asked in zip(made.containers, limits, strict=True)
    ]
    api.create(
        "pods",
        {
            "metadata": {"name": made.name, "uid": made.uid, "annotations": dict(made.annotations)},
            "spec": {"nodeName": made.node, "containers": containers},
            "status": {"phase": made.phase},
        },
        made.namespace,
    )


def run(api: ApiServer, capsys, *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments, "--server", api.url])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_explain(api, capsys):
    code, out, err = run(api, capsys, "explain", "pod", "pod-waits", "-n", "team")
    assert (code, err) == (0, "")
    assert out.splitlines()[:4] == [
        "team/pod-waits: waits: no node has what it asks for",
        "asks for: 8 GiB of GPU memory",
        "  node-b: would fit, but is cordoned",
        "      GPU0 A, 16 GiB of 16 GiB free: would do",
    ]
    assert "  node-a: 6 + 6 GiB free, 8 wanted on one GPU\n" in out
    assert "  kubectl uncordon node-b: it would fit there\n" in out


def test_explain_as_json(api, capsys):
    code, out, _ = run(api, capsys, "explain", "pod/pod-u1", "-n", "team", "-o", "json")
    found = json.loads(out)
    assert (code, found["situation"]) == (0, "running")


def test_a_pod_that_is_not_there(api, capsys):
    code, out, err = run(api, capsys, "explain", "pod", "pod-wait", "-n", "team")
    assert (code, out) == (1, "")
    assert err == 'gigaslice explain: error: there is no pod team/pod-wait; did you mean "pod-waits"?\n'
    _, _, err = run(api, capsys, "explain", "pod", "pod-waits")
    assert "write -n team" in err
    _, _, err = run(api, capsys, "explain", "pod", "zzz", "-n", "team")
    assert err == "gigaslice explain: error: there is no pod team/zzz\n"


def test_a_pod_that_a_quota_refuses(api, capsys):
    message = (
        'Error creating: pods "train-x7" is forbidden: exceeded quota: gpus, requested: requests.gpuclass…=1'
    )
    event = {"message": message, "reason": "FailedCreate", "metadata": {"name": "e"}}
    api.create("events", {**event, "involvedObject": {"kind": "ReplicaSet", "name": "train"}}, "team")
    _, _, err = run(api, capsys, "explain", "pod", "train-x7", "-n", "team")
    assert "a quota refuses it" in err
    assert "exceeded quota: gpus" in err


def test_explain_judges_annotations_as_the_agents_do_or_as_it_is_told(api, capsys, monkeypatch):
    put_pod(api, pod("alone", container(slices=8), annotations={"exclusive": "true"}))
    arguments = ("explain", "pod", "pod-alone", "-n", "team")
    assert "gigaslice.io/allow-exclusive" in run(api, capsys, *arguments)[1]
    assert "allow-exclusive" not in run(api, capsys, *arguments, "--annotation-rights", "checked")[1]
    monkeypatch.setenv("GIGASLICE_ANNOTATION_RIGHTS", "checked")
    assert "allow-exclusive" not in run(api, capsys, *arguments)[1]
    assert "allow-exclusive" in run(api, capsys, *arguments, "--annotation-rights", "refuse")[1]
    monkeypatch.setenv("GIGASLICE_ANNOTATION_RIGHTS", "yes")
    code, _, said = run(api, capsys, *arguments)
    assert code == 2 and "must be one of refuse, checked" in said
    monkeypatch.delenv("GIGASLICE_ANNOTATION_RIGHTS")
    gpus = [inventory_gpu("node-c", index, 12) for index in range(8)]
    put_node(api, facts("node-c", gpus, rights=AnnotationRights.CHECKED))
    assert "allow-exclusive" not in run(api, capsys, *arguments)[1], "most agents take it"


def test_nodes(api, capsys):
    code, out, _ = run(api, capsys, "nodes")
    assert code == 0
    assert out.splitlines()[0].split() == ["NODE", "GPU", "MODEL", "FREE", "OF", "HELD", "BY", "HEALTH"]
    assert "node-a    0  A       6 GiB  12 GiB  team/pod-u1 6 GiB  healthy" in out
    assert "cordoned" in out
    assert "4 GPUs: 12 GiB held" in out


@pytest.mark.parametrize("gpus", ['["x"]', "[null]", "[]", '[{"uuid":1}]'])
def test_a_node_and_a_pod_that_cannot_be_read_end_no_command(gpus, api, capsys):
    put_node(api, NodeFacts("node-c", f'{{"schema":1,"gpus":{gpus},"levels":[[]],"held":"x"}}'))
    odd = {"metadata": {"name": "odd", "annotations": [1]}, "spec": {"nodeName": "node-a"}}
    api.create("pods", odd, "team")
    for words in (("nodes",), ("top",), ("explain", "pod", "pod-waits", "-n", "team")):
        code, out, err = run(api, capsys, *words)
        assert code == 0, err
        assert (
            "pod team/odd cannot be read, so node node-a gets nothing new: metadata.annotations must be an object"
            in err
        )
    assert "node-a: a pod on the node cannot be read" in out


def test_a_cluster_whose_resources_have_other_names(api, capsys):
    gpus = [inventory_gpu("node-c", index, 16, resource="example.com/gib") for index in range(8)]
    put_node(api, facts("node-c", gpus, whole_resource="example.com/gpu"))
    for name, resource in (("wide", "example.com/gib"), ("other", "example.com/nic")):
        put_pod(api, pod(name, PodContainer("c", requests={resource: 20})))
    code, out, _ = run(api, capsys, "explain", "pod", "pod-wide", "-n", "team")
    assert (code, out.splitlines()[:2]) == (
        0,
        ["team/pod-wide: fits on 1 node now, such as node-c", "asks for: 20 GiB of GPU memory"],
    )


def test_nodes_as_json_and_as_a_picture(api, capsys):
    _, out, _ = run(api, capsys, "nodes", "--format", "json")
    found = json.loads(out)
    assert [node["name"] for node in found["nodes"]] == ["node-a", "node-b"]
    assert found["nodes"][0]["gpus"][0]["holders"] == [
        {"namespace": "team", "pod": "pod-u1", "slices": 6, "cores": 0}
    ]
    _, out, _ = run(api, capsys, "nodes", "--format", "svg")
    assert ET.fromstring(out).tag == "{http://www.w3.org/2000/svg}svg"


def test_one_node_by_name_or_nodes_by_label(api, capsys):
    code, out, err = run(api, capsys, "nodes", "node-a")
    assert (code, err) == (0, "") and "node-a" in out and "node-b" not in out
    assert out.splitlines()[-1].startswith("2 GPUs")
    code, out, err = run(api, capsys, "nodes", "node-c")
    assert (code, out) == (1, "")
    assert err.startswith("gigaslice nodes: error: there is no node node-c; did you mean node-")
    api.requests.clear()
    code, out, err = run(api, capsys, "nodes", "pool=a100,zone=b")
    assert (code, err) == (0, "gigaslice nodes: no node has the labels pool=a100,zone=b\n")
    (asked,) = [path for _, path in api.requests if path.startswith("/api/v1/nodes")]
    assert parse_qs(urlsplit(asked).query)["labelSelector"] == ["pool=a100,zone=b"]


def test_lists_in_every_format(api, capsys):
    _, as_json, _ = run(api, capsys, "nodes", "--format", "json")
    assert yaml.safe_load(run(api, capsys, "nodes", "-o", "yaml")[1]) == json.loads(as_json)
    assert run(api, capsys, "nodes", "-o", "name")[1] == "node/node-a\nnode/node-b\n"
    _, wide, _ = run(api, capsys, "nodes", "--output", "wide")
    _, table, _ = run(api, capsys, "nodes")
    assert "UUID" in wide and "GPU-" in wide and "UUID" not in table
    _, as_json, _ = run(api, capsys, "top", "-o", "json")
    assert yaml.safe_load(run(api, capsys, "top", "-o", "yaml")[1]) == json.loads(as_json)
    assert run(api, capsys, "top", "-o", "name")[1] == "namespace/team\n"
    assert run(api, capsys, "top", "pods", "-o", "name")[1] == "pod/pod-u1\npod/pod-u2\n"
    assert run(api, capsys, "top", "-o", "wide")[1] == run(api, capsys, "top")[1]


def test_top(api, capsys):
    put_pod(api, bound("u3", "node-b", (0, 16)))
    _, out, _ = run(api, capsys, "top")
    assert out.splitlines()[1].split() == ["team", "3", "28", "GiB", "3"]
    _, out, _ = run(api, capsys, "top", "pods", "-n", "team")
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["pod-u3", "pod-u1", "pod-u2"]
    _, out, _ = run(api, capsys, "top", "-n", "other", "--format", "json")
    assert json.loads(out) == {"namespaces": []}


def test_pods_that_only_their_agent_knows_are_named(api, capsys):
    held = (Occupant("plain", (Share(uuid("node-c", 0), 3),)),)
    put_node(api, facts("node-c", 1, held=held))
    _, out, _ = run(api, capsys, "nodes")
    assert "team/pod-plain 3 GiB" in out


def test_all_pages_are_read(api, capsys):
    _, whole, _ = run(api, capsys, "nodes")
    api.store.page_size = 1
    _, out, _ = run(api, capsys, "nodes")
    assert out == whole
    assert api.asked("GET", "/pods?fieldSelector=") == 1 + 4, "one, then one for each pod"


def test_nothing_is_read_but_what_is_needed(api, capsys):
    run(api, capsys, "nodes")
    assert {path.partition("?")[0] for _, path in api.requests} == {"/api/v1/nodes", "/api/v1/pods", CLASSES}
    assert len(api.requests) == 3
    assert all("resourceVersion=0" in path for _, path in api.requests)


def test_what_may_not_be_read_is_said(api, capsys):
    api.faults += [Fault("GET", "/api/v1/pods", 403), Fault("GET", CLASSES, 403)]
    code, out, err = run(api, capsys, "nodes")
    assert code == 0
    assert "node-a" in out
    assert "pods may not be listed" in err
    assert "classes may not be listed" in err


def test_a_cluster_without_classes_is_fine(api, capsys):
    api.answers.crds = False
    assert run(api, capsys, "nodes")[2] == ""


def test_a_class_that_makes_no_sense_is_left_out_and_said(api, capsys):
    selector = {"matchExpressions": [{"key": "memory", "operator": "Near", "values": ["8GiB"]}]}
    api.create("resourceclasses", {"metadata": {"name": "odd"}, "spec": {"selector": selector}})
    code, _, err = run(api, capsys, "nodes")
    assert code == 0
    assert "class odd cannot be used" in err


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "needs get and list of nodes"), (401, "log in again"), (500, "500 denied by the test")],
)
def test_errors_say_what_to_do(api, capsys, status, words):
    api.faults.append(Fault("GET", "/api/v1/nodes", status))
    code, out, err = run(api, capsys, "nodes")
    assert (code, out) == (1, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_server_that_is_not_there(capsys):
    with ApiServer() as gone:
        url = gone.url
    assert main(["nodes", "--server", url]) == 1
    assert "127.0.0.1" in capsys.readouterr().err


@pytest.fixture
def between(monkeypatch):
    """What happens between one picture and the next; after the last of it somebody interrupts."""
    steps = []

    def sleep(_seconds):
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr(watch.time, "sleep", sleep)
    return steps


@pytest.mark.parametrize("words", ["nodes node-a", "top", "explain pod pod-waits -n team"])
def test_watching_goes_on_when_the_api_server_does_not(api, capsys, between, words):
    between += [
        lambda: api.faults.append(Fault("GET", "/api/v1/nodes", 503, count=2)),
        lambda: None,
        lambda: None,
    ]
    code, out, err = run(api, capsys, *words.split(), "--watch")
    assert code == 0
    once = run(api, capsys, *words.split())[1]
    assert out == once * 2 and api.asked("GET", "/api/v1/nodes") == 5
    (line,) = err.splitlines()
    assert line.startswith(f"gigaslice {words.split()[0]}: error: ") and "503" in line


def test_watching_ends_at_once_where_nothing_was_seen(api, capsys, between):
    api.faults.append(Fault("GET", "/api/v1/nodes", 403))
    code, out, err = run(api, capsys, "nodes", "--watch")
    assert (code, out) == (1, "") and "needs get and list of nodes" in err
    assert run(api, capsys, "nodes", "no-such", "--watch")[0] == 1


@pytest.mark.parametrize("words", ["nodes", "top pods"])
def test_what_is_watched_can_be_read_by_programs(api, capsys, between, words):
    between.append(lambda: put_pod(api, bound("u3", "node-b", (0, 16))))
    _, out, _ = run(api, capsys, *words.split(), "-o", "json", "-w")
    before, after = map(json.loads, out.splitlines())
    assert before != after and "pod-u3" in json.dumps(after)
    between.append(lambda: None)
    _, out, _ = run(api, capsys, *words.split(), "-o", "yaml", "-w")
    assert list(yaml.safe_load_all(out)) == [after, after]


def test_a_picture_is_not_watched(api, capsys):
    code, out, err = run(api, capsys, "nodes", "-o", "svg", "--watch")
    assert (code, out) == (2, "") and "leave one of them out" in err


def test_what_is_wrong_with_a_gpu_has_a_colour(api, capsys, monkeypatch):
    plain = run(api, capsys, "nodes")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    painted = run(api, capsys, "nodes")[1]
    assert "\x1b[31mcordoned\x1b[0m" in painted and "\x1b[1mNODE\x1b[0m" in painted
    assert re.sub(r"\x1b\[[0-9]*m", "", painted) == plain
    assert "\x1b" not in run(api, capsys, "nodes", "-o", "json")[1]


def test_a_cluster_that_is_slow_to_be_read_shows_how_far_it_is(api, capsys, monkeypatch):
    monkeypatch.setattr(progress.StepProgress, "_run", lambda self: None)
    said = []
    monkeypatch.setattr(
        progress.StepProgress, "show", lambda self, text, done=0, *_, **__: said.append((text, done))
    )
    api.store.page_size = 1
    run(api, capsys, "nodes")
    assert said == [("reading the cluster:", number) for number in range(1, len(said) + 1)] and len(said) == 6


def kubeconfig(path, **contexts):
    """Contexts with their namespaces."""
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": next(iter(contexts)),
                "contexts": [
                    {"name": name, "context": {"cluster": name, "namespace": namespace}}
                    for name, namespace in contexts.items()
                ],
                "clusters": [
                    {"name": name, "cluster": {"server": f"http://{name}:8080"}} for name in contexts
                ],
            }
        )
    )
    return path


def test_the_cluster_is_found_as_kubectl_finds_it(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    kubeconfig(one, a="ns-a", b=None)
    kubeconfig(other, c="ns-c")
    environment = {"KUBECONFIG": f"{tmp_path}/absent:{other}"}
    found = target(str(one), "", "", environment, tmp_path)
    assert (found.access.host, found.namespace) == ("a", "ns-a")
    found = target(str(one), "b", "", {}, tmp_path)
    assert (found.access.host, found.namespace) == ("b", "default")
    assert target("", "", "", environment, tmp_path).access.host == "c"
    with pytest.raises(ConfigError, match="zzz"):
        target(str(one), "zzz", "", {}, tmp_path)
    with pytest.raises(ConfigError, match="KUBECONFIG"):
        target("", "", "", {}, tmp_path)
    both = target("", "c", "", {"KUBECONFIG": f"{one}:{other}"}, tmp_path)
    assert (both.access.host, both.namespace) == ("c", "ns-c")
    with pytest.raises(ConfigError, match="none of the files of"):
        target("", "", "", {"KUBECONFIG": "/absent"}, tmp_path)
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube" / "config", d="ns-d")
    assert target("", "", "", {}, tmp_path).access.host == "d"


def test_a_user_without_an_entry_and_without_home_is_no_internal_error(monkeypatch, capsys):
    """As a container that runs as a number, where nothing sets $HOME."""

    def nobody(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert main(["nodes"]) == 2 and "no ~/.kube/config" in capsys.readouterr().err


@pytest.mark.parametrize(
    "server", ["https://host:6443", "http://me:secret@host", "http://:80", "http://host:x"]
)
def test_a_server_by_flag_is_without_tls_and_secrets(server, tmp_path):
    with pytest.raises(ConfigError, match="kubectl proxy") as caught:
        target("", "", server, {}, tmp_path)
    assert "secret" not in str(caught.value)
