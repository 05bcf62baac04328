# SPDX-License-Identifier: Apache-2.0
"""`gigaslice exec`: which pod it finds, and what kubectl is asked to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.kubeapi import ApiServer

LABELS = {"app.kubernetes.io/name": "gigaslice", "app.kubernetes.io/component": "node"}


@pytest.fixture
def api():
    with ApiServer() as server:
        server.token = ""  # as behind `kubectl proxy`
        put(server, "agent-a-new", "node-a", "2026-11-02T00:00:00Z")
        put(server, "agent-a", "node-a", "2026-11-01T00:00:00Z")
        put(server, "agent-b", "node-b", "2026-11-01T00:00:00Z", phase="Pending")
        put(server, "other", "node-a", "2026-10-01T00:00:00Z", labels={"app.kubernetes.io/name": "gigaslice"})
        put(server, "unbound", "", "2026-10-01T00:00:00Z", phase="Pending")
        yield server


def put(
    server: ApiServer, name: str, node: str, created: str, *, phase: str = "Running", labels=None
) -> None:
    metadata = {"name": name, "namespace": "gigaslice", "uid": name, "creationTimestamp": created}
    metadata["labels"] = LABELS if labels is None else labels
    spec = {"nodeName": node} if node else {}
    server.put("pods", {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


@pytest.fixture
def run(api, tmp_path):
    """Runs the command with a kubectl that prints its arguments; exit code, what it was told, and the error."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\nsys.exit(7)\n"
    )
    kubectl.chmod(0o755)

    def command(*words: str, path: str = "") -> tuple[int, list[str], str]:
        server = f"http://127.0.0.1:{api.port}"
        call = [sys.executable, "-m", "gigaslice_cli", "exec", "--server", server, *words]
        done = subprocess.run(
            call,
            env={**os.environ, "PATH": path or f"{tmp_path}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else [], done.stderr

    return command


def test_the_agent_that_serves_the_node_is_asked(run, api):
    code, told, err = run("node-a", "--", "gigaslice", "cordon", "1", "--reason", "fan -- loud")
    assert (code, err) == (7, ""), "kubectl's own"
    server = f"--server=http://127.0.0.1:{api.port}"
    begin = [server, "-n", "gigaslice", "exec", "-i", "agent-a", "-c", "node", "--"]
    assert told == [*begin, "gigaslice", "cordon", "1", "--reason", "fan -- loud"]
    assert run("node-a", "vcuda", "ps", "--", "x")[1][-4:] == ["vcuda", "ps", "--", "x"]
    assert run("node-a")[1][-2:] == ["gigaslice", "status"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("node-aa",), "no agent is on a node node-aa; did you mean node-a?"),
        (("zzz",), "no agent is on a node zzz\n"),
        (("node-b",), "the agent of node-b does not run: kubectl -n gigaslice describe pod agent-b"),
        (("-n", "elsewhere", "node-a"), "namespace elsewhere has no agents; name theirs with -n"),
    ],
)
def test_a_node_without_an_agent_is_named(run, words, says):
    code, told, err = run(*words)
    assert (code, told) == (1, [])
    assert err.startswith("gigaslice exec: error: ") and says in err


def test_a_machine_without_kubectl_is_told(run, tmp_path):
    code, _, err = run("node-a", path=str(Path(tmp_path / "empty")))
    assert (code, err) == (
        3,
        "gigaslice exec: error: kubectl is not in $PATH: it is what runs a command in a pod\n",
    )
