# SPDX-License-Identifier: Apache-2.0
"""The dataset service against a real kubelet of this machine (see dataset_site.py for what that takes)."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest
import yaml

from tests.cluster.dataset_site import ROOT, DatasetSite, missing
from tests.fakes.storage_servers import KEY, SECRET, moto_s3, put

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
SLOW = "--bandwidth=4MiB"


@pytest.fixture
def site(request):
    with DatasetSite(*getattr(request, "param", ())) as found:
        yield found


def placeholders(site):
    return site.logged("published early")


def init_container_pod():
    documents = re.findall(r"(?ms)^```yaml\n(.*?)^```$", (ROOT / "docs/datasets.md").read_text())
    (found,) = [one for one in map(yaml.safe_load, documents) if "initContainers" in one.get("spec", {})]
    return found


def fetched(site, pod):
    """How far its events say that its fetch is, in percent: the steps' own numbers are not always hit."""
    return max((int(one) for one in re.findall(r"fetching (\d+) %", site.events(pod))), default=0)


def test_a_pod_reads_its_data_over_kills_of_the_service(site):
    data = site.fill("d", 50, 3000)
    site.pod("gs-one", {"d": {"source": data}})
    site.until(lambda: site.log("gs-one") == "50", "it sees its files")
    site.kill()
    assert len(site.mounted()) == 1
    site.start()
    site.pod("gs-two", {"d": {"source": data}})
    site.until(lambda: site.log("gs-two") == "50", "the second pod sees them, too")
    assert len({one.rpartition("/volumes/")[0] for one in site.mounted()}) == 2
    site.kubectl("delete", "pod", "gs-one", "--wait=true")
    site.until(lambda: len(site.mounted()) == 1, "what the first had is unmounted")


def test_a_mistake_is_an_event(site):
    site.pod("gs-wrong", {"d": {"sorce": "/nowhere"}})
    site.until(lambda: "did you mean source?" in site.events("gs-wrong"), "the event says what to write")


@pytest.mark.parametrize("site", [[SLOW]], indirect=True)
def test_volumes_and_containers_of_a_gpu_pod_wait_together(site):
    """Several datasets in one volume, and two volumes of several containers, published early."""
    site.start_agent()
    images, labels, other = (
        site.fill("images", 40, 1_000_000),
        site.fill("labels", 7, 1000),
        site.fill("o", 3, 1000),
    )
    volumes = {"both": {"source.images": images, "source.labels": labels}, "single": {"source": other}}
    site.pod(
        "gs-early", volumes, containers={"a": ["both"], "b": ["both", "single"], "c": ["single"]}, gpu=True
    )
    site.until(lambda: placeholders(site) >= 1, "the slow volume is published early")
    site.until(lambda: site.runs("gs-early"), "all containers run")
    site.until(lambda: site.log("gs-early", "c") == "3", "c sees its files")
    assert [site.log("gs-early", one) for one in "abc"] == ["47", "50", "3"]
    assert site.restarts("gs-early") == 0
    assert "FailedMount" not in site.events("gs-early")
    assert "WaitingForDataset" in site.events("gs-early")
    assert "WaitingForGPU" not in site.events("gs-early")
    listed = site.kubectl("exec", "gs-early", "-c", "a", "--", "sh", "-c", "cd /data/both; echo *")
    assert listed.split() == ["images", "labels"]


@pytest.mark.parametrize("site", [[SLOW]], indirect=True)
def test_a_part_of_an_early_volume_is_mounted_when_it_is_there(site):
    """subPath: the kubelet resolves it after the start decision, and not in the placeholder."""
    site.start_agent()
    site.fill("d/train", 30, 1_000_000)
    site.fill("d/test", 4, 1000)
    containers = {"a": ["d:train"], "b": ["d:test"]}
    site.pod("gs-parts", {"d": {"source": str(site.data / "d")}}, containers=containers, gpu=True)
    site.until(lambda: placeholders(site) == 1, "it is published early")
    site.until(lambda: site.log("gs-parts", "b") == "4", "b sees its part")
    assert site.log("gs-parts", "a") == "30"
    site.kubectl("delete", "pod", "gs-parts", "--wait=true")
    site.until(lambda: not site.mounted(), "nothing is left mounted")


