# SPDX-License-Identifier: Apache-2.0
"""Which pods the webhook and the policies are asked for, and what they need of the cluster."""

from __future__ import annotations

import pytest

from tests.unit.manifests.cluster_charts import (
    Document,
    chart,
    controller_settings,
    hooks,
    of,
    one_of,
    rights,
    spec_of,
)


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


def test_pods_with_several_claims_are_asked_about_and_never_fail_without_the_webhook():
    """Such claims are mostly other drivers'."""
    for version, count in (("1.30", 1), ("1.35", 2), ("1.36", 2)):
        documents = chart(version=version)
        (validating,) = [one for one in documents if one["kind"] == "ValidatingWebhookConfiguration"]
        first, *others = validating["webhooks"]
        assert len(others) == count - 1 and first["name"] == "validate.pods.gigaslice.io"
        for hook in others:
            assert (hook["name"], hook["failurePolicy"]) == ("claims.pods.gigaslice.io", "Ignore")
            assert "claims.orValue([]).size() > 1" in hook["matchConditions"][0]["expression"]
            assert hook["namespaceSelector"] == first["namespaceSelector"]
            assert hook["clientConfig"]["service"] == first["clientConfig"]["service"]
    for one in chart():
        if one["kind"] == "MutatingWebhookConfiguration":
            assert [hook["name"] for hook in one["webhooks"]] == ["mutate.pods.gigaslice.io"]


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
