# SPDX-License-Identifier: Apache-2.0
"""What one line of a container becomes as a claim: request, selectors, name, and the short form that a pod carries."""

from __future__ import annotations

import json
import re

import pytest

from gigaslice.core.claims.templates import (
    ClaimTemplate,
    ContainerClaim,
    container_claim,
    decode_templates,
    encode_templates,
    is_genuine,
    is_template_name,
    spec_name,
)
from gigaslice.core.model import RequestOptions, matches_model, short_name

GIB = 1 << 30
MODELS = (
    "NVIDIA A100-SXM4-80GB", "NVIDIA A10", "Tesla T4", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090", "NVIDIA L4",
    "NVIDIA GeForce RTX 3090 Ti", "NVIDIA A10G", "H100", "NVIDIA H100 NVL", "Quadro RTX 6000", "NVIDIA H1000",
)  # fmt: skip


def asked(slices=8, gpus=0, kind="", models=(), slice_bytes=GIB, **options):
    found = container_claim(
        RequestOptions(**options), slices=slices, gpus=gpus, slice_bytes=slice_bytes, kind=kind, models=models
    )
    assert isinstance(found, ContainerClaim), found
    return found


def spec(*claims):
    return ClaimTemplate(claims).spec()["devices"]


def requests(*claims):
    return {one["name"]: one["exactly"] for one in spec(*claims)["requests"]}


def expressions(claim):
    return claim.selectors(claim.parts[0])


def test_one_line_is_one_request_of_one_gpu():
    assert ClaimTemplate((asked(8),)).spec() == {"devices": {"requests": [{"name": "gpu", "exactly": {
        "deviceClassName": "vgpu.gigaslice.io", "allocationMode": "ExactCount", "count": 1,
        "capacity": {"requests": {"memory": "8Gi"}},
    }}]}}  # fmt: skip


@pytest.mark.parametrize("size, slices, memory", [
    (GIB, 1024, "1Ti"), (1 << 29, 3, "1536Mi"), (2 * GIB, 4, "8Gi"), (1000, 3, "3000"), (1 << 20, 1, "1Mi"),
])  # fmt: skip
def test_memory_is_in_slices_of_the_setting_and_written_as_the_api_server_does(size, slices, memory):
    assert requests(asked(slices, slice_bytes=size))["gpu"]["capacity"]["requests"] == {"memory": memory}


def test_gpus_divide_evenly_and_are_different_ones_of_one_model():
    devices = spec(asked(16, gpus=0, **{"cores": 30}))
    assert devices["requests"][0]["exactly"]["capacity"]["requests"] == {"memory": "16Gi", "cores": "30"}
    devices = spec(container_claim(RequestOptions(gpus=2), slices=16, gpus=0, slice_bytes=GIB))
    assert [one["exactly"]["count"] for one in devices["requests"]] == [2]
    assert devices["constraints"] == [{"requests": ["gpu"], "matchAttribute": "gigaslice.io/model"}]
    devices = spec(container_claim(RequestOptions(gpus=3), slices=16, gpus=0, slice_bytes=GIB))
    sizes = [
        (one["exactly"]["count"], one["exactly"]["capacity"]["requests"]["memory"])
        for one in devices["requests"]
    ]
    assert sizes == [(1, "6Gi"), (2, "5Gi")]
    assert devices["constraints"] == [
        {"requests": ["gpu-0", "gpu-1"], "distinctAttribute": "gigaslice.io/uuid"},
        {"requests": ["gpu-0", "gpu-1"], "matchAttribute": "gigaslice.io/model"},
    ]


def test_parts_are_requests_of_their_sizes_in_whatever_order_they_stand():
    claim, other = asked(24, parts=(8, 16)), asked(24, parts=(16, 8))
    assert claim == other and claim.parts == (16 * GIB, 8 * GIB)
    constraints = spec(claim)["constraints"]
    assert constraints == [{"requests": ["gpu-0", "gpu-1"], "distinctAttribute": "gigaslice.io/uuid"}]


