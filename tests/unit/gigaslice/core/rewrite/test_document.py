# SPDX-License-Identifier: Apache-2.0
"""Where pods stand in documents, quotas, and names of others in places that are not understood."""

from __future__ import annotations

from typing import Any

import pytest

from gigaslice.core.errors import InputError
from gigaslice.core.rewrite.gpu_request import RewriteSettings
from gigaslice.core.rewrite.manifest_text import rewrite_text
from tests.unit.gigaslice.core.rewrite.pods import left, pod, rewritten, said

SHARE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}


def template() -> dict[str, Any]:
    return {"spec": pod(SHARE)["spec"]}


@pytest.mark.parametrize("document", [
    pod(SHARE),
    {"kind": "Deployment", "spec": {"template": template()}},
    {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template()}}}},
    {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Worker": {"template": template()}}}},
    {"kind": "RayCluster", "spec": {"workerGroupSpecs": [{"groupName": "g", "template": template()}]}},
    {"kind": "List", "items": [{"kind": "Job", "spec": {"template": template()}}]},
])  # fmt: skip
def test_a_pod_is_found_wherever_it_stands(document: object) -> None:
    rewrite = rewritten(document)
    assert (rewrite.pods, rewrite.left, rewrite.notes) == (1, 0, ())
    assert "nvidia.com" not in rewrite.text


@pytest.mark.parametrize("document", [
    {"kind": "InferenceService", "spec": {"predictor": {"model": {"resources": {"limits": SHARE}}}}},
    {"kind": "Deployment", "metadata": {"annotations": {"nvidia.com/use-gputype": "A100"}}},
    {"kind": "Node", "metadata": {"annotations": {"hami.io/device-cordon": "GPU-1"}}},
    {"kind": "ClusterQueue", "spec": {"resourceGroups": [{"coveredResources": ["nvidia.com/gpumem"]}]}},
    {"kind": "Queue", "spec": {"schedulerName": "hami-scheduler"}},
])  # fmt: skip
def test_names_elsewhere_are_left_with_a_line(document: object) -> None:
    assert "rewrite it by hand" in left(document)


def test_a_name_in_a_sentence_or_a_toleration_is_none() -> None:
    rewrite = rewritten({"kind": "ConfigMap", "data": {"a": "nvidia.com/gpumem: 1"}})
    assert not rewrite.notes
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert '"key": "nvidia.com/gpu"' in rewritten(pod(SHARE, tolerations=tolerations)).text


def test_a_quota_of_memory_is_kubernetes_own() -> None:
    quota = {"kind": "ResourceQuota", "spec": {"hard": {"limits.nvidia.com/gpumem": "20000", "pods": 4}}}
    assert '"hard": {"requests.gigaslice.io/vgpu-memory": "20", "pods": 4}' in rewritten(quota).text
    assert "which Kubernetes compares" in said(quota)
    units = {"kind": "ResourceQuota", "spec": {"hard": {"requests.tencent.com/vcuda-memory": 9}}}
    assert '"requests.gigaslice.io/vgpu-memory": 3' in rewritten(units).text


@pytest.mark.parametrize("hard", [
    {"limits.nvidia.com/gpucores": 200},
    {"limits.nvidia.com/gpumem": 1024, "requests.nvidia.com/gpumem": 1024},
    {"limits.nvidia.com/gpumem": "lots"},
])  # fmt: skip
def test_other_quotas_are_left(hard: dict[str, object]) -> None:
    notes = rewritten({"kind": "ResourceQuota", "spec": {"hard": hard}}).notes
    assert [note.text for note in notes if note.left and "no counterpart that is sure" in note.text]


def test_a_document_that_aliases_make_huge_is_refused() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for number in range(1, 8):
        before, name = chr(ord("a") + number - 1), chr(ord("a") + number)
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    with pytest.raises(InputError, match="no manifest"):
        rewrite_text("\n".join(lines), RewriteSettings())


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n---\n", "a", "- 1\n", "[]", "null\n"])
def test_texts_without_a_manifest_stay(text: str) -> None:
    assert rewrite_text(text, RewriteSettings()).text == text
