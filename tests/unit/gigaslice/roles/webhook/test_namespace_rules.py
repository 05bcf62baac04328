# SPDX-License-Identifier: Apache-2.0
"""Which API a namespace's pods get GPUs by, and what forbids it."""

from __future__ import annotations

import pytest

from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.roles.webhook.namespace_rules import NamespaceRules, namespace_rules, parse_labels, parse_quota

UNITS = ClusterUnits()


def quota(**hard):
    keys = {name.replace("__", "/"): count for name, count in hard.items()}
    return parse_quota({"metadata": {"namespace": "team", "name": "q"}, "spec": {"hard": keys}}, UNITS)


def rules(default="device-plugin", quotas=(), **labels):
    return namespace_rules(
        "team", {f"gigaslice.io/{k.replace('_', '-')}": v for k, v in labels.items()}, quotas, default
    )


@pytest.mark.parametrize("label, default, claims", [
    (None, "dra", True), (None, "device-plugin", False),
    ("dra", "device-plugin", True), ("device-plugin", "dra", False),
])  # fmt: skip
def test_the_label_says_it_and_else_the_setting(label, default, claims):
    assert rules(default, **({"api": label} if label else {})) == NamespaceRules(claims)


@pytest.mark.parametrize("label", ["", "DRA", "claims", "true"])
@pytest.mark.parametrize("default", ["dra", "device-plugin"])
def test_a_label_that_says_neither_is_no_default(label, default):
    found = rules(default, api=label)
    assert not found.claims and "write dra or device-plugin" in found.mistakes[0]


@pytest.mark.parametrize("key", [
    "requests.gigaslice.io/vgpu-memory", "limits.gigaslice.io/vgpu-memory", "requests.gigaslice.io/vgpu-memory.h100",
    "requests.gigaslice.io/gpu", "requests.gpuclass.gigaslice.io/nvidia.h100",
])  # fmt: skip
def test_a_quota_that_would_count_nothing_is_named_with_what_to_write(key):
    found = quota(**{key: "64", "cpu": "1"})
    assert found is not None and found.keys == (key,)
    (sentence,) = rules("dra", [found]).mistakes
    assert f"q ({key})" in sentence and "vgpu.gigaslice.io.deviceclass.resource.k8s.io/devices" in sentence
    assert "counts GPUs and not GiB" in sentence and "gigaslice.io/resource-quota: ignored" in sentence
    assert rules("dra", [found], resource_quota="ignored") == NamespaceRules(claims=True)
    assert rules("device-plugin", [found]) == NamespaceRules(claims=False)


def test_other_quotas_do_not_matter():
    assert (
        quota(cpu="1", **{"requests.nvidia.com/gpu": "1", "requests.gigaslice.io/vgpu-memory2": "1"}) is None
    )
    assert parse_quota({"metadata": {}, "spec": None}, UNITS) is None


def test_a_namespace_whose_pods_must_name_classes_gets_no_claims():
    (sentence,) = rules("dra", require_class="true").mistakes
    assert "require-class" in sentence
    assert rules("device-plugin", require_class="true").mistakes == ()


def test_only_labels_of_ours_are_kept():
    labels = {"gigaslice.io/api": "dra", "a": "b"}
    assert parse_labels({"metadata": {"labels": labels}}) == {"gigaslice.io/api": "dra"}
    assert parse_labels({"metadata": {}}) == {}
