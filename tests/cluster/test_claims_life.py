# SPDX-License-Identifier: Apache-2.0
"""What a node of claims goes through in its life: a burst, a boot, other versions of the agent, pods of one line.

The node is that of test_claims_node.py. K8S_NODE_REBOOT is a shell command that ends all that runs on the node but the
control plane, removes what a boot removes, and starts runtime and kubelet. K8S_NODE_OLDER is the command of an older
gigaslice, of a version without claims. Without them the tests of that are skipped.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import statistics
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import vcuda
from tests.cluster.claim_controller import RunningController
from tests.cluster.claim_scenes import KUBELET_RACE, REFUSALS, restart_of, timed, undisturbed
from tests.cluster.claims_node import CDI, RESOURCES, ClaimNode, container
from tests.cluster.control_plane import Refused, until
from tests.cluster.node_kills import GIB, GPUS
from tests.unit.manifests.test_chart import listed
from vcuda import contract

MEMORY = "gigaslice.io/vgpu-memory"
Document = dict[str, Any]


# --- a burst -------------------------------------------------------------------------------------------------------


def test_two_hundred_pods_at_once(node: ClaimNode) -> None:
    """Each has 1 GiB for 20 s, and the node has room for 96 at a time: the others start as these end."""
    names = [f"burst-{number}" for number in range(200)]
    node.template_of("gib-1", gpu="1Gi")
    begun = time.monotonic()
    for name in names:
        main = container("main", "g", command="test -s /etc/vcuda/limits && sleep 20")
        node.pod(name, main, claims={"g": "template:gib-1"}, restartPolicy="Never")
    timed("made", time.monotonic() - begun)

    def phases() -> list[str]:
        return [one["status"].get("phase", "") for one in node.listed()]

    until(lambda: set(phases()) <= {"Succeeded", "Failed"}, 600)
    timed("all have ended", time.monotonic() - begun)
    assert phases() == ["Succeeded"] * len(names)
    delays = sorted(_start_delay(one) for one in node.listed())
    print(f"from bound to started: p50 {statistics.median(delays):.1f} s, longest {delays[-3:]}")
    texts = [text for name in names for reason, text in node.events(name) if reason in REFUSALS]
    unasked, waited = (
        [text for text in texts if part in text]
        for part in (KUBELET_RACE, "starts by itself once that is free")
    )
    assert len(unasked) + len(waited) == len(texts), texts
    print(f"{len(unasked)} calls were never made, for the kubelet could not read the claim yet")
    print(
        f"{len(waited)} waited longer than a call for pods that had ended, until the kubelet had unprepared them"
    )


def _start_delay(pod: Document) -> float:
    """Seconds from the binding until the container ran; the API server has whole seconds."""
    conditions = {one["type"]: one["lastTransitionTime"] for one in pod["status"]["conditions"]}
    (state,) = pod["status"]["containerStatuses"]
    begun, bound = state["state"]["terminated"]["startedAt"], conditions["PodScheduled"]
    return (datetime.fromisoformat(begun) - datetime.fromisoformat(bound)).total_seconds()


# --- a boot --------------------------------------------------------------------------------------------------------


def test_the_machine_is_started_anew(node: ClaimNode) -> None:
    """Nothing was drained: pods come back with what they had, as soon as the agent has made the runtime's files."""
    reboot = restart_of("K8S_NODE_REBOOT")
    node.claim("shared", gpu="4Gi")
    for name in ("p", "q"):
        node.sharing(name)
    node.small("own", 2)
    node.running("p", "q", "own")
    allocations = {name: node.page(name).allocation for name in ("p", "q", "own")}
    node.halt(signal.SIGKILL)
    reboot()
    assert not list(CDI.glob("*"))
    time.sleep(5)  # the kubelet meets no driver
    node.start()
    begun = time.monotonic()
    until(lambda: all(_restarts(node, name) for name in allocations), 120)
    node.running(*allocations)
    timed("all run again after the agent was started", time.monotonic() - begun)
    assert {name: node.page(name).allocation for name in allocations} == allocations
    assert node.page("p") == node.page("q")
    until(node.offered, 30)
    node.small("next", 3)
    node.running("next", within=30)
    node.delete("own")
    until(lambda: allocations["own"] not in node.left(), 10)


