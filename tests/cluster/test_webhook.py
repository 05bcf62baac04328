# SPDX-License-Identifier: Apache-2.0
"""The webhook as a real API server calls it: its conditions, its answers, its certificates, and its absence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gigaslice.kubeapi.access import find_access
from gigaslice.kubeapi.client import KubeClient
from gigaslice.roles.webhook.rotation import WebhookCertificates
from gigaslice.roles.webhook.server import routes
from gigaslice.runtime.web_servers import served as served_by
from tests.cluster.control_plane import Api, ControlPlane, Refused, find_binaries, until
from tests.cluster.test_admission import limits_of, pod
from tests.fakes.ports import free_port
from tests.unit.gigaslice.roles.webhook.pods import facts
from tests.unit.manifests.test_chart import listed

NAMESPACE, TEAM = "gigaslice", "team"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
H100 = "gpuclass.gigaslice.io/nvidia.h100"


class Served:
    """The webhook in a thread of its own, as a controller serves it."""

    def __init__(self, plane: ControlPlane) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.port = free_port()
        self._plane = plane
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._ended: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._ended is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(30)
        self._loop.close()

    async def _run(self) -> None:
        self._ended = asyncio.Event()
        access, _ = find_access(self._plane.kubeconfig(), "")
        assert access is not None
        async with KubeClient(access, "test") as client:
            certificates = WebhookCertificates(
                client,
                namespace=NAMESPACE,
                secret="gigaslice-webhook",
                service="gigaslice-webhook",
                configuration="gigaslice-webhook",
            )
            certificates._host = "localhost"  # no address of a Service leads to this process
            await certificates.prepare()
            answers = routes(facts, lambda path, allowed: self.asked.append((path, allowed)))
            async with served_by(answers, certificates.context) as listener:
                await listener.start("localhost", self.port)
                self._ready.set()
                await self._ended.wait()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One without policies, as before 1.36."""
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    with ControlPlane(tmp_path_factory.mktemp("webhook"), binaries) as found:
        for name in (NAMESPACE, TEAM):
            found.admin.post("/api/v1/namespaces", {"metadata": {"name": name}})
        yield found


@pytest.fixture(scope="module")
def served(plane: ControlPlane) -> Iterator[Served]:
    found = Served(plane)
    for document in listed(
        "--set", "cluster.enabled=true,admission.mode=webhook", "--kube-version", "1.36.0", "--namespace", NAMESPACE,
        "--show-only", "templates/webhook.yaml",
    ):  # fmt: skip
        for hook in document.get("webhooks", ()):
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://localhost:{found.port}{path}"}
        plane.admin.apply(document)
    with found:
        until(lambda: _completes(plane.admin))
        found.asked.clear()
        yield found


def _completes(api: Api) -> bool:
    try:
        found = api.post(f"{PODS}?dryRun=All", pod({H100: 1}))
    except Refused:
        return False
    return found["spec"]["schedulerName"] == "gigaslice-scheduler"


def asked(served: Served) -> list[tuple[str, bool]]:
    found = list(served.asked)
    served.asked.clear()
    return found


@pytest.mark.parametrize("limits, units", [
    ({H100: 2}, {"gigaslice.io/gpu": "2"}),
    ({"gpuclass.gigaslice.io/h100.small": 2}, {"gigaslice.io/vgpu-memory": "16"}),
    ({"gigaslice.io/vgpu-memory": 8}, {"gigaslice.io/vgpu-memory": "8"}),
])  # fmt: skip
def test_a_pod_is_completed(plane, served, limits, units):
    found = plane.admin.post(PODS, pod(limits, init=({H100: 1},)))
    assert limits_of(found) == units and limits_of(found, "initContainers") == {"gigaslice.io/gpu": "1"}
    assert found["spec"]["schedulerName"] == "gigaslice-scheduler"
    assert asked(served)[-1] == ("/validate", True)


def test_the_api_server_asks_about_no_other_pod(plane, served):
    plane.admin.post(PODS, pod({"cpu": 1, "nvidia.com/gpu": 1}, init=({},)))
    plane.admin.post("/api/v1/namespaces/kube-system/pods", pod({H100: 1}))
    plane.admin.post(f"/api/v1/namespaces/{NAMESPACE}/pods", pod({"gigaslice.io/vgpu-memory": 1}))
    assert asked(served) == []


@pytest.mark.parametrize("given, sentence", [
    (pod({"gpuclass.gigaslice.io/nvidia.h10": 1}), "did you mean gpuclass.gigaslice.io/nvidia.h100?"),
    (pod({"gigaslice.io/vgpumemory": 1}), "did you mean gigaslice.io/vgpu-memory?"),
    (pod({H100: 0}), "must be a whole number from 1 up"),
    (pod({"gigaslice.io/gpu": 5}), "ask for 4 at most"),
    (pod({H100: 1}, nodeName="n"), "leave spec.nodeName out"),
    (pod({"gigaslice.io/vgpu-memory": 1}, annotations={"gigaslice.io/gpu-typ": "x"}), "gigaslice.io/gpu-type?"),
])  # fmt: skip
def test_a_mistake_is_refused_with_what_to_write(plane, served, given, sentence):
    with pytest.raises(Refused) as refused:
        plane.admin.post(PODS, given)
    assert refused.value.status == 422 and sentence in refused.value.message


def test_a_warning_reaches_the_author(plane, served):
    api: Any = plane.admin
    api.post(PODS, pod({"gpuclass.gigaslice.io/nvidia.b200": 1}))
    assert "no node has GPUs of class nvidia.b200 now" in " ".join(api.warnings)


def test_without_the_webhook_only_pods_that_ask_for_ours_are_refused(plane, served):
    served.__exit__()
    try:
        with pytest.raises(Refused, match="failed calling webhook"):
            plane.admin.post(PODS, pod({H100: 1}))
        plane.admin.post(PODS, pod({"cpu": 1}))
    finally:
        again = Served(plane)
        again.port = served.port
        again.__enter__()
        served.__dict__.update(again.__dict__)
    until(lambda: _completes(plane.admin))
