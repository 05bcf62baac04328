# SPDX-License-Identifier: Apache-2.0
"""Every role starts from the image of the Dockerfile, as the chart's pods say: user, capabilities, read-only root.

The agent serves a kubelet stand-in on the simulated driver; scheduler, controller, webhook and dataset service work
against an API server stand-in; and the pod of `helm test` finds all of it in order. Needs `make image-root`, and root.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import config
from tests.fakedriver.env import library_directory, machine_file
from tests.fakes.kubeapi import ApiServer, node_document
from tests.fakes.kubelet import ContainerSpec, FakeKubelet, PodSpec
from tests.image.container import Running, running
from tests.image.root import ROOT_DIRECTORY, configuration
from tests.unit.manifests.test_chart import listed
from vcuda.version import VERSION

RESOURCE = config.load({}, {}).resource
NODE = "node-a"
SECONDS = 60.0
DAC_OVERRIDE = 1 << 1
CONFIG = "/etc/gigaslice-test/kubeconfig"
"""Where the containers find the API server stand-in, which has no certificate as a cluster's does."""
DRIVER = {"FAKEDRIVER_MACHINE": "/run/fakedriver/machine.txt", "FAKEDRIVER_STATE": "/run/fakedriver/state"}

pytestmark = [
    pytest.mark.skipif(bool(os.geteuid()), reason="mounts and users of containers are made by root"),
    pytest.mark.skipif(not (ROOT_DIRECTORY / "opt").is_dir(), reason="run make image-root first"),
]


