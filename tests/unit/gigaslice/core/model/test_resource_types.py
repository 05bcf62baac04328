# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.model import ResourceTypes, short_name
from gigaslice.runtime.setting_values import resource_name

BASE = "gigaslice.io/vgpu-memory"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA Tesla K80", "k80"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 6000", "rtx-6000"),
        ("NVIDIA", "nvidia"),
        ("???", "gpu"),
    ],
)
def test_short_names(model, name):
    assert short_name(model) == name


@given(st.text(max_size=80))
def test_every_model_has_a_name_that_kubernetes_takes(model):
    resource_name(ResourceTypes(BASE, automatic=True).of(model))


def test_models_without_a_pattern_keep_the_base():
    types = ResourceTypes(BASE, patterns=(("H100", "h100"), ("RTX 6000 Ada", "rtx-6000")))
    assert types.of("NVIDIA H100 PCIe") == BASE + ".h100"
    assert types.of("NVIDIA RTX 6000 Ada Generation") == BASE + ".rtx-6000"
    assert types.of("Quadro RTX 6000") == BASE
    assert ResourceTypes(BASE).of("NVIDIA H100 PCIe") == BASE


def test_overlaps():
    assert ResourceTypes(BASE, patterns=(("A100", "a"), ("A100 80GB", "b"))).overlapping() == (
        ("A100", "A100 80GB"),
    )
    assert ResourceTypes(BASE, patterns=(("A100", "a"), ("a100 80gb", "a"))).overlapping() == ()
    assert ResourceTypes(BASE, patterns=(("A100", "a"), ("A10", "b"))).overlapping() == ()
    both = ResourceTypes(BASE, patterns=(("A100", "a"), ("80GB", "b")))
    assert both.overlapping() == ()
    assert both.matching("NVIDIA A100 80GB") == ("a", "b")
