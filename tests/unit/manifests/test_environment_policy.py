# SPDX-License-Identifier: Apache-2.0
"""Limits of the driver that a pod would set itself: policy and webhook refuse the same pods, in one sentence."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.model.environment import MEMORY_VARIABLES, MOST_VARIABLES, environment_mistakes
from gigaslice.roles.webhook.admission_pod import read_admission_pod
from gigaslice.roles.webhook.reviews import answer_mutate, answer_validate
from tests.unit.gigaslice.roles.webhook.pods import facts
from tests.unit.manifests.cel import Policy, Request
from tests.unit.manifests.test_chart import ROOT, documents_of, listed

Document = dict[str, Any]
NAME = "gigaslice-environment"
(SENTENCE,) = environment_mistakes([MEMORY_VARIABLES], "gigaslice.io/vgpu-memory")
(TOO_MANY,) = environment_mistakes([("x",) * (MOST_VARIABLES + 1)], "gigaslice.io/vgpu-memory")
FACTS = facts()
LISTS = ("containers", "initContainers")
OURS = (
    "gigaslice.io/vgpu-memory",
    "gigaslice.io/vgpu-memory.h100",
    "gigaslice.io/gpu",
    "gpuclass.gigaslice.io/nvidia.h100",
)
OTHERS = ("cpu", "nvidia.com/gpu", "gigaslice.io/rdma", "example.com/vgpu-memory")
FREE = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_GPU_MEMORY", "nvidia_gpu_memory_limit", "X_NVIDIA_GPU_MEMORY_LIMIT")


def policy_in(documents: list[Document]) -> Document:
    (document,) = [
        document
        for document in documents
        if document["kind"] == "ValidatingAdmissionPolicy" and document["metadata"]["name"] == NAME
    ]
    return document


def rendered(*words: str) -> Document:
    return policy_in(listed(*words, "--kube-version", "1.36.0"))


PLAIN = policy_in(documents_of((ROOT / "deploy" / "pod-policy.yaml").read_text()))
POLICIES = {"chart": Policy(rendered()), "manifest": Policy(PLAIN)}


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return POLICIES[request.param]


def container(name: str, *variables: str, **limits: str) -> Document:
    document: Document = {"name": name}
    if variables:
        document["env"] = [{"name": variable, "value": "1"} for variable in variables]
    if limits:
        document["resources"] = {"limits": limits}
    return document


def pod(**lists: list[Document]) -> Document:
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container("c0")], **lists}}


def refused_by_webhook(document: Document) -> bool:
    admission = read_admission_pod(document)
    return any(
        SENTENCE in answer.message
        for answer in (answer_mutate(admission, FACTS), answer_validate(admission, FACTS))
    )


# --- which pods -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", MEMORY_VARIABLES)
@pytest.mark.parametrize("resource", OURS)
@pytest.mark.parametrize("asking, naming", list(itertools.product(LISTS, repeat=2)))
def test_a_pod_with_gpus_of_ours_sets_no_limit_of_the_driver(policy, variable, resource, asking, naming):
    """In whichever of its containers: they share the pod's cgroup."""
    lists: Document = {"containers": [], "initContainers": []}
    lists[asking].append(container("asks", "PATH", **{resource: "1"}))
    lists[naming].append(container("names", "PATH", variable))
    lists["containers"].append(container("beside"))
    assert policy.refusals(Request("CREATE", pod(**lists))) == [SENTENCE]
    assert refused_by_webhook(pod(**lists))
    lists[naming] = [one for one in lists[naming] if one["name"] != "names"] + [container("last")]
    assert policy.refusals(Request("CREATE", pod(**lists))) == []
    assert not refused_by_webhook(pod(**lists))


@pytest.mark.parametrize("resource", OTHERS)
def test_other_pods_are_nobodys_business(policy, resource):
    document = pod(containers=[container("c", *MEMORY_VARIABLES, **{resource: "1"})])
    assert policy.refusals(Request("CREATE", document)) == []
    assert not refused_by_webhook(document)


@pytest.mark.parametrize("variable", FREE)
def test_the_names_are_exact(policy, variable):
    document = pod(containers=[container("c", variable, **{OURS[0]: "1"})])
    assert policy.refusals(Request("CREATE", document)) == []
    assert not refused_by_webhook(document)


