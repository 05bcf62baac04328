# SPDX-License-Identifier: Apache-2.0
"""The cluster's roles have the rights that they need, and run as the restricted standard demands."""

from __future__ import annotations

import pytest

from tests.unit.manifests.cluster_charts import SCHEDULERS, chart, reads, rights, spec_of


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
