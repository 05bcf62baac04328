# SPDX-License-Identifier: Apache-2.0
"""Who reaches which port of the roles, and whom the roles reach."""

from __future__ import annotations

import kubernetes_validate
import pytest

from gigaslice.roles.controller import agent_usage
from gigaslice.roles.controller.agent_usage import metrics_address
from tests.unit.manifests.cluster_charts import Document, chart, controller_settings, of, served, workloads

ALL_ROLES = ("networkPolicy.enabled=true", "dataset.enabled=true")
PEER = {"podSelector": {"matchLabels": {"a": "b"}}}


def policies(documents: list[Document]) -> dict[str, Document]:
    return {
        one["metadata"]["name"].removeprefix("gigaslice-"): one["spec"]
        for one in of(documents, "NetworkPolicy")
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
