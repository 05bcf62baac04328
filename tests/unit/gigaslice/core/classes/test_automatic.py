# SPDX-License-Identifier: Apache-2.0
"""The classes that are made from the GPUs that there are."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.classes.automatic import automatic_classes, class_name


def gpu(model: str, memory: str = "81559MiB", vendor: str = "NVIDIA") -> dict[str, str]:
    return {"vendor": vendor, "model": model, "memory": memory}


def test_names() -> None:
    assert class_name("NVIDIA", "NVIDIA Tesla K80") == "nvidia.tesla.k80"
    assert class_name("NVIDIA", "Tesla K80") == "nvidia.tesla.k80"
    assert class_name("NVIDIA", "NVIDIA A100-SXM4-80GB") == "nvidia.a100.sxm4.80gb"
    assert class_name("", "") == class_name("NVIDIA", "") == ""


def test_one_size_is_one_class() -> None:
    found = automatic_classes([gpu("NVIDIA Tesla K80", "11441MiB"), gpu("NVIDIA Tesla K80", "11439MiB")])
    assert [one.name for one in found] == ["nvidia.tesla.k80"]
    assert found[0].managed and found[0].matches(gpu("NVIDIA Tesla K80", "1MiB"))
    assert not found[0].matches(gpu("NVIDIA Tesla K40"))


def test_several_sizes_are_classes_too() -> None:
    small, large = gpu("NVIDIA Tesla K80", "11441MiB"), gpu("NVIDIA Tesla K80", "22882MiB")
    found = automatic_classes([large, small])
    assert [one.name for one in found] == [
        "nvidia.tesla.k80", "nvidia.tesla.k80.12gib", "nvidia.tesla.k80.23gib"
    ]  # fmt: skip
    assert [[one.matches(which) for which in (small, large)] for one in found] == [
        [True, True], [True, False], [False, True]
    ]  # fmt: skip
    assert found[1].matches(gpu("NVIDIA Tesla K80", "12288MiB"))
    assert not found[1].matches(gpu("NVIDIA Tesla K80", "12289MiB"))


def test_spellings_of_one_model_are_one_class() -> None:
    (found,) = automatic_classes([gpu("Tesla T4"), gpu("NVIDIA Tesla T4")])
    assert found.name == "nvidia.tesla.t4"
    assert found.matches(gpu("Tesla T4")) and found.matches(gpu("NVIDIA Tesla T4"))


def test_the_order_does_not_matter() -> None:
    gpus = [gpu("a", "1GiB"), gpu("a", "2GiB"), gpu("b")]
    assert len({automatic_classes(order) for order in permutations(gpus)}) == 1


@given(st.lists(st.tuples(st.sampled_from(["T4", "A 10", "x" * 80]), st.integers(1, 1 << 20)), max_size=6))
def test_each_gpu_has_its_class(kinds: list[tuple[str, int]]) -> None:
    gpus = [gpu(model, f"{mib}MiB") for model, mib in kinds]
    classes = automatic_classes(gpus)
    assert all(0 < len(one.name) <= 63 for one in classes)
    for one in gpus:
        sizes = [kind for kind in classes if kind.matches(one)]
        assert 1 <= len(sizes) <= 2
