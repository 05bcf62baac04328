# SPDX-License-Identifier: Apache-2.0
"""Annotations, variables and the scheduler's name of a pod; and that a pod is rewritten as a whole or not at all."""

from __future__ import annotations

import pytest

from tests.unit.gigaslice.core.rewrite.pods import left, parts, pod, rewritten, said

SHARE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 30}
WHOLE = {"nvidia.com/gpu": 1}
CORES = {"gigaslice.io/cores": "30", "gigaslice.io/cores-policy": "elastic"}


def variables(*pairs: tuple[str, str], limits: dict[str, int] = SHARE) -> dict[str, object]:
    document = pod(limits)
    document["spec"]["containers"][0]["env"] = [{"name": name, "value": value} for name, value in pairs]
    return document


@pytest.mark.parametrize(("theirs", "ours", "value"), [
    ("nvidia.com/use-gputype", "gpu-type", "A100,V100"),
    ("nvidia.com/nouse-gputype", "exclude-gpu-type", "T4"),
    ("nvidia.com/use-gpuuuid", "gpu-uuid", "GPU-6e1b5c1e"),
    ("nvidia.com/nouse-gpuuuid", "exclude-gpu-uuid", "GPU-6e1b5c1e"),
    ("nvidia.com/include-gpu-type", "gpu-type", "A10"),
    ("nvidia.com/exclude-gpu-uuid", "exclude-gpu-uuid", "GPU-1"),
])  # fmt: skip
def test_annotations_that_mean_the_same_are_renamed(theirs: str, ours: str, value: str) -> None:
    assert parts(pod(SHARE, annotations={theirs: value}))[1] == {f"gigaslice.io/{ours}": value, **CORES}


def test_models_are_named_as_the_driver_does_and_the_difference_is_said() -> None:
    document = pod(SHARE, annotations={"nvidia.com/use-gputype": "NVIDIA-NVIDIA A100, V100"})
    assert parts(document)[1]["gigaslice.io/gpu-type"] == "NVIDIA A100,V100"
    assert "A10 is no A100" in said(document)


def test_one_of_ours_that_is_there_already_stays() -> None:
    document = pod(SHARE, annotations={"gigaslice.io/gpu-type": "H100", "nvidia.com/use-gputype": "A100"})
    assert parts(document)[1] == {"gigaslice.io/gpu-type": "H100", **CORES}
    assert "counts alone" in said(document)
    assert "write one of the two" in left(pod(SHARE, annotations={"gigaslice.io/cores": "50"}))
    assert parts(pod(SHARE, annotations={"gigaslice.io/cores": "30"}))[1] == CORES


@pytest.mark.parametrize("name", ["hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy",
                                  "nvidia.com/numa-bind", "nvidia.com/device-topology-mode"])  # fmt: skip
def test_what_is_the_operators_here_goes_with_a_note(name: str) -> None:
    document = pod(SHARE, annotations={name: "spread"})
    assert parts(document)[1] == CORES
    assert f"{name}: spread goes" in said(document)


def test_mutex_names_what_comes_nearest() -> None:
    assert "gigaslice.io/exclusive" in said(pod(SHARE, annotations={"hami.io/gpu-scheduler-policy": "mutex"}))


def test_records_of_a_pod_that_was_placed_go_without_a_word() -> None:
    document = pod(
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}, annotations={"hami.io/bind-phase": "success"}
    )
    assert parts(document)[1] == {}
    assert said(document) == ""


def test_annotations_that_are_not_known_or_have_no_counterpart_are_left() -> None:
    assert "hami.io/new" in left(pod(SHARE, annotations={"hami.io/new": "1"}))
    assert "mig has no counterpart" in left(pod(SHARE, annotations={"nvidia.com/vgpu-mode": "mig"}))
    assert parts(pod(SHARE, annotations={"nvidia.com/vgpu-mode": "hami-core,mig"}))[1] == CORES


@pytest.mark.parametrize(("policy", "ours"), [("fixed", "hard"), ("balance", "elastic"), ("none", None)])
def test_vgpu_managers_policy(policy: str, ours: str | None) -> None:
    limits = {"nvidia.com/vgpu-number": 1, "nvidia.com/vgpu-memory": 1024, "nvidia.com/vgpu-cores": 10}
    annotations = parts(pod(limits, annotations={"nvidia.com/vgpu-compute-policy": policy}))[1]
    assert annotations.get("gigaslice.io/cores-policy") == ours
    assert ("gigaslice.io/cores" in annotations) == (ours is not None)


def test_gpu_managers_limit_above_the_share() -> None:
    limits = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4}
    for most, policy in (("80", "elastic"), ("50", None)):
        annotations = parts(pod(limits, annotations={"tencent.com/vcuda-core-limit": most}))[1]
        assert annotations.get("gigaslice.io/cores-policy") == policy


