# SPDX-License-Identifier: Apache-2.0
"""The cluster half of the chart: every way to install it is valid, gives each role what it needs, and no more."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gigaslice.core.cluster import names
from gigaslice.core.kube.quantity import parse_quantity
from gigaslice.core.units import parse_bytes
from gigaslice.role_settings import load
from gigaslice.roles.controller import agent_usage
from gigaslice.roles.controller.agent_usage import metrics_address
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.scheduler.settings import SchedulerSettings
from tests.unit.manifests.cel import value_of
from tests.unit.manifests.test_chart import documents_of, helm, listed

ON = ("--set", "cluster.enabled=true")
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
SCHEDULERS = ("second", "extender", "none")
ADMISSIONS = ("auto", "policy", "webhook", "none")
Document = dict[str, Any]


def chart(*sets: str, version: str = "1.36", release: str = "gigaslice") -> list[Document]:
    return documents_of(_rendered(sets, version, release))


@functools.cache
def _rendered(sets: tuple[str, ...], version: str, release: str) -> str:
    """What helm makes of the same values, which many tests look at."""
    words = [word for one in sets for word in ("--set", one)]
    done = helm(*ON, "--kube-version", f"{version}.0", *words, release=release)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of(documents: list[Document], kind: str, name: str = "") -> list[Document]:
    return [one for one in documents if one["kind"] == kind and one["metadata"]["name"].endswith(name)]


def one_of(documents: list[Document], kind: str, name: str = "") -> Document:
    (found,) = of(documents, kind, name)
    return found


def spec_of(workload: Document) -> Document:
    found: Document = workload["spec"]["template"]["spec"]
    return found


def kinds(documents: list[Document]) -> set[str]:
    return {one["kind"] for one in documents}


# --- every way in -----------------------------------------------------------------------------------------------------


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


# --- the second scheduler ---------------------------------------------------------------------------------------------


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


# --- rights -----------------------------------------------------------------------------------------------------------


def rights(documents: list[Document], account: str) -> set[tuple[str, str]]:
    """What an account may, as (verb, resource) pairs, with resource names after a colon; stock roles by their names."""
    found = set()
    for binding in (one for one in documents if one["kind"].endswith("RoleBinding")):
        if account not in [one["name"] for one in binding["subjects"]]:
            continue
        reference = binding["roleRef"]
        roles = [
            one
            for one in documents
            if one["kind"] == reference["kind"] and one["metadata"]["name"] == reference["name"]
        ]
        if not roles:
            found.add(("stock", reference["name"]))
        for rule in (rule for role in roles for rule in role["rules"]):
            only = ":" + ",".join(rule["resourceNames"]) if "resourceNames" in rule else ""
            found |= {(verb, resource + only) for verb in rule["verbs"] for resource in rule["resources"]}
    return found


def reads(*resources: str) -> set[tuple[str, str]]:
    return set(itertools.product(("get", "list", "watch"), resources))


def test_the_scheduler_reads_and_binds_and_nothing_else():
    own = reads("nodes", "pods", "resourceclasses", "datasets", "datasetnodes") | {
        ("create", "pods/binding"), ("patch", "pods/status"), ("create", "events"), ("patch", "events"),
        ("create", "leases"),
    }  # fmt: skip
    leases = "leases:gigaslice-scheduler-service"
    assert rights(chart("scheduler.mode=extender"), "gigaslice-scheduler") == own | {
        ("get", leases), ("update", leases),
    }  # fmt: skip
    assert rights(chart(), "gigaslice-scheduler") == own | {
        ("stock", "system:kube-scheduler"),
        ("stock", "system:volume-scheduler"),
        ("stock", "extension-apiserver-authentication-reader"),
        ("get", f"{leases},gigaslice-scheduler"),
        ("update", f"{leases},gigaslice-scheduler"),
    }


def test_the_controller_writes_its_own_objects_and_nothing_else():
    found = rights(chart(), "gigaslice-controller")
    hook = (
        "mutatingwebhookconfigurations:gigaslice-webhook",
        "validatingwebhookconfigurations:gigaslice-webhook",
    )
    only = {(verb, one) for verb in ("get", "update") for one in (*hook, "secrets:gigaslice-webhook")}
    only |= {
        (verb, one) for verb in ("get", "list", "watch") for one in ("namespaces", "resourceclaimtemplates")
    }
    only |= {(verb, "resourceclaimtemplates") for verb in ("create", "delete")} | {("get", "resourceclaims")}
    assert only <= found
    assert rights(chart("admission.mode=none"), "gigaslice-controller") == found - only
    writes = {pair for pair in found - only if pair[0] not in ("get", "list", "watch")}
    assert {resource.partition(":")[0].partition("/")[0] for _, resource in writes} == {
        "resourceclasses", "extendedresources", "datasets", "datasetnodes", "events", "leases",
    }  # fmt: skip
    assert {resource for _, resource in writes if resource.startswith("datasets")} == {"datasets/status"}
    assert [verb for verb, resource in writes if resource == "datasetnodes"] == ["delete"]
    assert not [one for one in found if one[1] == "secrets" or one[1].startswith("pods/")]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_nobody_may_evict_delete_pods_or_become_another(scheduler):
    for document in chart(f"scheduler.mode={scheduler}"):
        for rule in document.get("rules") or () if "Role" in document["kind"] else ():
            assert "*" not in rule["verbs"] and "*" not in rule["resources"] and "*" not in rule["apiGroups"]
            assert not {"impersonate", "escalate", "bind"} & set(rule["verbs"])
            assert "pods/eviction" not in rule["resources"]
            assert not ("pods" in rule["resources"] and set(rule["verbs"]) - {"get", "list", "watch"})


@pytest.mark.parametrize("scheduler", ["second", "extender"])
def test_the_clusters_roles_run_as_the_restricted_standard_demands(scheduler):
    documents = chart(f"scheduler.mode={scheduler}")
    workloads = [one for one in documents if one["kind"] in ("Deployment", "DaemonSet")]
    for workload in (one for one in workloads if not one["metadata"]["name"].endswith("-node")):
        spec = spec_of(workload)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not [one for one in spec.get("volumes", ()) if set(one) - {"name", "configMap"}]
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True and context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


# --- settings ---------------------------------------------------------------------------------------------------------


def controller_settings(documents: list[Document]) -> ControllerConfig:
    """What the controller makes of its flags."""
    (container,) = spec_of(one_of(documents, "Deployment", "-controller"))["containers"]
    command, *flags = container["args"]
    assert command == "controller"
    return load(ControllerConfig, dict(flag.removeprefix("--").split("=", 1) for flag in flags), {})


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


# --- admission --------------------------------------------------------------------------------------------------------


def hooks(documents: list[Document]) -> dict[str, Document]:
    found = [one for one in documents if one["kind"].endswith("WebhookConfiguration")]
    return {one["kind"].partition("Webhook")[0]: one["webhooks"][0] for one in found}


def test_the_api_server_calls_the_webhook_for_no_other_pods():
    for version in ("1.30", "1.35", "1.36"):
        for hook in hooks(chart(version=version)).values():
            assert 'contains("gigaslice")' in hook["matchConditions"][0]["expression"]
            excluded = hook["namespaceSelector"]["matchExpressions"][0]
            assert excluded["operator"] == "NotIn" and "kube-system" in excluded["values"]


def test_pods_fail_without_the_webhook_only_where_it_is_asked_for_ours_alone():
    assert {one["failurePolicy"] for one in hooks(chart(version="1.35")).values()} == {"Fail"}
    found = hooks(chart())
    policies = {kind: one["failurePolicy"] for kind, one in found.items()}
    assert policies == {"Validating": "Ignore", "Mutating": "Fail"}
    assert {"key": "gigaslice.io/api", "operator": "Exists"} in found["Mutating"]["namespaceSelector"][
        "matchExpressions"
    ]


# --- claims -----------------------------------------------------------------------------------------------------------


def chosen(selector: Document, labels: dict[str, str]) -> bool:
    """Whether a selector of namespaces takes one with these labels."""
    for one in selector["matchExpressions"]:
        value, there = labels.get(one["key"]), one["key"] in labels
        operator, values = one["operator"], one.get("values", [])
        if not {"In": value in values, "NotIn": value not in values, "Exists": there}[operator]:
            return False
    return True


@pytest.mark.parametrize("default", ["dra", "device-plugin"])
@pytest.mark.parametrize("label", [None, "dra", "device-plugin", "drb"])
def test_each_namespaces_pods_are_completed_by_the_webhook_or_by_the_policies(default, label):
    """Never by neither, and by both only where the label is a mistake, which the webhook refuses."""
    documents = chart(f"node.api={default}")
    labels = {"gigaslice.io/api": label} if label else {}
    webhook = chosen(hooks(documents)["Mutating"]["namespaceSelector"], labels)
    bindings = of(documents, "MutatingAdmissionPolicyBinding")
    policies = {chosen(one["spec"]["matchResources"]["namespaceSelector"], labels) for one in bindings}
    assert len(bindings) == 2 and webhook == ((label or default) != "device-plugin")
    assert policies == {not webhook or (label == "drb" and default == "device-plugin")}
    assert controller_settings(documents).api == default


def test_the_controllers_api_may_be_another_than_the_nodes():
    documents = chart("node.api=dra", "controller.settings.api=device-plugin")
    assert controller_settings(documents).api == "device-plugin"
    assert not chosen(hooks(documents)["Mutating"]["namespaceSelector"], {})


def test_the_webhook_makes_templates_but_not_in_a_dry_run():
    for version in ("1.30", "1.35", "1.36"):
        effects = {kind: one["sideEffects"] for kind, one in hooks(chart(version=version)).items()}
        assert effects.pop("Mutating", "NoneOnDryRun") == "NoneOnDryRun" and set(effects.values()) == {"None"}


@pytest.mark.parametrize("version, there", [("1.33", False), ("1.34", True)])
def test_rights_to_claims_come_where_there_are_claims(version, there):
    found = {resource for _, resource in rights(chart(version=version), "gigaslice-controller")}
    assert ("resourceclaimtemplates" in found) == there and "namespaces" in found
    unhooked = rights(chart("admission.mode=none", version=version), "gigaslice-controller")
    assert not {"resourceclaimtemplates", "namespaces"} & {resource for _, resource in unhooked}


def test_the_webhook_is_where_its_configuration_says():
    documents = chart(version="1.35")
    service = one_of(documents, "Service", "-webhook")
    controller = one_of(documents, "Deployment", "-controller")
    labels = controller["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (container,) = spec_of(controller)["containers"]
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in [one["name"] for one in container["ports"]]
    for hook in hooks(documents).values():
        reference = hook["clientConfig"]["service"]
        assert (reference["name"], reference["port"]) == (service["metadata"]["name"], port["port"])
        assert reference["namespace"] == service["metadata"]["namespace"]
        assert hook["clientConfig"].keys() == {"service"}, "the controller writes the caBundle"
    settings = controller_settings(documents)
    assert settings.webhook_address == (None, container["ports"][1]["containerPort"])
    assert settings.webhook_service == service["metadata"]["name"]
    assert settings.webhook_secret == one_of(documents, "Secret")["metadata"]["name"]
    assert {settings.webhook_configuration} == {
        one["metadata"]["name"] for one in documents if one["kind"].endswith("WebhookConfiguration")
    }


def test_only_our_scheduler_writes_assignments_and_whoever_is_named():
    (rule,) = one_of(chart(), "ValidatingAdmissionPolicy", "-assignments")["spec"]["validations"]
    assert '["system:serviceaccount:gigaslice:gigaslice-scheduler"]' in rule["expression"]
    (rule,) = one_of(chart("admission.assigners={bob}"), "ValidatingAdmissionPolicy", "-assignments")["spec"][
        "validations"
    ]
    assert '["system:serviceaccount:gigaslice:gigaslice-scheduler","bob"]' in rule["expression"]


ALL_ROLES = ("networkPolicy.enabled=true", "dataset.enabled=true")
PEER = {"podSelector": {"matchLabels": {"a": "b"}}}


def policies(documents: list[Document]) -> dict[str, Document]:
    return {
        one["metadata"]["name"].removeprefix("gigaslice-"): one["spec"]
        for one in of(documents, "NetworkPolicy")
    }


def workloads(documents: list[Document]) -> dict[str, Document]:
    """The pods of each role."""
    found = [one["spec"]["template"] for one in documents if one["kind"] in ("DaemonSet", "Deployment")]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in found}


def served(pod: Document) -> dict[str, int]:
    """The named ports of a pod."""
    return {
        port["name"]: port["containerPort"]
        for one in pod["spec"]["containers"]
        for port in one.get("ports", [])
    }


def test_a_network_policy_for_each_role():
    documents = chart(*ALL_ROLES)
    closed = policies(documents)
    assert closed.keys() == workloads(documents).keys() == {"node", "controller", "scheduler", "dataset"}
    for role, pod in workloads(documents).items():
        assert closed[role]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert closed[role]["policyTypes"] == ["Ingress"]
    (webhook,) = closed.pop("controller")["ingress"]
    assert webhook == {"ports": [{"protocol": "TCP", "port": "webhook"}]}, "the API server, from anywhere"
    assert not [role for role, spec in closed.items() if "ingress" in spec]


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("controller.settings.pageAddress=:8080",),
        ("controller.settings.metricsAddress=:9000", "controller.settings.webhookAddress=:9001"),
        ("controller.settings.metricsAddress=off", "admission.mode=none"),
        ("dataset.settings.metricsAddress=off", "settings.metricsAddress=off"),
        ("dataset.settings.metricsAddress=:9100", "scheduler.settings.metricsAddress=off"),
    ],
)
def test_who_is_named_reaches_every_port_that_a_role_serves(sets):
    documents = chart(*ALL_ROLES, "networkPolicy.from[0].podSelector.matchLabels.a=b", *sets)
    for document in of(documents, "NetworkPolicy"):
        kubernetes_validate.validate(document, "1.36", strict=True)
    for role, pod in workloads(documents).items():
        rules = policies(documents)[role].get("ingress", [])
        named = [port["port"] for rule in rules if rule.get("from") == [PEER] for port in rule["ports"]]
        assert set(named) == served(pod).keys() - {"webhook"}, role
        opened = [port["port"] for rule in rules if "from" not in rule for port in rule["ports"]]
        assert set(opened) == served(pod).keys() & {"webhook"}, "and nothing else is open to everybody"


@pytest.mark.parametrize("value", ["agents", "off"])
def test_the_controller_reaches_the_agents_metrics_where_the_page_shows_what_pods_use(value):
    documents = chart(*ALL_ROLES, f"controller.settings.pageUsage={value}")
    assert controller_settings(documents).page_usage == value
    rules = policies(documents)["node"].get("ingress", [])
    assert len(rules) == (value == "agents")
    for rule in rules:
        kubernetes_validate.validate(of(documents, "NetworkPolicy", "-node")[0], "1.36", strict=True)
        assert rule["ports"] == [{"protocol": "TCP", "port": "metrics"}]
        (peer,) = rule["from"]
        labels = workloads(documents)["controller"]["metadata"]["labels"]
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
        assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "controller"
    unserved = chart(*ALL_ROLES, f"controller.settings.pageUsage={value}", "settings.metricsAddress=off")
    assert "ingress" not in policies(unserved)["node"]


def test_the_page_asks_the_pods_that_the_chart_makes():
    """The label and the name of the port by which the controller finds the agents are those of their pods."""
    pod = workloads(chart())["node"]
    document = {**pod, "spec": {**pod["spec"], "nodeName": "n"}}
    document["status"] = {"phase": "Running", "podIP": "10.0.0.7"}
    assert metrics_address(document) == "http://10.0.0.7:9445/metrics"
    assert agent_usage._SELECTOR["labelSelector"] == "app.kubernetes.io/component=node"
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "node"


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
