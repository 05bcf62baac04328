# SPDX-License-Identifier: Apache-2.0
"""Parameters of claims: what they ask for, what is refused with which sentence, and who may write what."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core import units
from gigaslice.core.claims.parameters import ELSEWHERE, PARAMETERS, claim_options
from gigaslice.core.claims.resource_claim import ResourceClaim
from gigaslice.core.model import AnnotationRights, RequestOptions, SliceUnit, parse_options
from gigaslice.core.model.options import OPTIONS
from tests.unit.gigaslice.core.claims.documents import JSON, broken_claims, claim, config, result

GIB = 1 << 30
UNIT = SliceUnit(GIB, units.parse_bytes)
PLAIN = RequestOptions(cores=30)


def options(
    *configs: dict[str, Any],
    results: tuple[dict[str, Any], ...] = (result(),),
    requests: tuple[str, ...] = ("gpu",),
    rights: AnnotationRights = AnnotationRights.CHECKED,
) -> RequestOptions:
    document = claim(*results, configs=configs, requests=requests)
    return claim_options(ResourceClaim.parse(document), requests, UNIT, rights)


def test_every_option_is_a_parameter_or_said_elsewhere():
    """One that comes later must be one of both, or users would look for it in vain."""
    parameters, elsewhere = {row.option for row in PARAMETERS}, {option for option, _ in ELSEWHERE.values()}
    assert parameters | elsewhere == set(OPTIONS)
    assert not parameters & elsewhere
    for name, option in [
        *((row.name, row.option) for row in PARAMETERS),
        *((k, v[0]) for k, v in ELSEWHERE.items()),
    ]:
        first, *rest = option.split("-")
        assert name == first + "".join(word.title() for word in rest)


def test_nothing_said_is_what_was_allocated():
    assert options() == PLAIN
    assert options(config()) == PLAIN
    assert options(results=(result(consumedCapacity=None),)) == RequestOptions()


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        ({"coresPolicy": "elastic"}, {"cores_elastic": True}),
        ({"coresPolicy": "hard"}, {}),
        ({"priority": "guaranteed"}, {"priority": "guaranteed"}),
        ({"elastic": True}, {"elastic": True}),
        ({"elastic": False}, {}),
        ({"elastic": "16Gi"}, {"elastic": True, "max_slices": 16}),
        ({"elastic": "16384MiB"}, {"elastic": True, "max_slices": 16}),
        ({"oversubscribe": True}, {"oversubscribe": True}),
        ({"timeSlicing": False}, {"time_slicing": False}),
        ({"elastic": "16GiB", "oversubscribe": True}, {"elastic": True, "max_slices": 16, "oversubscribe": True}),
    ],
)  # fmt: skip
def test_what_is_asked_for(parameters: dict[str, Any], fields: dict[str, Any]):
    for source in ("FromClaim", "FromClass"):
        assert options(config(source=source, **parameters)) == RequestOptions(cores=30, **fields)


def test_they_mean_what_the_annotations_mean():
    annotations = {"cores-policy": "elastic", "priority": "best-effort", "elastic": "16GiB", "oversubscribe": "true",
                   "time-slicing": "false", "cores": "30"}  # fmt: skip
    parameters = {"coresPolicy": "elastic", "priority": "best-effort", "elastic": "16GiB", "oversubscribe": True,
                  "timeSlicing": False}  # fmt: skip
    of_annotations = parse_options(
        {f"gigaslice.io/{name}": text for name, text in annotations.items()},
        "main",
        UNIT,
        AnnotationRights.CHECKED,
    )
    assert options(config(**parameters)) == of_annotations


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"apiVersion": "config.gigaslice.io/v2"},
         'opaque parameters: write apiVersion: config.gigaslice.io/v1alpha1 in place of "config.gigaslice.io/v2"'),
        ({"kind": "GpuConfig"}, 'opaque parameters: write kind: VGPU in place of "GpuConfig"'),
        ({"kind": None}, "opaque parameters: write kind: VGPU"),
        ({"oversubscribe": "true"}, "VGPU.oversubscribe: write true or false, without quotes, or leave it out"),
        ({"oversubscribe": 1}, "VGPU.oversubscribe: write true or false, without quotes, or leave it out"),
        ({"timeSlicing": None}, "VGPU.timeSlicing: write true or false, without quotes, or leave it out"),
        ({"priority": "urgent"}, "VGPU.priority: write one of guaranteed, burstable, best-effort, or leave it out"),
        ({"priority": ["x"]}, "VGPU.priority: write one of guaranteed, burstable, best-effort, or leave it out"),
        ({"coresPolicy": "Elastic"}, "VGPU.coresPolicy: write one of hard, elastic, or leave it out"),
        *(({"elastic": size}, "VGPU.elastic: write true, false, or the most it may use of a GPU with its unit, such as "
           '"16GiB", or leave it out') for size in ("16", "16G", "16GB", 16, "true", "x", "")),
        ({"elastic": "1500MiB"}, 'VGPU.elastic: "1500MiB" must be "true", "false" or the most it may use of a GPU, '
                                 'such as "16GiB" (must be in whole slices of 1024 MiB)'),
        ({"oversubscribed": True}, 'VGPU: "oversubscribed" is no parameter; did you mean "oversubscribe"?'),
        ({"time-slicing": True}, 'VGPU: "time-slicing" is no parameter; did you mean "timeSlicing"?'),
        ({"gpu-type": "A100"}, 'VGPU: "gpu-type" is no parameter; write a selector in the request: cel.expression: '
                               'device.attributes["gigaslice.io"].productName.contains("A100")'),
        ({"exclusive": True}, "VGPU.exclusive: is no parameter; leave capacity.requests.memory out of the request: it "
                              "then has the whole GPU, which nobody else gets"),
        ({"zzz\n": 1}, 'VGPU: "zzz" is no parameter; write some of coresPolicy, priority, elastic, oversubscribe, '
                       "timeSlicing"),
    ],
)  # fmt: skip
def test_mistakes(parameters: dict[str, Any], sentence: str):
    read = options(config(**parameters))
    assert read.mistakes == (sentence,)
    assert (read.elastic, read.oversubscribe, read.priority) == (False, False, "burstable")
    of_class = options(config(source="FromClass", **parameters)).mistakes
    assert len(of_class) == 1 and "of the DeviceClass" in of_class[0]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_said_elsewhere_has_a_sentence(name: str):
    (sentence,) = options(config(**{name: "x"})).mistakes
    assert sentence == f"VGPU.{name}: is no parameter; {ELSEWHERE[name][1]}"
    assert ELSEWHERE[name][1].startswith(("write ", "leave "))


def test_later_parameters_win_and_the_claim_wins_over_its_class():
    read = options(
        config(elastic="16Gi", priority="best-effort"),
        config("gpu", elastic="32Gi"),
        config("other", elastic="64Gi"),
        config(source="FromClass", elastic=True, oversubscribe=True),
    )
    assert read == RequestOptions(
        cores=30, elastic=True, max_slices=32, priority="best-effort", oversubscribe=True
    )


@pytest.mark.parametrize("parameters", [{"priority": "guaranteed"}, {"elastic": True}, {"elastic": "16Gi"},
                                        {"timeSlicing": False}])  # fmt: skip
def test_who_may_write_what_takes_more(parameters: dict[str, Any]):
    """A class was written by an administrator. A claim needs what an annotation needs, but for what its class says."""
    refused = options(config(**parameters), rights=AnnotationRights.REFUSE)
    assert refused == RequestOptions(cores=30, mistakes=refused.mistakes)
    assert "takes more than is counted" in refused.mistakes[0]
    granted = options(config(**parameters, source="FromClass"), rights=AnnotationRights.REFUSE)
    assert granted == options(config(**parameters)) and not granted.mistakes
    assert (
        options(
            config(**parameters, source="FromClass"), config(**parameters), rights=AnnotationRights.REFUSE
        )
        == granted
    )


def test_what_everybody_may_write_needs_no_rights():
    free = {"priority": "best-effort", "elastic": False, "oversubscribe": True, "timeSlicing": True}
    assert not options(config(**free), rights=AnnotationRights.REFUSE).mistakes


def two(*configs: dict[str, Any], rights: AnnotationRights = AnnotationRights.CHECKED) -> RequestOptions:
    results = (result("a"), result("b", device="gpu-1", consumedCapacity={"memory": "1Gi", "cores": "50"}))
    return options(*configs, results=results, requests=("a", "b"), rights=rights)


def test_requests_of_one_quota_have_one_set_of_parameters():
    assert two(config("a", oversubscribe=True)).oversubscribe
    assert two(config("a", elastic=True), config("b", elastic=True)).mistakes == ()
    assert two(config("a", elastic=True), config("b", elastic="16Gi")).mistakes == (
        "VGPU.elastic: requests a and b are one quota of a container and say it differently; write the same for both, "
        "or give them to different containers",
    )


def test_a_right_of_one_request_is_none_of_the_container():
    """A container with a GiB of a privileged class and the rest of a plain one has one quota for both."""
    granted = config("a", source="FromClass", priority="guaranteed")
    refused = two(granted, rights=AnnotationRights.REFUSE)
    assert refused.priority == "burstable" and "takes more than is counted" in refused.mistakes[0]
    assert two(granted).priority == "guaranteed"
    both = two(
        granted, config("b", source="FromClass", priority="guaranteed"), rights=AnnotationRights.REFUSE
    )
    assert both.priority == "guaranteed" and not both.mistakes


def test_compute_is_what_was_allocated():
    assert two().cores == 50, "each GPU has its own, and the most says that there is some"
    results = (result("a"), result("b"))
    assert options(results=results, requests=("a", "b")).cores == 60, "of one GPU"
    twice = tuple(result(name, consumedCapacity={"cores": "80"}) for name in ("a", "b"))
    read = options(results=twice, requests=("a", "b"))
    assert read.cores == 100
    assert read.mistakes == (
        "requests a, b: 160 per cent of the compute of one GPU; ask for 100 at most in all",
    )


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([*(row.name for row in PARAMETERS), *ELSEWHERE, "kind"]) | st.text(max_size=9),
            JSON | st.sampled_from(["16Gi", "hard", "guaranteed", True]),
        ),
        max_size=3,
    ),
    st.sampled_from(AnnotationRights),
)
def test_no_parameters_make_reading_fail(written: list[dict[str, Any]], rights: AnnotationRights):
    configs = tuple(config(*("gpu",) * (position % 2), **entry) for position, entry in enumerate(written))
    read = options(*configs, rights=rights)
    assert all(sentence.isprintable() and len(sentence) < 600 for sentence in read.mistakes)
    assert len(read.mistakes) <= 20 * len(written)


@given(broken_claims(), st.sampled_from(AnnotationRights))
def test_no_claim_makes_reading_fail(document: Any, rights: AnnotationRights):
    try:
        read = ResourceClaim.parse(document)
    except ValueError:
        return
    claim_options(read, read.requests, UNIT, rights)


def test_a_deep_parameter_is_no_trouble():
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert len(options(config(elastic=deep, zzz=deep, gpus=deep)).mistakes) == 3