@pytest.mark.parametrize("site", [[SLOW]], indirect=True)
def test_a_service_that_is_killed_while_an_early_volume_waits_goes_on(site):
    """With credentials, which the kubelet sends once: they are kept in memory until the data are there."""
    site.start_agent()
    with moto_s3() as endpoint:
        put(endpoint, "bucket", {f"d/{number}": bytes([number]) * 400_000 for number in range(50)})
        secret = ("create", "secret", "generic", "gs-s3", f"--from-literal=access_key={KEY}")
        site.kubectl("delete", "secret", "gs-s3", "--ignore-not-found")
        site.kubectl(*secret, f"--from-literal=secret_key={SECRET}")
        source = {"source": "s3://bucket/d", "options": f"endpoint={endpoint},region=us-east-1"}
        site.pod("gs-killed", {"d": source}, gpu=True, secret="gs-s3")
        site.until(lambda: placeholders(site) == 1, "it is published early")
        site.kill()
        assert not site.runs("gs-killed")
        site.start()
        site.until(lambda: site.log("gs-killed") == "50", "it sees its files")
        assert site.restarts("gs-killed") == 0
        kept = [
            one for one in (*site.run_dir.rglob("*"), *(site.root / "s").rglob("*.json")) if one.is_file()
        ]
        assert not [one for one in kept if SECRET.encode() in one.read_bytes()], (
            "credentials go when the data come"
        )
        site.kubectl("delete", "secret", "gs-s3")


@pytest.mark.parametrize("site", [[SLOW]], indirect=True)
def test_a_kubelet_that_restarts_disturbs_no_reader_and_no_waiting_pod(site):
    data, slow = site.fill("d", 50, 3000), site.fill("slow", 40, 1_000_000)
    reader = "while :; do cat /data/d/* >/tmp/read && cksum </tmp/read; sleep 0.05; done"
    site.pod("gs-reads", {"d": {"source": data}}, script=reader)
    site.until(lambda: site.log("gs-reads"), "it reads")
    site.pod("gs-waits", {"d": {"source": slow}})
    site.until(lambda: "DatasetFetching" in site.events("gs-waits"), "it waits")
    site.restart_kubelet()
    assert not site.runs("gs-waits"), "it was to wait over the restart"
    site.until(lambda: site.log("gs-waits") == "40", "the waiting pod sees its files")
    lines = len(site.log("gs-reads").splitlines())
    site.until(lambda: len(site.log("gs-reads").splitlines()) > lines, "the reader goes on")
    assert len(set(site.log("gs-reads").splitlines())) == 1, "what it reads never changes"
    assert site.restarts("gs-reads") == site.restarts("gs-waits") == 0


@pytest.mark.parametrize("site", [[SLOW]], indirect=True)
def test_service_and_kubelet_killed_while_an_early_volume_waits(site):
    site.start_agent()
    slow = site.fill("slow", 60, 1_000_000)
    site.pod("gs-both", {"d": {"source": slow}}, gpu=True)
    site.until(lambda: placeholders(site) == 1, "it is published early")
    site.kill()
    site.restart_kubelet()
    site.start()
    assert not site.runs("gs-both"), "it was to wait over the restarts"
    site.until(lambda: site.runs("gs-both"), "it runs")
    site.until(lambda: site.log("gs-both") == "60", "it sees its files")
    assert len(site.mounted()) <= 2, "the data, and at most what they were mounted over"


def test_after_a_reboot_a_pod_has_the_version_that_it_had(site):
    data = site.fill("d", 50, 3000)
    site.pod("gs-stays", {"d": {"source": data}})
    site.until(lambda: site.log("gs-stays") == "50", "it sees its files")
    site.reboot()
    site.fill("d", 60, 3000)
    site.start()
    site.until(lambda: site.restarts("gs-stays") == 1 and site.runs("gs-stays"), "it runs again", 180)
    site.until(lambda: site.log("gs-stays") == "50", "it sees the files that it saw")
    site.pod("gs-new", {"d": {"source": data}})
    site.until(lambda: site.log("gs-new") == "60", "a new pod sees the new ones")