def test_an_exclusive_gpu_is_a_whole_one_that_has_as_much():
    request = requests(asked(8, exclusive=True, cores=30))["gpu"]
    assert "capacity" not in request
    (selector,) = request["selectors"]
    assert selector["cel"]["expression"].endswith('.memory.compareTo(quantity("8Gi")) >= 0')
    assert requests(asked(0, gpus=2))["gpu"] == {
        "deviceClassName": "vgpu.gigaslice.io", "allocationMode": "ExactCount", "count": 2,
    }  # fmt: skip


def test_whole_first_is_a_sentence():
    (sentence,) = container_claim(RequestOptions(whole_first=True), slices=8, gpus=0, slice_bytes=GIB)
    assert "gigaslice.io/memory" in sentence


def pattern_of(expression):
    (text,) = re.findall(r'matches\(("(?:[^"\\]|\\.)*")\)', expression)
    return json.loads(text)


@pytest.mark.parametrize(
    "words", [("A100",), ("a10",), ("T4", "L4"), ("rtx-3090",), ("H100 80GB",), ("h100.",), ("3090 ti",)]
)
def test_words_of_models_mean_in_cel_what_they_mean_to_placement(words):
    claim = asked(8, types=words, not_types=("Ti",))
    chosen, refused = expressions(claim)
    assert (
        chosen.startswith('"model" in device.attributes["gigaslice.io"] && device.')
        and "&& !device." in refused
    )
    for model in MODELS:
        expected = any(matches_model(model, word) for word in words)
        assert bool(re.search(pattern_of(chosen), model)) == expected, model
        assert bool(re.search(pattern_of(refused), model)) == matches_model(model, "Ti"), model


@pytest.mark.parametrize("kind", sorted({short_name(model) for model in MODELS}))
def test_a_type_means_the_models_of_that_short_name(kind):
    (expression,) = expressions(asked(8, kind=kind))
    for model in MODELS:
        assert bool(re.search(pattern_of(expression), model)) == (short_name(model) == kind), model


def test_known_models_of_a_type_are_named():
    (expression,) = expressions(asked(8, kind="big", models=("NVIDIA L4", 'odd "one"')))
    assert expression.endswith('.model in ["NVIDIA L4", "odd \\"one\\""]')


def test_uuids_are_compared_in_one_case():
    chosen, refused = expressions(asked(8, uuids=("GPU-6E1B",), not_uuids=("GPU-77",)))
    assert chosen.endswith('&& (device.attributes["gigaslice.io"].uuid.lowerAscii() in ["gpu-6e1b"])')
    assert '&& !(device.attributes["gigaslice.io"].uuid.lowerAscii() in ["gpu-77"])' in refused


def test_containers_on_the_same_gpu_have_one_claim_with_a_request_each():
    template = ClaimTemplate((asked(8), asked(4, oversubscribe=True)))
    devices = template.spec()["devices"]
    names = ["container-0-gpu-0", "container-1-gpu-0"]
    assert [one["name"] for one in devices["requests"]] == names
    assert devices["constraints"] == [{"requests": names, "matchAttribute": "gigaslice.io/uuid"}]
    assert [template.request_names(0), template.request_names(1)] == [(names[0],), (names[1],)]
    (config,) = devices["config"]
    assert config["requests"] == names[1:] and config["opaque"]["parameters"]["oversubscribe"] is True
    two = ClaimTemplate((asked(8, parts=(4, 4)), asked(4, parts=(2, 2)))).spec()["devices"]
    assert {one.get("matchAttribute", one.get("distinctAttribute")) for one in two["constraints"]} == {
        "gigaslice.io/uuid"
    }
    assert [one["requests"] for one in two["constraints"]] == [
        ["container-0-gpu-0", "container-1-gpu-0"], ["container-0-gpu-1", "container-1-gpu-1"],
        ["container-0-gpu-0", "container-0-gpu-1"],
    ]  # fmt: skip