def test_containers_that_differ_have_annotations_of_their_own() -> None:
    assert parts(pod(SHARE, SHARE))[1] == CORES
    annotations = parts(pod(SHARE, {**SHARE, "nvidia.com/gpu": 2, "nvidia.com/gpucores": 40}, {"cpu": 1}))[1]
    assert annotations == {
        "gigaslice.io/cores.a": "30",
        "gigaslice.io/cores.b": "40",
        "gigaslice.io/cores-policy": "elastic",
        "gigaslice.io/gpus.b": "2",
    }


def test_a_containers_name_that_is_too_long_for_an_annotation_is_left() -> None:
    document = pod(SHARE, WHOLE)
    document["spec"]["containers"][0]["name"] = "c" * 60
    assert "shorter name" in left(document)


def test_the_scheduler_goes_with_the_names_and_is_left_where_it_serves_others() -> None:
    document = pod(SHARE, schedulerName="hami-scheduler", nodeSelector={"a": "b"})
    assert '"schedulerName"' not in rewritten(document).text
    assert '"nodeSelector"' in rewritten(document).text
    assert '"volcano"' in rewritten(pod(SHARE, schedulerName="volcano")).text
    assert "not ours to serve" in left(pod({"cambricon.com/vmlu": 1}, schedulerName="hami-scheduler"))


@pytest.mark.parametrize(("pairs", "changes"), [
    ([("GPU_CORE_UTILIZATION_POLICY", "force")], {"gigaslice.io/cores-policy": "hard"}),
    ([("GPU_CORE_UTILIZATION_POLICY", "default")], {}),
    ([("CUDA_TASK_PRIORITY", "1")], {"gigaslice.io/priority": "burstable"}),
    ([("CUDA_OVERSUBSCRIBE", "true")], {"gigaslice.io/oversubscribe": "true"}),
    ([("CUDA_OVERSUBSCRIBE", "false")], {}),
    ([("CUDA_DISABLE_CONTROL", "false"), ("LIBCUDA_LOG_LEVEL", "3")], {}),
    ([("CUDA_DEVICE_MEMORY_LIMIT_0", "1g"), ("CUDA_DEVICE_SM_LIMIT", "30")], {}),
    ([("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "40")], {"gigaslice.io/cores": "40"}),
])  # fmt: skip
def test_variables_become_annotations_and_go(pairs: list[tuple[str, str]], changes: dict[str, str]) -> None:
    document = variables(*pairs)
    assert parts(document)[1] == {**CORES, **changes}
    assert '"env"' not in rewritten(document).text


def test_a_policy_of_none_leaves_the_share_out() -> None:
    assert parts(variables(("GPU_CORE_UTILIZATION_POLICY", "disable")))[1] == {}


def test_other_variables_stay() -> None:
    text = rewritten(variables(("A", "1"), ("LIBCUDA_LOG_LEVEL", "3"), ("CUDA_VISIBLE_DEVICES", "0"))).text
    assert '"env": [{"name": "A", "value": "1"}, {"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]' in text


@pytest.mark.parametrize(("document", "why"), [
    (variables(("CUDA_DISABLE_CONTROL", "true")), "without its limit"),
    (variables(("CUDA_DEVICE_MEMORY_LIMIT", "1g"), limits={"cpu": 1}), "asks for no GPU"),
    (variables(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0")), "from 1 to 100"),
    (variables(("CUDA_TASK_PRIORITY", "high")), "must be 0 or 1"),
])  # fmt: skip
def test_variables_that_are_left(document: object, why: str) -> None:
    assert why in left(document)


def test_a_variable_whose_value_is_elsewhere_is_left() -> None:
    document = pod(SHARE)
    document["spec"]["containers"][0]["env"] = [
        {"name": "CUDA_OVERSUBSCRIBE", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}
    ]
    assert "take it out" in left(document)


def test_one_thing_that_is_left_leaves_the_whole_pod_and_no_other() -> None:
    bad = pod(SHARE, {"nvidia.com/mig-1g.5gb": 1}, schedulerName="hami-scheduler")
    rewrite = rewritten({"kind": "List", "items": [bad, pod(SHARE)]})
    assert (rewrite.pods, rewrite.left) == (1, 1)
    assert rewrite.text.count("nvidia.com/gpumem") == 1
    assert rewrite.text.count("gigaslice.io/vgpu-memory") == 1


def test_what_our_scheduler_would_refuse_is_left_with_its_sentence() -> None:
    document = pod(SHARE, annotations={"nvidia.com/use-gpuuuid": "0,1"})
    assert "must be UUIDs as nvidia-smi -L shows them" in left(document)


def test_init_containers_count_too() -> None:
    document = pod({"cpu": 1}, initContainers=[{"name": "i", "resources": {"limits": SHARE}}])
    assert '"gigaslice.io/vgpu-memory": 1' in rewritten(document).text


def test_pods_without_names_of_others_are_not_touched() -> None:
    document = pod({"gigaslice.io/vgpu-memory": 2}, annotations={"nvidia.com/other": "1"})
    assert rewritten(document) == rewritten(document).__class__(rewritten(document).text)