@pytest.mark.parametrize(
    "source", [{"value": ""}, {}, {"valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]
)
def test_where_the_value_is_from_does_not_count(policy, source):
    document = pod(containers=[container("c", **{OURS[0]: "1"})])
    document["spec"]["containers"][0]["env"] = [{"name": MEMORY_VARIABLES[1], **source}]
    assert policy.refusals(Request("CREATE", document)) == [SENTENCE]
    assert refused_by_webhook(document)


def test_names_that_a_config_map_brings_cannot_be_seen(policy):
    """As docs/rights.md says."""
    document = pod(containers=[container("c", **{OURS[0]: "1"})])
    document["spec"]["containers"][0]["envFrom"] = [
        {"prefix": "NVIDIA_GPU_MEMORY_", "configMapRef": {"name": "m"}}
    ]
    assert policy.refusals(Request("CREATE", document)) == []
    assert not refused_by_webhook(document)


containers = st.builds(
    lambda name, variables, limits: container(name, *variables, **dict.fromkeys(limits, "1")),
    st.sampled_from(("a", "b")),
    st.lists(st.sampled_from((*MEMORY_VARIABLES, *FREE)), max_size=2),
    st.lists(st.sampled_from((*OURS, *OTHERS)), max_size=2),
)


@given(st.lists(containers, min_size=1, max_size=3), st.lists(containers, max_size=2))
def test_policy_manifest_and_webhook_agree(apps, inits):
    document = pod(containers=apps, initContainers=inits)
    refusals = [policy.refusals(Request("CREATE", document)) for policy in POLICIES.values()]
    assert refusals[0] == refusals[1]
    assert refused_by_webhook(document) == (refusals[0] == [SENTENCE])


@pytest.mark.parametrize("list_name", LISTS)
def test_so_many_variables_that_nobody_looks_through_them_are_refused(policy, list_name):
    """Whatever they are: else the name would be hidden behind them."""
    asking = container("c", **{OURS[0]: "1"})
    for count, variable, refusals in (
        (MOST_VARIABLES, FREE[0], []),
        (MOST_VARIABLES, MEMORY_VARIABLES[0], [SENTENCE]),
        (MOST_VARIABLES + 1, FREE[0], [TOO_MANY]),
        (MOST_VARIABLES + 1, MEMORY_VARIABLES[0], [TOO_MANY]),
    ):
        many = container("m", *(f"v{number}" for number in range(count - 1)), variable)
        lists: Document = {"containers": [asking], "initContainers": []}
        lists[list_name].append(many)
        assert policy.refusals(Request("CREATE", pod(**lists))) == refusals
        assert answer_validate(read_admission_pod(pod(**lists)), FACTS).message == "".join(refusals)
    before = pod(containers=[asking])
    for count, refusals in ((MOST_VARIABLES, []), (MOST_VARIABLES + 1, [TOO_MANY])):
        debugger = container("debug", *(f"v{number}" for number in range(count)))
        after = pod(containers=[asking], ephemeralContainers=[debugger])
        assert policy.refusals(Request("UPDATE", after, before, "ephemeralcontainers")) == refusals
        assert policy.refusals(Request("UPDATE", after, after, "ephemeralcontainers")) == []


# --- ephemeral containers ---------------------------------------------------------------------------------------------


def with_ephemeral(*variables: str, **more: list[Document]) -> Document:
    debugger = {"name": "debug", "env": [{"name": variable} for variable in variables]}
    return pod(containers=[container("c0", **{OURS[0]: "1"})], ephemeralContainers=[debugger], **more)


@pytest.mark.parametrize("variable", MEMORY_VARIABLES)
def test_an_ephemeral_container_sets_none_either(policy, variable):
    before = pod(containers=[container("c0", **{OURS[0]: "1"})])
    for document, refusals in ((with_ephemeral(variable), [SENTENCE]), (with_ephemeral("PATH"), [])):
        assert policy.refusals(Request("UPDATE", document, before, "ephemeralcontainers")) == refusals
        assert refused_by_webhook(document) == bool(refusals), "an API server sends none at a creation"


def test_what_was_there_before_blocks_nothing(policy):
    """Neither another ephemeral container, nor a label of a pod that was made before the policy."""
    document = pod(containers=[container("c0", MEMORY_VARIABLES[0], **{OURS[0]: "1"})])
    assert policy.refusals(Request("UPDATE", document, document)) == []
    old = with_ephemeral(MEMORY_VARIABLES[1])
    old["spec"]["containers"] = document["spec"]["containers"]
    new = {
        **old,
        "spec": {**old["spec"], "ephemeralContainers": [*old["spec"]["ephemeralContainers"], {"name": "x"}]},
    }
    assert policy.refusals(Request("UPDATE", new, old, "ephemeralcontainers")) == []
    new["spec"]["ephemeralContainers"][-1] = container("x", MEMORY_VARIABLES[0])
    assert policy.refusals(Request("UPDATE", new, old, "ephemeralcontainers")) == [SENTENCE]


# --- chart and manifest -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sets", ["cluster.enabled=false", "cluster.enabled=true", "admission.rights=off"])
def test_it_denies_in_every_way_to_install(sets):
    documents = listed("--set", sets, "--kube-version", "1.30.0")
    assert policy_in(documents)["spec"]["failurePolicy"] == "Fail"
    actions = [
        document["spec"]["validationActions"]
        for document in documents
        if document["kind"] == "ValidatingAdmissionPolicyBinding" and document["metadata"]["name"] == NAME
    ]
    assert actions == [["Deny"]]


def test_resources_of_other_names_are_the_settings():
    sets = "settings.resource=example.com/memory,settings.wholeGpus=example.com/gpu"
    renamed = Policy(rendered("--set", sets + ",scheduler.managedResources={example.com/t4}"))
    for resource in ("example.com/memory", "example.com/memory.h100", "example.com/gpu", "example.com/t4"):
        document = pod(containers=[container("c", MEMORY_VARIABLES[0], **{resource: "1"})])
        assert renamed.refusals(Request("CREATE", document)) == [
            SENTENCE.replace("gigaslice.io/vgpu-memory", "example.com/memory")
        ]