def _restarts(node: ClaimNode, name: str) -> int:
    states = node.get(name)["status"].get("containerStatuses", ())
    return sum(one["restartCount"] for one in states if one["ready"])


# --- other versions ------------------------------------------------------------------------------------------------


@pytest.fixture
def older() -> list[str]:
    """The words of the older gigaslice's command."""
    command = os.environ.get("K8S_NODE_OLDER")
    if not command:
        pytest.skip("K8S_NODE_OLDER names no command")
    return shlex.split(command)


def test_a_version_without_claims_changes_nothing_and_goes(node: ClaimNode, older: list[str]) -> None:
    """A downgrade that nobody prepared: it cannot read the state, and the newer one finds all as it was."""
    node.claim("shared", gpu="4Gi")
    node.sharing("p")
    node.small("own", 2)
    node.running("p", "own")
    check = undisturbed(node, "p", "own")
    node.halt(signal.SIGTERM)
    checkpoint = node.state / "checkpoint.json"
    before, logs = checkpoint.read_bytes(), len(node.logs)
    node.start(older, without=("--api",))
    assert node.ended(60) == 1
    print(node.logs[logs:][-600:])
    assert "newer" in node.logs[logs:]
    assert checkpoint.read_bytes() == before
    node.start()
    until(node.offered, 30)
    node.small("next", 2)
    node.running("next", within=30)
    check()


def test_pods_of_an_older_agent_live_on_when_its_node_serves_claims(
    node: ClaimNode, older: list[str]
) -> None:
    """Device IDs of before stay promised, and are taken off what is published until the last of them ends."""
    with another_state(node):
        node.start(older, without=("--api",))
        until(lambda: node.allocatable() == GPUS * GIB, 60)
        node.api.post(node.pods, {"metadata": {"name": "counted"}, "spec": node.template(8)})
        node.running("counted")
        check = undisturbed(node, "counted")
        (gpu,) = node.page("counted").gpus
        predecessor = node.start_successor()
        time.sleep(3)
        predecessor.send_signal(signal.SIGTERM)
        predecessor.wait(60)
        until(node.offered, 60)
        assert node.free_gib(gpu) == GIB - 8
        node.claim("rest", gpu=f"{GIB - 8}Gi")
        node.sharing("p", "rest")
        for number in range(GPUS - 1):
            node.small(f"whole-{number}", GIB)
        node.running("p", *(f"whole-{number}" for number in range(GPUS - 1)))
        assert list(node.page("p").gpus) == [gpu]
        check()
        node.delete("counted")
        until(lambda: node.free_gib(gpu) == GIB, 30)
        node.clear()
        node.nothing_left(30)
        until(lambda: node.allocatable() == 0, 60)


@contextlib.contextmanager
def another_state(node: ClaimNode) -> Iterator[None]:
    """The node without an agent and with an empty state directory; then as it was."""
    state = node.state
    node.halt(signal.SIGTERM)
    until(lambda: not node.devices(), 60)  # the kubelet deletes the slices of a driver that is gone
    node.use_state(state.with_name("another-state"))
    try:
        yield
    finally:
        node.halt(signal.SIGTERM)
        node.use_state(state)
        node.start()
        until(node.offered, 60)


# --- one line ------------------------------------------------------------------------------------------------------


@pytest.fixture
def completed(node: ClaimNode) -> Iterator[ClaimNode]:
    """The node in a cluster whose webhook turns the one line of a pod into claims."""
    documents = listed(
        "--set", "cluster.enabled=true,node.api=dra", "--kube-version", "1.36.0", "--namespace", "gigaslice",
        "--show-only", "templates/webhook.yaml",
    )  # fmt: skip
    node.api.patch(
        f"/api/v1/namespaces/{node.namespace}", {"metadata": {"labels": {"gigaslice.io/api": "dra"}}}
    )
    running = RunningController(node.plane)
    configurations = running.apply_webhooks(documents)
    try:
        with running:
            until(lambda: "resourceClaims" in _dry_run(node), 30)
            yield node
            node.clear()
    finally:
        for one in configurations:
            kind = one["kind"].lower() + "s"
            node.api.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/{one['metadata']['name']}")