def test_a_claim_that_the_api_server_would_refuse_is_a_sentence():
    assert ClaimTemplate((asked(8),)).mistakes() == ()
    assert ClaimTemplate(tuple([asked(8)] * 32)).mistakes() == ()
    assert "gigaslice.io/same-gpu" in ClaimTemplate(tuple([asked(8)] * 33)).mistakes()[0]
    words = tuple(f"{'a' * 120}{number}" for number in range(100))
    assert "too many words" in ClaimTemplate((asked(8, types=words),)).mistakes()[0]


# --- names and short forms --------------------------------------------------------------------------------------------


def test_a_name_is_the_hash_of_the_spec_whatever_the_order_of_its_keys():
    template = ClaimTemplate((asked(8, types=("A100",)),))
    assert is_template_name(template.name)
    document = template.document("team")
    assert document["metadata"]["labels"] == {"gigaslice.io/template": "true"}
    assert document["spec"]["metadata"] == {"annotations": {"gigaslice.io/follows-pod": "true"}}
    assert is_genuine(template.name, document["spec"]) and not is_genuine("gigaslice-0", document["spec"])
    text = json.dumps(document["spec"]["spec"], sort_keys=True)
    assert spec_name(json.loads(text)) == template.name
    reverse = json.loads(
        json.dumps(document["spec"]["spec"]), object_pairs_hook=lambda pairs: dict(reversed(pairs))
    )
    assert spec_name(reverse) == template.name
    assert len({ClaimTemplate((asked(number),)).name for number in range(1, 50)}) == 49
    assert not any(map(is_template_name, ("gigaslice-8gi", f"{template.name}0", f"x{template.name}")))


@pytest.mark.parametrize("claims", [
    (asked(8),), (asked(8, exclusive=True, types=("A100",), not_types=("T4",)),), (asked(0, gpus=3),),
    (asked(24, parts=(8, 16), uuids=("GPU-1",), not_uuids=("GPU-2",), oversubscribe=True, cores=20),),
    (asked(8), asked(4)), (asked(8, kind="h100"),), (asked(8, kind="h100", models=("H100",)),),
])  # fmt: skip
def test_a_short_form_brings_the_template_back(claims):
    template = ClaimTemplate(claims)
    assert decode_templates(encode_templates([template])) == {template.name: template}


GOOD = ClaimTemplate((asked(8),))


@pytest.mark.parametrize("text", [
    "", "[", "[]", "[" * 100_000, "{}" + " " * 70_000, json.dumps({GOOD.name: []}), json.dumps({GOOD.name: {}}),
    json.dumps({GOOD.name: [{"parts": [9 * GIB]}]}), json.dumps({GOOD.name: [{"parts": [8 * GIB], "spec": {}}]}),
    json.dumps({GOOD.name: [{"parts": []}]}), json.dumps({GOOD.name: [{}]}),
    json.dumps({GOOD.name: [{"parts": [True]}]}),
    json.dumps({GOOD.name: [{"parts": [0]}]}), json.dumps({GOOD.name: [{"parts": 8 * GIB}]}),
    json.dumps({GOOD.name: [{"parts": [8 * GIB], "cores": 101}]}), json.dumps({GOOD.name: [{"parts": [1] * 17}]}),
    json.dumps({GOOD.name: [{"parts": [8 * GIB], "types": "A100"}]}),
    json.dumps({GOOD.name: [{"parts": [8 * GIB], "kind": "x\" || true"}]}),
    json.dumps({GOOD.name: [{"parts": [8 * GIB], "whole": 1}]}),
])  # fmt: skip
def test_nothing_else_is_made_under_the_name(text):
    assert decode_templates(json.dumps({GOOD.name: [{"parts": [8 * GIB]}]})) == {GOOD.name: GOOD}
    with pytest.raises(ValueError):
        decode_templates(text)


def test_words_cannot_leave_their_text():
    claim = ContainerClaim((8 * GIB,), uuids=('"] || true || ["',), types=('x") || true || ("',))
    for expression in expressions(claim):
        inside = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
        assert "true" not in inside and "||" not in inside
