# SPDX-License-Identifier: Apache-2.0
"""The cluster half of the chart: every way to install it is valid, and each role understands its settings."""

from __future__ import annotations

import kubernetes_validate
import pytest

from gigaslice.core.cluster import names
from gigaslice.core.kube.quantity import parse_quantity
from gigaslice.core.units import parse_bytes
from gigaslice.role_settings import load
from gigaslice.roles.scheduler.settings import SchedulerSettings
from tests.unit.manifests.cel import value_of
from tests.unit.manifests.cluster_charts import (
    ADMISSIONS,
    ON,
    SCHEDULERS,
    VERSIONS,
    Document,
    chart,
    controller_settings,
    hooks,
    kinds,
    one_of,
    served,
    spec_of,
    workloads,
)
from tests.unit.manifests.test_chart import helm, listed


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_way_to_install_it(version):
    ways = [f"scheduler.mode={one}" for one in SCHEDULERS] + [f"admission.mode={one}" for one in ADMISSIONS]
    checked: list[Document] = []
    for way in ways:
        for document in chart(way, "networkPolicy.enabled=true", version=version):
            if document not in checked:  # a schema is read anew each time, which takes most of it
                kubernetes_validate.validate(document, version, strict=True)
                checked.append(document)


def test_without_it_nothing_of_it_is_there():
    assert kinds(listed("--kube-version", "1.36.0")) == {
        "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet", "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }  # fmt: skip


@pytest.mark.parametrize("version, policy", [("1.35", False), ("1.36", True), ("1.36.2-eks-1", True)])
def test_policies_complete_pods_where_the_api_server_has_them(version, policy):
    documents = listed(*ON, "--kube-version", version if "eks" in version else f"{version}.0")
    assert ("MutatingAdmissionPolicy" in kinds(documents)) == policy
    selector = one_of(documents, "MutatingWebhookConfiguration")["webhooks"][0]["namespaceSelector"]
    labelled = [one for one in selector["matchExpressions"] if one["key"] == "gigaslice.io/api"]
    assert bool(labelled) == policy, "asked about all pods of ours, or about those that get claims"


def test_policies_on_a_cluster_without_them_are_refused_with_the_remedy():
    done = helm(*ON, "--kube-version", "1.33.0", "--set", "admission.mode=policy")
    assert done.returncode != 0 and "write webhook" in done.stderr


@pytest.mark.parametrize(
    "mistake",
    ["scheduler.mode=third", "admission.mode=maybe", "scheduler.replicas=0", "controller.replica=1"],
)
def test_a_mistake_in_the_values_is_refused(mistake):
    done = helm(*ON, "--set", mistake)
    assert done.returncode != 0 and "values don't meet the specifications" in done.stderr


def test_a_second_scheduler_may_not_have_the_first_ones_name():
    done = helm(*ON, "--set", "scheduler.name=default-scheduler")
    assert done.returncode != 0 and "a name of its own" in done.stderr


@pytest.mark.parametrize("slice_, size", [
    ("1GiB", 1 << 30), ("512MiB", 1 << 29), ("8G", 8 << 30), ("1073741824", 1 << 30), ("2", 2 << 30)
])  # fmt: skip
def test_the_policy_counts_slices_as_the_agents_do(slice_, size):
    documents = chart(f"settings.slice={slice_}")
    expressions = {
        one["name"]: one["expression"]
        for one in one_of(documents, "MutatingAdmissionPolicy", "-classes")["spec"]["variables"]
    }
    assert f" + {size} - 1) / {size}" in expressions["slices"].replace("\n", " ")
    (controller,) = spec_of(one_of(documents, "Deployment", "-controller"))["containers"]
    assert f"--slice={slice_}" in controller["args"]


def test_a_slice_between_gib_and_bytes_is_refused():
    words = ("--kube-version", "1.36.0", "--set-string", "settings.slice=50000", "--skip-schema-validation")
    done = helm(*ON, *words)
    assert (
        done.returncode != 0 and "a number alone is GiB up to 9999 and bytes from 1048576 on" in done.stderr
    )


@pytest.mark.parametrize(("memory", "amount"), [
    ("8GiB", "8Gi"), ("8g", "8Gi"), ("512MiB", "512Mi"), ("1.5Gi", "1.5Gi"), ("8", "8Gi"), ("7.5", "7.5Gi"),
    ("9999", "9999Gi"), ("1073741824", "1073741824"), ("4096B", "4096"), ("8b", "8"), (8, "8Gi"), (1 << 20, "1048576"),
])  # fmt: skip
def test_the_policy_reads_a_share_as_the_parser_does(memory, amount):
    """The policy's own expressions, up to the quantity that the API server makes of the amount."""
    variables = {
        one["name"]: one["expression"]
        for one in one_of(chart(), "MutatingAdmissionPolicy", "-classes")["spec"]["variables"]
    }
    known = {"params": {"spec": {"share": {"memory": memory}}}, "variables": {}}
    for name in ("size", "memory"):
        known["variables"] = {**known["variables"], name: value_of(variables[name], known)}
    text = variables["slices"].partition("quantity(")[2].partition(").asApprox")[0]
    assert value_of(text, known) == amount
    assert parse_quantity(amount) == parse_bytes(str(memory))


def test_two_releases_do_not_share_names():
    def names_of(release: str) -> set[tuple[str, str]]:
        found = chart(release=release)
        return {
            (one["kind"], one["metadata"]["name"]) for one in found if "CustomResource" not in one["kind"]
        }

    assert not names_of("gigaslice") & names_of("second")


def test_the_controller_understands_its_flags():
    settings = controller_settings(chart("settings.slice=2GiB", "admission.nodesMayCome=true"))
    assert (settings.namespace, settings.leader_lease) == ("gigaslice", "gigaslice-controller")
    assert (settings.slice_bytes, settings.oversize) == (2 << 30, "warn")
    assert settings.page_address == ("127.0.0.1", 8080), "kubectl port-forward reaches it, other pods do not"
    assert settings.resources == ("gigaslice.io/vgpu-memory", "gigaslice.io/gpu")
    told = controller_settings(chart("settings.resource=example.com/gib"))
    assert "example.com/gib" in told.resources
    changed = controller_settings(chart("controller.settings.pageAddress=:80", "admission.mode=none"))
    assert changed.page_address == (None, 80) and changed.webhook_address is None


def test_the_scheduler_understands_its_flags():
    for mode in ("second", "extender"):
        documents = chart(f"scheduler.mode={mode}", "settings.slice=2GiB", "scheduler.settings.policy=spread")
        kind = "Deployment" if mode == "second" else "DaemonSet"
        command, *flags = spec_of(one_of(documents, kind, "-scheduler"))["containers"][-1]["args"]
        given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        settings = load(SchedulerSettings, given, {})
        assert (command, settings.slice_bytes, settings.policy) == ("scheduler", 2 << 30, "spread")
        assert settings.listen_address == ("127.0.0.1", 8090)


RENAMED = ("settings.resource=example.com/gib", "settings.wholeGpus=example.com/gpu")


@pytest.mark.parametrize("sets, memory, whole", [
    ((), names.MEMORY_RESOURCE, names.GPU_RESOURCE),
    (RENAMED, "example.com/gib", "example.com/gpu"),
    (("settings.wholeGpus=off",), names.MEMORY_RESOURCE, names.GPU_RESOURCE),
])  # fmt: skip
def test_all_roles_count_by_the_names_that_the_agents_have(sets, memory, whole):
    documents = chart(*sets)
    (controller,) = spec_of(one_of(documents, "Deployment", "-controller"))["containers"]
    scheduler = spec_of(one_of(documents, "Deployment", "-scheduler"))["containers"][-1]
    for container in (controller, scheduler):
        assert {f"--resource={memory}", f"--whole-gpus={whole}"} <= {*container["args"]}
    assert controller_settings(documents).units.gpu_resource == whole
    for mutation in one_of(documents, "MutatingAdmissionPolicy", "-classes")["spec"]["mutations"]:
        expression = mutation["jsonPatch"]["expression"]
        units = f'"{whole.replace("/", "~1")}" : "{memory.replace("/", "~1")}"'
        assert f'/resources/limits/" + (variables.slices == 0 ? {units})' in expression
        assert f'k.startsWith("{memory}.") || k in ["{memory}","{whole}"]' in expression
    sent = one_of(documents, "MutatingAdmissionPolicy", "-scheduler")["spec"]["matchConditions"][0]
    assert f'k.startsWith("{memory}.") || k in ["{memory}","{whole}"]' in sent["expression"]


def test_the_webhook_is_called_for_pods_that_ask_by_other_names():
    for hook in hooks(chart(*RENAMED, version="1.35")).values():
        expression = hook["matchConditions"][0]["expression"]
        assert expression.count('k in ["example.com/gib","example.com/gpu"]') == 2
    for hook in hooks(chart(version="1.35")).values():
        assert "k in" not in hook["matchConditions"][0]["expression"]


def test_ports_of_the_controller_are_those_that_it_was_told():
    told = ("metricsAddress=:9000", "webhookAddress=:9001", "pageAddress=10.0.0.1:80")
    documents = chart(*(f"controller.settings.{one}" for one in told))
    pod = workloads(documents)["controller"]
    assert served(pod) == {"metrics": 9000, "webhook": 9001, "page": 80}
    settings = controller_settings(documents)
    assert (settings.metrics_address, settings.webhook_address) == ((None, 9000), (None, 9001))
    (container,) = workloads(chart("controller.settings.metricsAddress=127.0.0.1:9000"))["controller"][
        "spec"
    ]["containers"]
    assert "livenessProbe" not in container, "the kubelet would not reach it"


def test_off_in_a_file_of_values_turns_a_setting_of_the_controller_off(tmp_path):
    """YAML makes false of it, which Helm's own merge takes for nothing."""
    (tmp_path / "values.yaml").write_text(
        "cluster: {enabled: true}\n"
        "controller: {settings: {pageAddress: off, webhookAddress: off, metricsAddress: off}}\n"
    )
    documents = listed("--values", str(tmp_path / "values.yaml"), "--kube-version", "1.36")
    settings = controller_settings(documents)
    assert (settings.page_address, settings.webhook_address, settings.metrics_address) == (None, None, None)
    assert served(workloads(documents)["controller"]) == {}


@pytest.mark.parametrize("mode", ["second", "extender"])
def test_a_secret_becomes_the_token_of_every_roles_metrics(mode):
    sets = ("dataset.enabled=true", f"scheduler.mode={mode}")
    documents = chart(*sets, "metricsToken=scrape")
    roles = workloads(documents)
    assert roles.keys() == {"node", "controller", "scheduler", "dataset"}
    for role, pod in roles.items():
        service = pod["spec"]["containers"][-1]
        (flag,) = [one for one in service["args"] if one.startswith("--metrics-token-file=")]
        (mount,) = [one for one in service["volumeMounts"] if one["name"] == "metrics-token"]
        (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "metrics-token"]
        assert flag == f"--metrics-token-file={mount['mountPath']}/token", role
        assert mount["readOnly"] is True and volume["secret"]["secretName"] == "scrape"
        root = service["securityContext"].get("runAsUser") == 0
        assert volume["secret"]["defaultMode"] == (0o400 if root else 0o444), "a user of its own reads it too"
    for one in documents:
        if one["kind"] in ("DaemonSet", "Deployment"):
            kubernetes_validate.validate(one, "1.36", strict=True)
    assert "metrics-token" not in str(chart(*sets))