@pytest.mark.parametrize("site", [[SLOW]], indirect=True)
def test_a_reboot_while_a_pod_waits_keeps_what_was_fetched(site):
    slow = site.fill("slow", 60, 1_000_000)
    site.pod("gs-waits", {"d": {"source": slow}})
    site.until(lambda: fetched(site, "gs-waits") >= 50, "half of it is there")
    site.reboot()
    site.start()
    site.until(lambda: site.log("gs-waits") == "60", "it sees its files", 180)
    assert '"resumed": true' in (site.root / "log").read_text()


def test_a_pod_with_a_user_namespace_reads_its_data(site):
    data = site.fill("d", 50, 3000)
    site.pod("gs-userns", {"d": {"source": data}}, hostUsers=False)
    site.until(
        lambda: site.phase("gs-userns") == "Running" or "user" in site.events("gs-userns"), "it runs or not"
    )
    if site.phase("gs-userns") != "Running":
        pytest.skip("this node has no user namespaces for pods")
    site.until(lambda: site.log("gs-userns") == "50", "it sees its files")


def test_the_init_container_of_the_manual(site):
    """The pod of docs/datasets.md, with the paths of this service, and a container that has this machine's Python."""
    with moto_s3() as endpoint:
        put(endpoint, "datasets", {f"coco/{number}": bytes([number]) * 10_000 for number in range(30)})
        words = (f"--from-literal=access_key={KEY}", f"--from-literal=secret_key={SECRET}")
        site.kubectl("delete", "secret", "s3", "--ignore-not-found")
        site.kubectl("create", "secret", "generic", "s3", *words)
        pod = init_container_pod()
        spec = pod["spec"]
        (waiting,), (train,) = spec["initContainers"], spec["containers"]
        spec |= {"nodeName": site.node, "automountServiceAccountToken": False}
        image = {"image": os.environ["K8S_NODE_IMAGE"], "imagePullPolicy": "Never"}
        train |= {**image, "command": ["sh", "-c", "find /data -type f | wc -l; exec sleep 100000"]}
        waiting |= {**image, "command": [sys.executable, "-m", "gigaslice_cli"], "workingDir": str(ROOT)}
        waiting["env"].append({"name": "DATASET_OPTIONS", "value": f"endpoint={endpoint},region=us-east-1"})
        socket, data = spec["volumes"]
        socket["hostPath"]["path"], data["hostPath"]["path"] = f"{site.run_dir}/wait", f"{site.root}/s/pods"
        for number, path in enumerate(("/usr", "/lib", "/lib64", sys.base_prefix, str(ROOT))):
            spec["volumes"].append({"name": f"host{number}", "hostPath": {"path": path}})
            waiting["volumeMounts"].append({"name": f"host{number}", "mountPath": path, "readOnly": True})
        site.document(pod)
        site.until(lambda: site.log("train-init", "train") == "30", "it sees its files")
        assert "/data/mount" in site.log("train-init", "dataset"), "it says where they are on the node"
        site.kubectl("delete", "pod", "train-init", "--wait=true")
        site.until(lambda: not [one for one in site.points() if "/s/pods/" in one], "it is unmounted")
        site.kubectl("delete", "secret", "s3")


def test_service_that_ends_leaves_readers_reading(site):
    data = site.fill("d", 50, 3000)
    site.pod("gs-one", {"d": {"source": data}}, script="while :; do cat /data/d/* | cksum; sleep 0.1; done")
    site.until(lambda: site.log("gs-one"), "it reads")
    site.kill(signal.SIGTERM)
    lines = len(site.log("gs-one").splitlines())
    site.until(lambda: len(site.log("gs-one").splitlines()) > lines + 5, "it reads on")
    assert len(set(site.log("gs-one").splitlines())) == 1
