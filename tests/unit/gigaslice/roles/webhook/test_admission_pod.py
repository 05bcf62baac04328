# SPDX-License-Identifier: Apache-2.0
"""A pod's document as admission reads it."""

from __future__ import annotations

import pytest

from gigaslice.core.kube.pod_fields import FieldError
from gigaslice.roles.webhook.admission_pod import read_admission_pod
from tests.unit.gigaslice.roles.webhook.pods import h100, pod


def test_what_admission_decides_by_is_read():
    document = pod(
        h100(2), init=({**h100(), "restartPolicy": "Always"}, {}), annotations={"a": "b"}, nodeName="n"
    )
    admission = read_admission_pod(document)
    assert [(container.name, container.kind.value, container.path) for container in admission.asking] == [
        ("i0", "sidecar", "/spec/initContainers/0"),
        ("c0", "app", "/spec/containers/0"),
    ]
    assert admission.asking[1].classes == {"nvidia.h100": 2} and not admission.asking[1].only_requested
    assert admission.container_names == {"c0", "i0", "i1"} and admission.pod.annotations == {"a": "b"}
    assert (admission.pod.scheduler, admission.pod.node, admission.pod.name) == (
        "default-scheduler",
        "n",
        "p-",
    )


@pytest.mark.parametrize("document", [None, {}, {"metadata": None, "spec": {"containers": None}}])
def test_what_is_missing_or_null_is_empty(document):
    admission = read_admission_pod(document)
    assert not admission.asking and not admission.pod.annotations and admission.pod.namespace == "default"


@pytest.mark.parametrize("document, sentence", [
    ([], "the pod must be an object"),
    ({"metadata": 3}, "metadata must be an object"),
    ({"metadata": {"annotations": ["gigaslice.io/cores"]}}, "metadata.annotations must be an object"),
    ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations[a] must be a text"),
    ({"metadata": {"namespace": {}}}, "metadata.namespace must be a text"),
    ({"spec": "x"}, "spec must be an object"),
    ({"spec": {"nodeName": 3}}, "spec.nodeName must be a text"),
    ({"spec": {"schedulerName": ["x"]}}, "spec.schedulerName must be a text"),
    ({"spec": {"containers": {}}}, "spec.containers must be a list"),
    ({"spec": {"initContainers": ["x"]}}, "spec.initContainers[0] must be an object"),
    ({"spec": {"containers": [{"name": 1}]}}, "spec.containers[0].name must be a text"),
    ({"spec": {"initContainers": [{}, {"restartPolicy": 1}]}}, "spec.initContainers[1].restartPolicy must be a text"),
    ({"spec": {"containers": [{"resources": 1}]}}, "spec.containers[0].resources must be an object"),
    ({"spec": {"containers": [{"resources": {"limits": []}}]}},
     "spec.containers[0].resources.limits must be an object"),
    ({"spec": {"containers": [{"resources": {"requests": "1"}}]}},
     "spec.containers[0].resources.requests must be an object"),
    ({"spec": {"containers": [{"resources": {"claims": {}}}]}}, "spec.containers[0].resources.claims must be a list"),
    ({"spec": {"containers": [{"resources": {"claims": [{"name": "a"}, {"request": 1}]}}]}},
     "spec.containers[0].resources.claims[1].request must be a text"),
])  # fmt: skip
def test_a_field_of_another_type_is_refused_by_its_name(document, sentence):
    with pytest.raises(FieldError) as refused:
        read_admission_pod(document)
    assert str(refused.value) == sentence


def test_a_value_that_is_no_quantity_counts_as_none():
    values = ("2", 2, "many", None, True, {}, 1e300)
    limits = {f"gigaslice.io/{number}": value for number, value in enumerate(values)}
    (container,) = read_admission_pod(pod({"resources": {"limits": limits}})).asking
    assert [count for count in container.counts.values() if count is not None] == [2, 2, 2**63 - 1]
