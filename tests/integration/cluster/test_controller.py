# SPDX-License-Identifier: Apache-2.0
"""The controller against a stand-in of the API server: what it keeps, and what the server's bad days make of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientSession, web

from gigaslice.core.classes.resource_class import MANAGED_BY, MANAGER
from gigaslice.kubeapi.access import find_access
from gigaslice.kubeapi.client import KubeClient
from gigaslice.role_settings import load
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.controller.parts import ControllerParts
from gigaslice.roles.webhook.admission_pod import read_admission_pod
from gigaslice.roles.webhook.complete import completion_patch
from gigaslice.runtime.metrics import Exposition
from tests.fakes.clusters import inventory_gpu, node_inventory
from tests.fakes.eventually import until
from tests.fakes.kubeapi import ApiServer, Fault, node_document, pod_document
from tests.fakes.ports import free_port

CLASSES, GPUS = "resourceclasses", "extendedresources"
GIB = 1 << 30
SECONDS = 30.0


def node(
    name: str,
    *gpus: str,
    model: str = "NVIDIA H100",
    text: str | None = None,
    ready: bool = True,
    whole: str = "gigaslice.io/gpu",
) -> dict[str, Any]:
    if text is None:
        found = [inventory_gpu(name, index, 80, uuid=gpu, model=model) for index, gpu in enumerate(gpus)]
        text = node_inventory(found, whole_resource=whole).encode()
    return node_document(name, text, ready=ready)


def pod(
    name: str, limits: dict[str, int], node_name: str = "", assignment: str = "", phase: str = "Pending"
) -> dict[str, Any]:
    annotations = {"gigaslice.io/assignment": assignment} if assignment else {}
    return pod_document(name, limits, node=node_name, annotations=annotations, phase=phase, uid=f"uid-{name}")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as found:
        yield found


@contextlib.asynccontextmanager
async def controller(
    api: ApiServer,
    folder: Path,
    name: str = "a",
    clock: Callable[[], float] = time.monotonic,
    absent_seconds: float = 15.0,
    **flags: str,
) -> AsyncIterator[ControllerParts]:
    access, _ = find_access(api.kubeconfig(folder), "")
    assert access is not None
    config = load(ControllerConfig, {"metrics-address": "off", **flags}, {})
    async with KubeClient(access, "test", answer=5.0) as client:
        parts = ControllerParts(
            client, config, name,
            observe=0.05, gather=0.02, pause=0.05, absent_seconds=absent_seconds, clock=clock,
        )  # fmt: skip
        tasks = [
            asyncio.create_task(part()) for part in (*parts.essential.values(), *parts.restarted.values())
        ]
        try:
            yield parts
        finally:
            broken = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert broken == []


def shown(parts: ControllerParts) -> dict[str, float]:
    """The samples of our own metrics."""
    text = Exposition(parts.collect).prepare()().decode()
    rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith("gigaslice_"))
    return {name: float(value) for name, _, value in rows}


def phases(api: ApiServer) -> dict[str, str]:
    return {name: one.get("status", {}).get("phase", "") for name, one in api.named(GPUS).items()}


def free(api: ApiServer, name: str) -> int | None:
    found = api.named(CLASSES).get(name, {}).get("status", {}).get("free")
    return found if isinstance(found, int) else None


def written(api: ApiServer, part: str = "") -> list[tuple[str, str]]:
    """The requests that write, of those with PART in their target; leases and events left out."""
    found = [one for one in list(api.requests) if one[0] != "GET" and part in one[1]]
    return [one for one in found if "/leases" not in one[1] and "/events" not in one[1]]


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_admission_is_told_what_agents_offer_by_their_settings(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        async with controller(api, tmp_path, resources="example.com/gib, gigaslice.io/nic") as parts:
            await until(lambda: parts.facts().synced)
            assert {"example.com/gib", "gigaslice.io/nic", "gigaslice.io/gpu"} <= parts.facts().names

    run(main())


def test_gpus_and_classes_of_the_cluster_are_kept(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1", "GPU-2"))
        api.put(
            CLASSES, {"metadata": {"name": "mine"}, "spec": {"selector": {"matchLabels": {"node": "n1"}}}}
        )
        async with controller(api, tmp_path):
            await until(lambda: phases(api) == {"n1-gpu-1": "Available", "n1-gpu-2": "Available"})
            await until(lambda: free(api, "nvidia.h100") == 2 and free(api, "mine") == 2)
            api.put("pods", pod("p", {"gigaslice.io/gpu": 1}, "n1", '{"c0":[["GPU-1",80,100]]}'))
            await until(lambda: phases(api)["n1-gpu-1"] == "Pending")
            await until(lambda: free(api, "nvidia.h100") == 1)
            running = pod("p", {"gigaslice.io/gpu": 1}, "n1", '{"c0":[["GPU-1",80,100]]}', "Running")
            api.put("pods", running)
            await until(lambda: phases(api)["n1-gpu-1"] == "Bound")
            assert api.named(GPUS)["n1-gpu-1"]["status"]["podRefs"][0]["name"] == "p"
            api.delete("pods", "p", "default")
            await until(lambda: phases(api)["n1-gpu-1"] == "Available" and free(api, "mine") == 2)
            api.put("nodes", node("n1", "GPU-2", "GPU-3"))
            await until(lambda: set(phases(api)) == {"n1-gpu-2", "n1-gpu-3"})
            api.put("nodes", node("n1", "GPU-2", "GPU-3", ready=False))
            await until(lambda: set(phases(api).values()) == {"Lost"})
            api.delete("nodes", "n1")
            await until(lambda: phases(api) == {})
        assert not api.named(CLASSES)["mine"]["metadata"].get("labels")

    run(main())


def test_a_restart_writes_nothing_where_nothing_has_changed(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        for number in range(20):
            api.put("nodes", node(f"n{number}", f"GPU-{number}"))
        async with controller(api, tmp_path):
            await until(
                lambda: list(phases(api).values()) == ["Available"] * 20 and free(api, "nvidia.h100") == 20
            )
        before = len(written(api))
        async with controller(api, tmp_path, "b") as parts:
            await until(lambda: parts.leader.leading and parts.feed.synced and bool(parts.reconciler.figures))
            await until(lambda: not len(parts.reconciler.nodes) and not len(parts.reconciler.classes))
            await asyncio.sleep(0.2)
        assert len(written(api)) == before

    run(main())


def test_the_status_of_a_dataset_follows_the_nodes(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        async with controller(api, tmp_path) as parts:
            parts.datasets._seconds = 0.05
            api.create("datasets", {"metadata": {"name": "coco"}, "spec": {"source": "s3://b/coco"}})
            api.create("datasets", {"metadata": {"name": "bad"}, "spec": {"source": "b/coco"}})

            def phase(name: str) -> object:
                return api.get("datasets", name, "default").get("status", {}).get("phase")

            await until(lambda: phase("coco") == "Absent" and phase("bad") == "Invalid")
            cached = {"key": "k", "source": "s3://b/coco", "digest": "d1", "bytes": 5, "state": "Ready"}
            for node_name, user in (("a", "default/coco"), ("b", "other/coco")):
                copies = [{**cached, "uses": [{"name": user}], "digest": f"d-{user}"}]
                api.create("datasetnodes", {"metadata": {"name": node_name}, "status": {"datasets": copies}})
            await until(lambda: phase("coco") == "Ready")
            assert api.get("datasets", "coco", "default")["status"]["nodeNames"] == ["a"]
            await until(lambda: parts.datasets.writes == 3)  # counted when the answer has come
            api.delete("datasetnodes", "a")
            await until(lambda: phase("coco") == "Absent" and parts.datasets.writes >= 4)
            assert parts.datasets.writes == 4

    asyncio.run(main())


def test_an_automatic_class_goes_when_its_gpus_do_and_nothing_refers_to_it(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1"))
        api.put("nodes", node("n2", "GPU-2", model="Tesla T4"))
        quota = {
            "metadata": {"name": "q", "namespace": "default"},
            "spec": {"hard": {"requests.gpuclass.gigaslice.io/nvidia.tesla.t4": "1"}},
        }
        async with controller(api, tmp_path) as parts:
            parts.reconciler.unneeded = 0.1
            await until(lambda: set(api.named(CLASSES)) == {"nvidia.h100", "nvidia.tesla.t4"})
            assert api.named(CLASSES)["nvidia.h100"]["metadata"]["labels"] == {MANAGED_BY: MANAGER}
            api.put("resourcequotas", quota)
            api.delete("nodes", "n1")
            api.delete("nodes", "n2")
            await until(lambda: set(api.named(CLASSES)) == {"nvidia.tesla.t4"})
            await asyncio.sleep(0.5)
            assert set(api.named(CLASSES)) == {"nvidia.tesla.t4"}, "the quota names it"
            api.put("pods", pod("p", {"gpuclass.gigaslice.io/nvidia.tesla.t4": 1}))
            await until(lambda: len(parts.feed.pods) == 1)
            api.delete("resourcequotas", "q", "default")
            await asyncio.sleep(1.5)
            assert set(api.named(CLASSES)) == {"nvidia.tesla.t4"}, "a pod names it"
            api.delete("pods", "p", "default")
            await until(lambda: api.named(CLASSES) == {})


def test_an_automatic_class_stays_where_its_gpus_are_back_in_time(api: ApiServer, tmp_path: Path):
    ahead = 0.0

    async def main() -> None:
        nonlocal ahead
        api.put("nodes", node("n1", "GPU-1"))
        async with controller(api, tmp_path, clock=lambda: time.monotonic() + ahead) as parts:
            await until(lambda: free(api, "nvidia.h100") == 1)
            uid = api.named(CLASSES)["nvidia.h100"]["metadata"]["uid"]
            for _ in range(3):  # away for less than five minutes each time, and for more altogether
                api.delete("nodes", "n1")
                await until(lambda: free(api, "nvidia.h100") == 0 and "nvidia.h100" in parts.reconciler._gone)
                ahead += 200.0
                api.put("nodes", node("n1", "GPU-1"))
                await until(lambda: free(api, "nvidia.h100") == 1)
            assert api.named(CLASSES)["nvidia.h100"]["metadata"]["uid"] == uid

    run(main())


def test_no_text_and_no_object_of_others_ends_a_part(api: ApiServer, tmp_path: Path):
    """Half a surrogate pair in an inventory is no text that metrics or objects can have."""
    odd = node("odd", "GPU-9", "GPU-8", model="NVIDIA H100")
    text = odd["metadata"]["annotations"]["gigaslice.io/inventory"]
    half = {
        "model": text.replace("NVIDIA H100", r"NVIDIA \ud800"),
        "rest": text.replace('"free":80', r'"free":80,"unhealthy":"\udfff","properties":{"\ud801":"\udc00"}'),
        "uuid": text.replace("GPU-", r"GPU-\ud802"),
        "held": text[:-1] + r',"held":{"\ud803":[[0,8,0]]}}',
        "type": text.replace("[{", '["x",{'),
        "number": "7",
    }

    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1"))
        for name, one in half.items():
            api.put("nodes", node(name, text=one))
        api.put("pods", pod("bad", {}, "n1") | {"spec": {"nodeName": "n1", "containers": 7}})
        async with controller(api, tmp_path) as parts:
            await until(lambda: parts.feed.synced and parts.leader.leading)
            await until(lambda: {"n1-gpu-1", "rest-gpu-9", "held-gpu-8"} <= set(phases(api)))
            await until(lambda: parts._gpus.total() == 9)
            written = Exposition(parts.collect).prepare()().decode()
            assert 'gigaslice_cluster_nodes{inventory="unreadable"} 2.0' in written
            assert "NVIDIA \ufffd" in written
            assert parts.state.room("n1")[0].free == 0, "a pod that cannot be read may have it"

    run(main())


def test_waiting_pods_and_unreadable_nodes_are_told_once(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1"))
        api.put("nodes", node("n2", "GPU-2"))
        api.put("nodes", node("old", text="{}"))
        api.put("pods", pod("big", {"gigaslice.io/vgpu-memory": 500}))
        api.put("pods", pod("wrong", {"gpuclass.gigaslice.io/nvidia.h10": 1}))
        api.put("pods", pod("loose", {"gpuclass.gigaslice.io/nvidia.h100": 1}, "n1"))
        api.put("pods", pod("fits", {"gigaslice.io/vgpu-memory": 8}))

        def told() -> dict[str, tuple[str, int]]:
            found = api.named("events").values()
            return {one["involvedObject"]["name"]: (one["reason"], one["count"]) for one in found}

        async with controller(api, tmp_path) as parts:
            await until(lambda: {"wrong", "loose", "old"} <= set(told()))
            assert parts.leader.leading
            await until(lambda: "big" in told())
            await asyncio.sleep(1.0)
            for reason in ("GPUUnavailable", "InventoryUnreadable"):
                assert shown(parts)[f'gigaslice_controller_events_total{{reason="{reason}"}}'] == 1
        assert told() == {
            "wrong": ("ResourceClassNotFound", 1),
            "loose": ("ResourceClassNotServed", 1),
            "big": ("GPUUnavailable", 1),
            "old": ("InventoryUnreadable", 1),
        }

    run(main())


def test_a_definition_that_is_not_installed_is_waited_for_with_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    async def main() -> None:
        with ApiServer(crds=False) as api:
            api.put("nodes", node("n1", "GPU-1"))
            async with controller(api, tmp_path, absent_seconds=1.0) as parts:
                await until(lambda: parts.leader.leading and parts.feed.synced)
                await asyncio.sleep(0.5)
                assert parts.unready() is None
                assert written(api) == []
                api.answers.crds = True
                await until(lambda: free(api, "nvidia.h100") == 1)
                await until(lambda: phases(api) == {"n1-gpu-1": "Available"})
        lines = [
            line for line in "\n".join(capfd.readouterr()).splitlines() if "definition not installed" in line
        ]
        assert len(lines) == 2, "one for each kind"

    run(main())


def test_admission_learns_a_new_name_of_whole_gpus(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1"))
        async with controller(api, tmp_path) as parts:
            await until(lambda: parts.facts().nodes)
            api.put("nodes", node("n1", "GPU-1", whole="example.com/gpu"))
            await until(lambda: "example.com/gpu" in parts.facts().names)

    run(main())


def test_renamed_resources_count_and_stand_for_classes(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1", whole="example.com/gpu"))
        api.put("pods", pod("slices", {"example.com/gib": 8}))
        api.put("pods", pod("whole", {"example.com/gpu": 1}))
        api.put("pods", pod("other", {"gigaslice.io/gpu": 1}))
        flags = {"resource": "example.com/gib", "whole-gpus": "example.com/gpu"}
        async with controller(api, tmp_path, **flags) as parts:
            await until(lambda: "nvidia.h100" in parts.facts().classes)
            assert {one.name for one in parts.feed.pods.values()} == {"slices", "whole"}
            asks = {"limits": {"gpuclass.gigaslice.io/nvidia.h100": "1"}}
            patch = completion_patch(
                read_admission_pod({"spec": {"containers": [{"name": "c", "resources": asks}]}}),
                parts.facts(),
            )
            path = "/spec/containers/0/resources/limits/example.com~1gpu"
            assert {"op": "add", "path": path, "value": "1"} in patch

    run(main())


def test_pods_that_have_ended_are_forgotten(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.put("pods", pod("before", {"gigaslice.io/gpu": 1}, "n1", phase="Failed"))
        api.put("pods", pod("runs", {"gigaslice.io/gpu": 1}, "n1", phase="Running"))
        async with controller(api, tmp_path) as parts:
            await until(lambda: parts.feed.synced)
            assert [one.name for one in parts.feed.pods.values()] == ["runs"]
            api.put("pods", pod("runs", {"gigaslice.io/gpu": 1}, "n1", phase="Succeeded"))
            await until(lambda: not parts.feed.pods)

    run(main())


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503])
def test_it_ends_up_right_although_every_other_request_is_refused(
    api: ApiServer, tmp_path: Path, status: int
):
    async def main() -> None:
        count = itertools.count(1)

        def every_other(method: str, target: str) -> bool:
            return next(count) % 2 == 1 and "leases" not in target

        headers = "Retry-After: 1\r\n" if status == 429 else ""
        api.faults.append(Fault("", "", status, headers=headers, when=every_other))
        for name in ("n1", "n2"):
            api.put("nodes", node(name, f"GPU-{name}"))
        async with controller(api, tmp_path) as parts:
            await until(
                lambda: list(phases(api).values()) == ["Available"] * 2 and free(api, "nvidia.h100") == 2
            )
            failed = "gigaslice_controller_failed_passes_total"
            passes = sum(value for name, value in shown(parts).items() if name.startswith(failed))
            assert (passes > 0) == (status != 429), "the client itself sends again what came too early"
            api.store.compact()
            api.put("nodes", node("n2", "GPU-other"))
            await until(lambda: set(phases(api)) == {"n1-gpu-n1", "n2-gpu-other"})

    run(main())


def test_a_server_that_refuses_is_the_reason_why_it_is_not_ready(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.denial = 403
        async with controller(api, tmp_path) as parts:
            assert (
                parts.unready()
                == "waiting for nodes, pods, resourceclasses, extendedresources of the API server"
            )
            await until(lambda: "403" in (parts.unready() or ""))
            assert shown(parts)['gigaslice_controller_watch_silent_seconds{resource="nodes"}'] > 0
            api.denial = 0
            await until(lambda: parts.unready() is None)

    run(main())


def test_only_one_of_two_replicas_writes_and_the_other_takes_over(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1"))
        async with controller(api, tmp_path, "b") as second:
            async with controller(api, tmp_path, "a") as first:
                await until(lambda: phases(api) == {"n1-gpu-1": "Available"})
                await until(lambda: first.feed.synced and second.feed.synced)
                assert first.leader.leading + second.leader.leading == 1
                leader = first if first.leader.leading else second
                other = second if leader is first else first
                assert not other.counters.writes
            if leader is first:
                await until(lambda: second.leader.leading)
            api.put("nodes", node("n1", "GPU-2"))
            await until(lambda: phases(api) == {"n1-gpu-2": "Available"})

    run(main())


def test_the_page_is_served_and_known_pages_are_not_sent_again(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1"))
        async with controller(api, tmp_path) as parts:
            await until(lambda: parts.feed.synced)
            application = web.Application()
            application.add_routes(parts.page_routes())
            runner = web.AppRunner(application)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            async with ClientSession() as session:
                async with session.get(url) as answer:
                    text, tag = await answer.text(), answer.headers["ETag"]
                    assert answer.status == 200 and "n1" in text
                    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                    assert answer.headers["Cache-Control"] == "no-store"
                async with session.get(url, headers={"If-None-Match": tag}) as answer:
                    assert (answer.status, await answer.read()) == (304, b"")
                async with session.get(url, headers={"If-None-Match": '"another"'}) as answer:
                    assert answer.status == 200
                async with session.post(url) as answer:
                    assert answer.status == 405
            await runner.cleanup()

    run(main())


def test_admission_is_served_with_a_certificate_of_its_own(tmp_path: Path):
    configurations = "mutatingwebhookconfigurations"

    async def main() -> None:
        with ApiServer() as api:
            api.put("nodes", node("n1", "GPU-1"))
            api.put("namespaces", {"metadata": {"name": "default"}})
            hook = {"name": "a.gigaslice.io", "clientConfig": {}}
            api.put(configurations, {"metadata": {"name": "gigaslice"}, "webhooks": [hook]})
            port = free_port()
            async with controller(api, tmp_path, **{"webhook-address": f"127.0.0.1:{port}"}) as parts:
                await until(lambda: parts.unready() == "the admission webhook has no certificate yet")
                secret = {"metadata": {"name": "gigaslice-webhook", "namespace": "gigaslice"}}
                api.put("secrets", secret)
                await until(lambda: parts.unready() is None)
                await until(lambda: "nvidia.h100" in parts.facts().classes)
                (found,) = api.named(configurations)["gigaslice"]["webhooks"]
                authority = base64.b64decode(found["clientConfig"]["caBundle"]).decode()
                context = ssl.create_default_context(cadata=authority)
                document = pod("p", {"gpuclass.gigaslice.io/nvidia.h100": 1})
                review = {
                    "apiVersion": "admission.k8s.io/v1",
                    "kind": "AdmissionReview",
                    "request": {
                        "uid": "r",
                        "operation": "CREATE",
                        "kind": {"group": "", "version": "v1", "kind": "Pod"},
                        "namespace": "default",
                        "object": document,
                    },
                }
                async with ClientSession() as session:
                    answer = await reviewed(session, port, context, review)
                assert answer["response"]["allowed"] is True and answer["response"]["patch"]
                assert shown(parts)['gigaslice_controller_reviews_total{allowed="yes",path="/mutate"}'] == 1

    run(main())


async def reviewed(session: ClientSession, port: int, context: ssl.SSLContext, review: object) -> Any:
    host = "gigaslice-webhook.gigaslice.svc"
    for _ in range(100):
        try:
            url = f"https://127.0.0.1:{port}/mutate"
            async with session.post(url, json=review, ssl=context, server_hostname=host) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()
        except ClientConnectionError:
            await asyncio.sleep(0.1)
    raise AssertionError("never served")


def test_metrics_show_the_cluster(api: ApiServer, tmp_path: Path):
    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1", "GPU-2", "GPU-3"))
        api.put("nodes", node("old", text="{}"))
        api.put("pods", pod("p", {"gigaslice.io/vgpu-memory": 20}, "n1", '{"c0":[["GPU-1",20]]}'))
        api.put("pods", pod("q", {"gigaslice.io/gpu": 1}, "n1", '{"c0":[["GPU-2",80,100]]}'))
        api.put("pods", pod("large", {"gigaslice.io/vgpu-memory": 500}))
        async with controller(api, tmp_path) as parts:
            expected = {
                "gigaslice_controller_leader": 1,
                'gigaslice_controller_writes_total{kind="extendedresources",result="done",write="create"}': 3,
                'gigaslice_cluster_nodes{inventory="read"}': 1,
                'gigaslice_cluster_nodes{inventory="unreadable"}': 1,
                'gigaslice_cluster_gpus{condition="partly used",model="NVIDIA H100"}': 1,
                'gigaslice_cluster_gpus{condition="full",model="NVIDIA H100"}': 1,
                'gigaslice_cluster_gpus{condition="whole",model="NVIDIA H100"}': 1,
                'gigaslice_cluster_memory_bytes{state="held"}': 100 * GIB,
                'gigaslice_cluster_memory_bytes{state="free_partly"}': 60 * GIB,
                "gigaslice_cluster_fragmentation_ratio": 60 / 140,
                'gigaslice_class_gpus{class="nvidia.h100"}': 3,
                'gigaslice_class_free_gpus{class="nvidia.h100"}': 1,
                'gigaslice_pods_waiting{state="no-room"}': 1,
                'gigaslice_controller_queue_length{queue="gpus"}': 0,
                'gigaslice_controller_failed_passes_total{queue="gpus"}': 0,
                'gigaslice_controller_watch_silent_seconds{resource="nodes"}': 0,
                "gigaslice_defragmentation_moves": 0,
            }
            await until(lambda: expected.items() <= shown(parts).items())

    run(main())


def test_metrics_show_how_many_moves_would_free_a_gpu(api: ApiServer, tmp_path: Path):
    """Two pods fit one GPU together; the other one of the two has no controller that would make it anew."""

    async def main() -> None:
        api.put("nodes", node("n1", "GPU-1", "GPU-2"))
        for name, gpu, gib in (("p", "GPU-1", 50), ("q", "GPU-2", 20)):
            placed = f'{{"c0":[["{gpu}",{gib}]]}}'
            document = pod(name, {"gigaslice.io/vgpu-memory": gib}, "n1", placed, "Running")
            if name == "q":
                document["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "controller": True}]
            api.put("pods", document)
        async with controller(api, tmp_path) as parts:
            await until(lambda: shown(parts)["gigaslice_defragmentation_moves"] == 1)

    run(main())


@pytest.mark.parametrize("writes", [1, 2, 3, 5])
def test_killed_after_any_write_it_goes_on_from_there(api: ApiServer, tmp_path: Path, writes: int):
    for number in (1, 2):
        api.put("nodes", node(f"n{number}", f"GPU-{number}"))
    command = [
        sys.executable,
        "-m",
        "gigaslice_cli",
        "controller",
        f"--kubeconfig={api.kubeconfig(tmp_path)}",
        "--metrics-address=off",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + SECONDS

        def one_too_many(method: str, target: str) -> bool:
            """Kills the controller instead of answering what comes after so many writes."""
            if method == "GET" or len(written(api, "gigaslice.io/v1alpha1")) <= writes:
                return False
            os.kill(process.pid, signal.SIGKILL)
            return True

        api.faults.append(Fault("", "gigaslice.io/v1alpha1", 503, when=one_too_many))
        assert process.wait(end - time.monotonic()) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
    api.faults.clear()
    api.clear("leases")

    async def main() -> None:
        async with controller(api, tmp_path, "next"):
            await until(
                lambda: list(phases(api).values()) == ["Available"] * 2 and free(api, "nvidia.h100") == 2
            )

    run(main())