@pytest.fixture
def host() -> Iterator[Path]:
    """The directories of a node; a short name, for the paths of sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.create("nodes", node_document(NODE))
        yield server


def eventually(ask: Callable[[], Any], container: Running) -> Any:
    """What ASK answers when it is true."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and Path(f"/proc/{container.pid}").exists():
        with contextlib.suppress(OSError, KeyError):
            if answer := ask():
                return answer
        time.sleep(0.1)
    raise AssertionError(container.log.read_text())


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def get(number: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{number}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def pod_of(kind: str, name: str, *values: str) -> dict[str, Any]:
    """The pod of a workload, as the chart has it."""
    words = [word for value in values for word in ("--set", value)]
    for document in listed(*words, "--kube-version", "1.36.0", tests=True):
        if (document["kind"], document["metadata"]["name"]) == (kind, name):
            return document["spec"]["template"]["spec"] if kind != "Pod" else document["spec"]
    raise AssertionError(f"no {kind} {name}")


def volumes(pod: dict[str, Any], host: Path, known: dict[str, Path]) -> dict[str, Path]:
    """A directory for each volume: of KNOWN, or a new one."""
    sources = {}
    for volume in pod["volumes"]:
        sources[volume["name"]] = known.get(volume["name"], host / volume["name"])
        if not sources[volume["name"]].exists():
            sources[volume["name"]].mkdir(parents=True)
    return sources


def of_the_cluster(host: Path, api: ApiServer) -> dict[str, Path]:
    """What leads to the API server stand-in; readable for every user, as mounted tokens of such pods are."""
    folder = host / "api"
    folder.mkdir(mode=0o755)
    host.chmod(0o755)
    api.kubeconfig(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    return {str(Path(CONFIG).parent): folder}


def of_the_driver(host: Path) -> dict[str, Path]:
    """What NVIDIA's runtime mounts: NVML; and the machine that the simulated one reads."""
    shared = host / "driver"
    shared.mkdir()
    shutil.copy(machine_file("two-24g"), shared / "machine.txt")
    return {
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": library_directory() / "libnvidia-ml.so.1",
        "/run/fakedriver": shared,
    }


def confined(container: Running, user: int, capabilities: int = 0) -> None:
    """The container is what its security context says, once its mounts are made."""
    eventually(lambda: container.status()["NoNewPrivs"] == "1", container)
    assert "ro" in container.root_options()
    assert container.status()["Uid"].split() == [str(user)] * 4
    assert container.capabilities() == capabilities


def test_the_image_is_what_the_dockerfile_says() -> None:
    settings = configuration()["config"]
    assert settings["Entrypoint"] == ["gigaslice"] and settings["Cmd"] == ["node"]
    assert "PYTHONDONTWRITEBYTECODE=1" in settings["Env"]
    assert any(pair.startswith("PATH=/opt/gigaslice/bin:") for pair in settings["Env"])
    answer = subprocess.run(
        ["chroot", ROOT_DIRECTORY, "/opt/gigaslice/bin/gigaslice", "version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert VERSION in answer.stdout
    for tool in ("gcc", "make", "cc"):
        assert not shutil.which(tool, path=f"{ROOT_DIRECTORY}/usr/bin:{ROOT_DIRECTORY}/usr/local/bin")


def test_what_is_installed_is_locked() -> None:
    """And nothing else: no builder's packages, no headers of NVIDIA."""
    (packages,) = (ROOT_DIRECTORY / "opt" / "gigaslice" / "lib").glob("python3.*/site-packages")
    installed = {
        path.name.rsplit("-", 2)[0].lower().replace("_", "-") for path in packages.glob("*.dist-info")
    }
    assert {"gigaslice", "grpcio", "aiohttp", "cffi"} <= {
        name.partition("-")[0] for name in installed
    } | installed
    assert not [
        name for name in installed if name.startswith(("nvidia-cuda", "nvidia-nvml-dev", "setuptools"))
    ]
    assert not list(ROOT_DIRECTORY.glob("src")) and not list(ROOT_DIRECTORY.glob("wheel"))


def test_the_agent_serves_the_kubelet(host: Path, api: ApiServer) -> None:
    metrics = port()
    pod = pod_of(
        "DaemonSet",
        "gigaslice-node",
        f"extraArgs={{--kubeconfig={CONFIG},--metrics-address=127.0.0.1:{metrics}}}",
    )
    with FakeKubelet(host / "k") as kubelet:
        sources = volumes(
            pod,
            host,
            {
                "device-plugins": kubelet.plugin_directory,
                "pod-resources": kubelet.pod_resources_socket.parent,
            },
        )
        with running(
            pod,
            "node",
            sources,
            more=of_the_driver(host) | of_the_cluster(host, api),
            environment=DRIVER,
            fields={"spec.nodeName": NODE},
        ) as agent:
            eventually(lambda: kubelet.allocatable().get(RESOURCE) == 48, agent)
            confined(agent, 0, DAC_OVERRIDE)
            assert eventually(lambda: get(metrics, "/readyz"), agent)
            eventually(
                lambda: api.get("nodes", NODE)["metadata"]["annotations"]["gigaslice.io/inventory"], agent
            )
            assert "permission" not in agent.log.read_text().lower()
            asked = PodSpec("p", (ContainerSpec(resources={RESOURCE: 8}),))
            created = kubelet.create_pod(asked)
            eventually(lambda: len(kubelet.device_ids(created, RESOURCE)) == 8, agent)
            pages = eventually(lambda: list((sources["state"] / "allocations").glob("*/limits")), agent)
            assert all(page.stat().st_size > 0 for page in pages)


@pytest.fixture
def cluster(host: Path, api: ApiServer) -> Iterator[tuple[Running, Running, dict[str, int]]]:
    """Scheduler and controller as they run in a cluster, and their ports."""
    ports = {name: port() for name in ("extender", "scheduler", "metrics", "webhook", "page")}
    values = (
        "cluster.enabled=true",
        f"scheduler.settings.metricsAddress=127.0.0.1:{ports['scheduler']}",
        f"scheduler.extraArgs={{--kubeconfig={CONFIG},--listen-address=127.0.0.1:{ports['extender']}}}",
        f"controller.settings.metricsAddress=127.0.0.1:{ports['metrics']}",
        f"controller.settings.webhookAddress=127.0.0.1:{ports['webhook']}",
        f"controller.settings.pageAddress=127.0.0.1:{ports['page']}",
        f"controller.extraArgs={{--kubeconfig={CONFIG}}}",
    )
    words = [word for value in values for word in ("--set", value)]
    for document in listed(*words, "--kube-version", "1.36.0"):
        plural = {
            "Secret": "secrets",
            "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
            "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
        }.get(document["kind"])
        if plural:
            for hook in document.get("webhooks", ()):
                hook["clientConfig"]["service"]["port"] = ports["webhook"]
            api.create(plural, document, document["metadata"].get("namespace", ""))
    server = of_the_cluster(host, api)
    scheduler = pod_of("Deployment", "gigaslice-scheduler", *values)
    controller = pod_of("Deployment", "gigaslice-controller", *values)
    with (
        running(scheduler, "scheduler", volumes(scheduler, host, {}), more=server) as first,
        running(controller, "controller", {}, more=server) as second,
    ):
        yield first, second, ports


def test_scheduler_controller_and_webhook_work(
    host: Path, api: ApiServer, cluster: tuple[Running, Running, dict[str, int]]
) -> None:
    scheduler, controller, ports = cluster
    assert eventually(lambda: get(ports["extender"], "/readyz"), scheduler)
    assert eventually(lambda: get(ports["metrics"], "/readyz"), controller)
    for container in (scheduler, controller):
        confined(container, 65532)
    (configuration_,) = api.all("validatingwebhookconfigurations")
    name = configuration_["metadata"]["name"]

    def trusted() -> str:
        hooks = api.get("validatingwebhookconfigurations", name)["webhooks"]
        return str(hooks[0]["clientConfig"]["caBundle"])

    authority = eventually(trusted, controller)
    assert b"BEGIN CERTIFICATE" in base64.b64decode(authority)

    # What `helm test` runs, in the cluster as it is now: agents and nodes as a kubelet would report them.
    for role in ("node", "scheduler", "controller"):
        labels = {"app.kubernetes.io/name": "gigaslice", "app.kubernetes.io/component": role}
        document = {"metadata": {"name": role, "labels": labels}, "spec": {"containers": [{"name": role}]}}
        document["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        api.create("pods", document, "gigaslice")
    api.change("nodes", NODE, {"status": {"allocatable": {RESOURCE: "48"}}})
    test = pod_of("Pod", "gigaslice-test", "cluster.enabled=true", "test.enabled=true")
    test["containers"][0]["args"] += [f"--kubeconfig={CONFIG}"]
    hosts = host / "hosts"
    hosts.write_text("127.0.0.1 localhost gigaslice-webhook.gigaslice.svc\n")
    with running(
        test, "doctor", {}, more={str(Path(CONFIG).parent): host / "api"} | {"/etc/hosts": hosts}
    ) as doctor:
        confined(doctor, 65532)
        deadline = time.monotonic() + SECONDS
        while Path(f"/proc/{doctor.pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        lines = doctor.log.read_text().splitlines()
    assert lines and all(line.startswith("ok ") for line in lines), "\n".join(lines)
    assert {line.split()[1] for line in lines} == {"node", "nodes", "scheduler", "controller", "webhook"}


def test_the_dataset_service_starts(host: Path, api: ApiServer) -> None:
    metrics = port()
    pod = pod_of(
        "DaemonSet",
        "gigaslice-dataset",
        "dataset.enabled=true",
        f"dataset.settings.metricsAddress=127.0.0.1:{metrics}",
        f"dataset.extraArgs={{--kubeconfig={CONFIG}}}",
    )
    sources = volumes(pod, host, {"dev": Path("/dev")})
    (sources["kubelet"] / "plugins_registry").mkdir()
    (sources["kubelet"] / "plugins").mkdir()
    with running(
        pod, "dataset", sources, more=of_the_cluster(host, api), fields={"spec.nodeName": NODE}
    ) as service:
        eventually(lambda: any((sources["kubelet"] / "plugins_registry").glob("*.sock")), service)
        assert eventually(lambda: get(metrics, "/healthz"), service)
        assert "ro" in service.root_options() and service.status()["Uid"].split()[0] == "0"
