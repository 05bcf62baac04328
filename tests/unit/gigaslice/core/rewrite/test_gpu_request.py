# SPDX-License-Identifier: Apache-2.0
"""What containers ask for, from other projects' numbers to ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.rewrite.gpu_request import RewriteSettings
from tests.unit.gigaslice.core.rewrite.pods import SETTINGS, left, parts, pod, said

GIB = 1 << 30
OURS, WHOLE = "gigaslice.io/vgpu-memory", "gigaslice.io/gpu"
SIZED = replace(SETTINGS, gpu_bytes=80 * GIB)


def hami(gpu: int = 1, **more: int) -> dict[str, int]:
    return {"nvidia.com/gpu": gpu, **{f"nvidia.com/{name.replace('_', '-')}": n for name, n in more.items()}}


@pytest.mark.parametrize(("gpus", "mebibytes", "slices"), [
    (1, 3072, 3), (1, 3000, 3), (1, 1, 1), (2, 3000, 6), (3, 1025, 6),
])  # fmt: skip
def test_hamis_size_is_of_each_gpu_and_ours_is_the_sum(gpus: int, mebibytes: int, slices: int) -> None:
    limits, annotations = parts(pod(hami(gpus, gpumem=mebibytes)))
    assert limits == [{OURS: slices}]
    assert annotations == ({"gigaslice.io/gpus": str(gpus)} if gpus > 1 else {})


def test_rounding_up_is_said_and_an_exact_size_is_not() -> None:
    assert "3000 is 3 GiB of each GPU here, 72 MiB more" in said(pod(hami(gpumem=3000)))
    assert said(pod(hami(gpumem=3072))) == ""


def test_sizes_are_multiplied_as_the_operator_does_and_counted_in_the_clusters_slices() -> None:
    assert parts(pod(hami(gpumem=3)), replace(SETTINGS, memory_factor=1024))[0] == [{OURS: 3}]
    halves = replace(SETTINGS, units=replace(SETTINGS.units, slice_bytes=GIB // 2, memory_resource="x.io/m"))
    assert parts(pod(hami(gpumem=3000)), halves)[0] == [{"x.io/m": 6}]


def test_a_percentage_needs_the_gpus_size_and_is_rounded_down_so_that_the_parts_fit() -> None:
    assert "--gpu-size" in left(pod(hami(gpumem_percentage=50)))
    odd = replace(SETTINGS, gpu_bytes=23 * GIB)
    shares = [parts(pod(hami(gpumem_percentage=share)), odd)[0][0][OURS] for share in (40, 60, 1)]
    assert shares == [9, 13, 1]
    assert "50 is 40 GiB of each GPU here, whatever its size" in said(pod(hami(gpumem_percentage=50)), SIZED)
    assert "more than 100" in left(pod(hami(gpumem_percentage=101)), SIZED)


def test_a_size_counts_before_a_percentage() -> None:
    assert parts(pod(hami(gpumem=2048, gpumem_percentage=50)))[0] == [{OURS: 2}]


@pytest.mark.parametrize("more", [{}, {"gpumem_percentage": 100}, {"gpumem_percentage": 100, "gpucores": 100},
                                  {"gpumem": 0}])  # fmt: skip
def test_all_of_the_memory_is_a_whole_gpu(more: dict[str, int]) -> None:
    assert parts(pod(hami(2, **more))) == ([{WHOLE: 2}], {})


def test_a_whole_gpu_has_no_limit_of_compute_and_that_is_said() -> None:
    assert parts(pod(hami(gpucores=30))) == ([{WHOLE: 1}], {})
    assert "nvidia.com/gpucores: 30 goes" in said(pod(hami(gpucores=30)))


def test_a_count_alone_is_what_the_operator_says_that_it_is() -> None:
    shared = replace(SETTINGS, alone_bytes=8 * GIB)
    assert parts(pod(hami(2)), shared) == ([{OURS: 16}], {"gigaslice.io/gpus": "2"})
    assert "--memory" in said(pod(hami()))
    assert "--memory" in left(pod({"nvidia.com/gpu.shared": 1}))
    assert parts(pod({"nvidia.com/gpu.shared": 1}), shared)[0] == [{OURS: 8}]


def test_memory_without_a_count_is_of_one_gpu_and_none_is_none() -> None:
    assert parts(pod({"nvidia.com/gpumem": 2048})) == ([{OURS: 2}], {})
    assert parts(pod({**hami(0), "cpu": 1}))[0] == [{"cpu": 1}]


def test_compute_is_a_share_beyond_which_idle_time_may_be_used_and_a_hundred_is_exclusive() -> None:
    assert parts(pod(hami(gpumem=1024, gpucores=30)))[1] == {
        "gigaslice.io/cores": "30",
        "gigaslice.io/cores-policy": "elastic",
    }
    assert parts(pod(hami(gpumem=1024, gpucores=100)))[1] == {"gigaslice.io/exclusive": "true"}
    assert 'gigaslice.io/allow-exclusive: "true"' in said(pod(hami(gpumem=1024, gpucores=100)))


@pytest.mark.parametrize(("number", "priority"), [(0, "guaranteed"), (1, "burstable")])
def test_priority(number: int, priority: str) -> None:
    document = pod(hami(gpumem=1024, priority=number))
    assert parts(document)[1] == {"gigaslice.io/priority": priority}
    assert ("gigaslice.io/allow-priority" in said(document)) == (priority == "guaranteed")


@pytest.mark.parametrize(("limits", "why"), [
    (hami(gpumem=1024, priority=2), "nvidia.com/priority must be 0 or 1"),
    (hami(gpumem=8 << 30), "counted in MiB"),
    ({"nvidia.com/gpu": "one"}, "one is no whole number"),
    ({"nvidia.com/gpu": -1}, "-1 is no whole number"),
    ({"nvidia.com/mig-3g.20gb": 1}, "MIG"),
    ({**hami(gpumem=1024), "tencent.com/vcuda-core": 50}, "the names of HAMi and of gpu-manager"),
    ({**hami(gpumem=1024), OURS: 1}, "take one of the two out"),
    ({"tencent.com/vcuda-core": 150, "tencent.com/vcuda-memory": 8}, "below 100 or a multiple"),
    ({"tencent.com/vcuda-memory": 8}, "below 100 or a multiple"),
    ({"nvidia.com/vgpu-number": 1}, "--memory"),
    (hami(17, gpumem=1024), "gigaslice.io/gpus"),
])  # fmt: skip
def test_what_cannot_be_meant_or_is_not_sure_is_left(limits: dict[str, object], why: str) -> None:
    assert why in left(pod(limits))


def test_gpu_managers_units_are_256_mib_and_a_hundred_cores_are_a_gpu() -> None:
    share = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30}
    assert parts(pod(share)) == ([{OURS: 8}], {"gigaslice.io/cores": "50"})
    assert "512 MiB more" in said(pod(share))
    assert parts(pod({"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 60})) == ([{WHOLE: 2}], {})


def test_vgpu_managers_numbers() -> None:
    limits = {"nvidia.com/vgpu-number": 2, "nvidia.com/vgpu-memory": 1024, "nvidia.com/vgpu-cores": 10}
    assert parts(pod(limits)) == ([{OURS: 2}], {"gigaslice.io/gpus": "2", "gigaslice.io/cores": "10"})


def test_requests_become_the_same_and_alone_they_are_left() -> None:
    document = pod(hami(gpumem=2048))
    resources = document["spec"]["containers"][0]["resources"]
    resources["requests"] = {"nvidia.com/gpu": 1, "cpu": 2}
    assert parts(document)[0] == [{OURS: 2}]
    resources["requests"] = {"nvidia.com/gpucores": 10}
    assert "stands under requests alone" in left(document)


def test_other_names_of_the_resources() -> None:
    named = RewriteSettings(ClusterUnits(GIB, "x.io/m", "x.io/whole"))
    assert parts(pod(hami(), hami(gpumem=1024)), named)[0] == [{"x.io/whole": 1}, {"x.io/m": 1}]