def _dry_run(node: ClaimNode) -> Document:
    with contextlib.suppress(Refused):
        made: Document = node.api.post(
            f"{node.pods}?dryRun=All", {"metadata": {"name": "dry"}, "spec": node.template(1)}
        )
        return dict(made["spec"])
    return {}


def one_line(node: ClaimNode, name: str, *slices: int, annotations: dict[str, str] | None = None) -> None:
    """Makes a pod with a container for each number of slices."""
    spec = node.template(0)
    (main,) = spec["containers"]
    spec["containers"] = [
        {**main, "name": f"c{number}", "resources": {"limits": {MEMORY: str(count)}}}
        for number, count in enumerate(slices)
    ]
    more = {f"gigaslice.io/{key}": value for key, value in (annotations or {}).items()}
    node.api.post(node.pods, {"metadata": {"name": name, "annotations": more}, "spec": spec})


def test_one_line_gets_what_it_asked_for(completed: ClaimNode) -> None:
    node = completed
    one_line(node, "small", 8)
    timed("one line runs", node.running("small"))
    assert node.page("small").gib == 8
    assert MEMORY not in str(node.get("small")["spec"])
    one_line(node, "two", 3, 5)
    one_line(node, "spread", 6, annotations={"gpus": "3"})
    node.running("two", "spread")
    assert {name: page.gib for name, page in node.pages("two").items()} == {"c0": 3, "c1": 5}
    assert len({page.file for page in node.pages("two").values()}) == 2
    assert sorted(node.page("spread").gpus.values()) == [2 << 30] * 3


def test_a_deployment_of_one_line_rolls_out(completed: ClaimNode) -> None:
    node = completed
    labels, path = {"app": "d"}, f"/apis/apps/v1/namespaces/{node.namespace}/deployments"
    spec = node.template(7)
    template = {"metadata": {"labels": labels}, "spec": spec}
    node.api.post(
        path,
        {
            "metadata": {"name": "d"},
            "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": template},
        },
    )

    def ready(gib: int) -> bool:
        names = [one["metadata"]["name"] for one in node.listed()]
        return len(names) == 3 and all(
            [page.gib for page in node.pages(name).values()] == [gib] for name in names
        )

    until(lambda: ready(7), 60)
    spec["containers"][0]["resources"]["limits"][MEMORY] = "9"
    node.api.patch(f"{path}/d", {"spec": {"template": template}})
    until(lambda: ready(9), 90)
    templates = node.api.get(f"{RESOURCES}/namespaces/{node.namespace}/resourceclaimtemplates")["items"]
    ours = [one for one in templates if one["metadata"]["name"].startswith("gigaslice-")]
    assert len(ours) >= 2, "that of before stays for ten minutes"


def test_what_follows_the_pod_follows_it_in_a_claim_too(completed: ClaimNode) -> None:
    """A lower share of compute, by an annotation of the pod while it runs; never more than the claim has."""
    node = completed
    one_line(node, "p", 4, annotations={"cores": "60"})
    node.running("p")
    page = node.page("p")

    def cores() -> set[int]:
        limits = vcuda.read_limits(_page_file(node, "p"))
        return {gpu.cores_percent for gpu in limits.gpus}

    assert cores() == {60}
    annotate(node, "p", cores="20")
    until(lambda: cores() == {20}, 15)
    annotate(node, "p", cores="90")
    until(lambda: any("was given 60 per cent" in text for _, text in node.events("p")), 15)
    assert cores() == {20}
    annotate(node, "p", cores="60")
    until(lambda: cores() == {60}, 15)
    assert node.page("p") == page


def annotate(node: ClaimNode, name: str, **annotations: str) -> None:
    """Changes annotations of a pod that runs."""
    more = {f"gigaslice.io/{key}": value for key, value in annotations.items()}
    node.api.patch(f"{node.pods}/{name}", {"metadata": {"annotations": more}})


def _page_file(node: ClaimNode, name: str) -> Path:
    return Path(f"/proc/{node.process(name).pid}/root") / contract.CONTAINER_LIMITS.lstrip("/")
