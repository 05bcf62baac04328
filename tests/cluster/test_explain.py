# SPDX-License-Identifier: Apache-2.0
"""`gigaslice explain`, `nodes` and `top` against a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT, INVENTORY
from gigaslice.core.model import Share
from gigaslice_cli.frame import main
from tests.cluster import roles
from tests.cluster.control_plane import ControlPlane
from tests.fakes.clusters import facts, inventory_gpu, uuid

NAMESPACE = "explain-test"
NODES = ("explain-a", "explain-b")


@pytest.fixture(scope="module")
def plane(roles_plane: ControlPlane) -> Iterator[ControlPlane]:
    """explain-a has 6 + 6 GiB free, explain-b is cordoned; a pod asks for 8 GiB."""
    api = roles_plane.admin
    with roles_plane.namespace(NAMESPACE):
        a = facts(NODES[0], [inventory_gpu(NODES[0], index, 12) for index in range(2)])
        for one, cordoned in ((a, False), (facts(NODES[1]), True)):
            api.post(
                "/api/v1/nodes",
                {
                    "metadata": {"name": one.name, "annotations": {INVENTORY: one.inventory_text}},
                    "spec": {"unschedulable": cordoned},
                },
            )
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            api.patch(f"/api/v1/nodes/{one.name}/status", {"status": ready})
        for gpu in range(2):
            held = Assignment({"main": (Share(uuid(NODES[0], gpu), 6),)}).encode()
            _pod(roles_plane, f"holds-{gpu}", 6, NODES[0], {ASSIGNMENT: held})
        _pod(roles_plane, "waits", 8)
        try:
            yield roles_plane
        finally:
            for name in ("holds-0", "holds-1", "waits"):
                api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 0})
            for name in NODES:
                api.delete(f"/api/v1/nodes/{name}")


def _pod(
    plane: ControlPlane, name: str, slices: int, node: str = "", annotations: dict[str, str] | None = None
) -> None:
    resources = {"limits": {"gigaslice.io/vgpu-memory": str(slices)}}
    spec = {
        "schedulerName": "none",
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        **({"nodeName": node} if node else {}),
    }
    metadata = {"name": name, "annotations": annotations or {}}
    scheduler = plane.user(f"system:serviceaccount:{roles.NAMESPACE}:{roles.SCHEDULER}", "system:masters")
    scheduler.post(f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": metadata, "spec": spec})


def _run(plane: ControlPlane, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments, "--kubeconfig", str(plane.kubeconfig())])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_explain(plane, capsys) -> None:
    code, out, err = _run(plane, capsys, "explain", "pod", "waits", "-n", NAMESPACE)
    assert (code, err) == (0, "")
    assert f"  {NODES[1]}: would fit, but is cordoned\n" in out
    assert f"  {NODES[0]}: 6 + 6 GiB free, 8 wanted on one GPU\n" in out
    assert f"  kubectl uncordon {NODES[1]}: it would fit there\n" in out


def test_a_pod_that_has_its_gpus(plane, capsys) -> None:
    _, out, _ = _run(plane, capsys, "explain", "pod", "holds-0", "-n", NAMESPACE, "--format", "json")
    found = json.loads(out)
    assert found["situation"] == "bound"
    assert "6 GiB of GPU0" in found["lines"][0]["text"]


def test_no_such_pod(plane, capsys) -> None:
    code, _, err = _run(plane, capsys, "explain", "pod", "wait", "-n", NAMESPACE)
    assert code == 1
    assert 'did you mean "waits"?' in err


def test_nodes_and_top(plane, capsys) -> None:
    _, out, _ = _run(plane, capsys, "nodes", "--format", "json")
    nodes = {node["name"]: node for node in json.loads(out)["nodes"]}
    assert [gpu["freeSlices"] for gpu in nodes[NODES[0]]["gpus"]] == [6, 6]
    assert not nodes[NODES[1]]["schedulable"]
    _, out, _ = _run(plane, capsys, "top", "pods", "-n", NAMESPACE)
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["holds-0", "holds-1"]
