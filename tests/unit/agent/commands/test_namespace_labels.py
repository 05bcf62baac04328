# SPDX-License-Identifier: Apache-2.0
"""`gigaslice doctor --namespaces`: what an upgrade to a cluster with the policy would refuse."""

from __future__ import annotations

import pytest

from gigaslice_cli.frame import main
from tests.fakes.kubeapi import ApiServer, Fault


@pytest.fixture
def api():
    with ApiServer() as found:
        found.token = ""  # as behind `kubectl proxy`
        for name, labels in (
            ("team", {}),
            ("trusted", {"gigaslice.io/allow-exclusive": "true"}),
            ("idle", {}),
        ):
            found.create("namespaces", {"metadata": {"name": name, "labels": labels}})
        yield found


def put(api, namespace, name, annotations, phase="Running"):
    spec = {"initContainers": [{"name": "i0"}], "containers": [{"name": "c0"}]}
    document = {
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
        "status": {"phase": phase},
    }
    api.create("pods", document, namespace)


def doctor(api, capsys, *words):
    code = main(["doctor", "--namespaces", "--server", api.url, *words])
    return code, capsys.readouterr().out.splitlines()


def test_each_missing_label_is_a_line_with_what_to_do(api, capsys):
    put(api, "team", "b", {"gigaslice.io/exclusive": "true", "gigaslice.io/elastic.c0": "16GiB"})
    put(api, "team", "a", {"gigaslice.io/exclusive.i0": " yes "})
    put(api, "trusted", "c", {"gigaslice.io/exclusive": "true", "gigaslice.io/priority": "guaranteed"})
    code, lines = doctor(api, capsys)
    assert code == 1 and len(lines) == 3 and all(line.startswith("fail  namespace") for line in lines)
    assert 'team needs the label gigaslice.io/allow-elastic: "true" for 1 pod, such as b' in lines[0]
    assert 'team needs the label gigaslice.io/allow-exclusive: "true" for 2 pods, such as a' in lines[1]
    assert "kubectl label namespace team gigaslice.io/allow-exclusive=true" in lines[1]
    assert "trusted needs the label gigaslice.io/allow-priority" in lines[2]
    assert {method for method, _ in api.requests} == {"GET"}, "asked and nothing else"


def test_nothing_is_missing_where_all_is_free_or_labelled(api, capsys):
    put(
        api,
        "team",
        "a",
        {"gigaslice.io/exclusive": "false", "gigaslice.io/cores": "100", "gigaslice.io/gpus": "2"},
    )
    put(api, "team", "b", {"gigaslice.io/exclusive.other": "true"})
    put(api, "trusted", "c", {"gigaslice.io/exclusive": "true"})
    code, lines = doctor(api, capsys)
    assert code == 0 and len(lines) == 1 and lines[0].startswith("ok")


def test_free_cores_are_the_charts(api, capsys):
    put(api, "team", "a", {"gigaslice.io/cores": "31"})
    assert doctor(api, capsys, "--free-cores", "31")[0] == 0
    code, (line,) = doctor(api, capsys, "--free-cores", "30")
    assert code == 1 and "gigaslice.io/allow-cores" in line


def test_who_may_not_read_namespaces_is_told_what_their_pods_need(api, capsys):
    put(api, "team", "a", {"gigaslice.io/time-slicing": "false"})
    api.faults.append(Fault("GET", "/api/v1/namespaces", 403))
    code, (line,) = doctor(api, capsys)
    assert code == 0 and line.startswith("warn") and "team needs, if it has not yet, the label" in line


def test_an_api_server_that_does_not_answer_is_an_error(api, capsys):
    api.denial = 500
    assert main(["doctor", "--namespaces", "--server", api.url]) == 1
    assert capsys.readouterr().out == ""
