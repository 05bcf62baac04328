# SPDX-License-Identifier: Apache-2.0
"""The kube-scheduler that the chart runs beside the scheduler's service: version, configuration, probes."""

from __future__ import annotations

import pytest
import yaml

from gigaslice.core.cluster import names
from tests.unit.manifests.cluster_charts import ON, chart, of, one_of, spec_of
from tests.unit.manifests.test_chart import listed


@pytest.mark.parametrize("version, tag", [
    ("1.34.3", "v1.34.3"), ("1.33.5-eks-113cf36", "v1.33.5"), ("1.35.1+k3s1", "v1.35.1")
])  # fmt: skip
def test_the_second_scheduler_is_of_the_clusters_version(version, tag):
    documents = listed(*ON, "--kube-version", version)
    images = [one["image"] for one in spec_of(one_of(documents, "Deployment", "-scheduler"))["containers"]]
    assert images[0] == f"registry.k8s.io/kube-scheduler:{tag}"


@pytest.mark.parametrize("sets, given", [
    (("--kube-version", "1.30.0"), True),
    (("--kube-version", "1.36.2-gke.1"), True),
    (("--kube-version", "1.37.0"), False),
    (("--kube-version", "1.40.0"), False),
    (("--kube-version", "1.36.2", "--set", "scheduler.kubeScheduler.tag=v1.37.1"), False),
    (("--kube-version", "1.37.0", "--set", "scheduler.kubeScheduler.tag=v1.36.4"), True),
])  # fmt: skip
def test_refused_pods_with_a_class_are_tried_again_soon_where_the_scheduler_has_the_flag(sets, given):
    command = spec_of(one_of(listed(*ON, *sets), "Deployment", "-scheduler"))["containers"][0]["command"]
    assert ("--pod-max-in-unschedulable-pods-duration=10s" in command) == given
    assert len(command) == 2 + given


@pytest.mark.parametrize("sets, flags", [
    ((), ["--whole-gpus=gigaslice.io/gpu"]),
    (("settings.wholeGpus=example.com/gpu",), ["--whole-gpus=example.com/gpu"]),
    (("settings.wholeGpus=off",), ["--whole-gpus=off"]),
    (("cluster.enabled=false",), []),
])  # fmt: skip
def test_nodes_offer_whole_gpus_by_which_classes_are_counted(sets, flags):
    agent = spec_of(one_of(chart("cluster.enabled=true", *sets), "DaemonSet", "-node"))["containers"][0]
    assert [flag for flag in agent["args"] if flag.startswith("--whole-gpus")] == flags


def test_the_second_scheduler_is_configured_for_the_service_beside_it():
    documents = chart(
        "settings.resource=example.com/gib", "scheduler.managedResources={gigaslice.io/vgpu-memory.h100}"
    )
    configuration = yaml.safe_load(one_of(documents, "ConfigMap")["data"]["scheduler.yaml"])
    (profile,), (extender,) = configuration["profiles"], configuration["extenders"]
    assert profile["schedulerName"] == names.SCHEDULER_NAME and profile["percentageOfNodesToScore"] == 100
    assert profile["pluginConfig"][0]["args"] == {"ignoredResourceGroups": [names.CLASS_PREFIX.rstrip("/")]}
    assert extender["nodeCacheCapable"] is True and extender["ignorable"] is False
    assert [one["name"] for one in extender["managedResources"]] == [
        "example.com/gib", names.GPU_RESOURCE, "gigaslice.io/vgpu-memory.h100",
    ]  # fmt: skip
    service = spec_of(one_of(documents, "Deployment", "-scheduler"))["containers"][1]
    address = extender["urlPrefix"].removeprefix("http://").partition("/")[0]
    assert f"--listen-address={address}" in service["args"] and address.startswith("127.0.0.1:")
    lease = configuration["leaderElection"]
    (role,) = of(documents, "Role", "-scheduler")
    assert role["metadata"]["namespace"] == lease["resourceNamespace"]
    assert [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule] == [
        ["gigaslice-scheduler-service", lease["resourceName"]]
    ]
    assert f"--leader-lease={lease['resourceNamespace']}/gigaslice-scheduler-service" in service["args"]


@pytest.mark.parametrize("sets, port", [
    ((), 9447),
    (("scheduler.settings.metricsAddress=:9000",), 9000),
    (("scheduler.mode=extender", "scheduler.settings.metricsAddress=:9000"), 9000),
])  # fmt: skip
def test_probes_and_metrics_of_the_service_are_apart_from_what_kube_scheduler_asks(sets, port):
    documents = chart(
        *sets, "networkPolicy.enabled=true", "networkPolicy.from[0].podSelector.matchLabels.a=b"
    )
    kind = "DaemonSet" if "scheduler.mode=extender" in sets else "Deployment"
    service = spec_of(one_of(documents, kind, "-scheduler"))["containers"][-1]
    assert f"--metrics-address=:{port}" in service["args"]
    assert [one for one in service["args"] if one.startswith("--listen-address")] == [
        "--listen-address=127.0.0.1:8090"
    ]
    assert service["ports"] == [{"name": "metrics", "containerPort": port}]
    for probe, path in (("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
        assert service[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "metrics"}
    for policy in of(documents, "NetworkPolicy", "-scheduler"):
        ((rule,), ports) = policy["spec"]["ingress"], ["https", "metrics"]
        assert [one["port"] for one in rule["ports"]] == ports and rule["from"]
    assert len(of(documents, "NetworkPolicy", "-scheduler")) == (kind == "Deployment")


@pytest.mark.parametrize("address", ["off", "127.0.0.1:9447"])
def test_a_service_that_nobody_reaches_is_probed_from_within(address):
    documents = chart(f"scheduler.settings.metricsAddress={address}")
    service = spec_of(one_of(documents, "Deployment", "-scheduler"))["containers"][1]
    assert f"--metrics-address={address}" in service["args"]
    assert "127.0.0.1:8090/readyz" in service["readinessProbe"]["exec"]["command"][-1]
    assert ("ports" in service) == (address != "off")


def test_a_changed_configuration_restarts_the_scheduler_which_reads_it_once():
    def mark(*sets: str) -> dict[str, str]:
        workload = one_of(chart(*sets), "Deployment", "-scheduler")
        found: dict[str, str] = workload["spec"]["template"]["metadata"]["annotations"]
        return found

    assert mark() == mark("scheduler.replicas=3") != mark("settings.resource=example.com/gib")


def test_an_own_schedulers_service_listens_on_the_control_planes_loopback_address_alone():
    documents = chart("scheduler.mode=extender")
    workload = one_of(documents, "DaemonSet", "-scheduler")
    (service,) = spec_of(workload)["containers"]
    assert spec_of(workload)["hostNetwork"] is True
    assert "--listen-address=127.0.0.1:8090" in service["args"] and "ports" not in service
    assert service["livenessProbe"]["httpGet"]["host"] == "127.0.0.1"
    assert not of(documents, "ConfigMap")
    assert not of(documents, "MutatingAdmissionPolicy", "-scheduler"), "pods stay with the default scheduler"
    (controller,) = spec_of(one_of(documents, "Deployment", "-controller"))["containers"]
    assert "--scheduler-name=default-scheduler" in controller["args"]


def test_one_replica_has_no_disruption_budget_that_would_block_a_drain():
    assert len(of(chart(), "PodDisruptionBudget")) == 2
    assert not of(chart("scheduler.replicas=1", "controller.replicas=1"), "PodDisruptionBudget")
