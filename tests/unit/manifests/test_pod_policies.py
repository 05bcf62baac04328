# SPDX-License-Identifier: Apache-2.0
"""Who may write what into a pod: the policies say the same as the table that agents and scheduler parse by."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.namespace_labels import needed_labels
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.model import AnnotationRights, Pod, PodContainer
from gigaslice.core.model.annotations import ANNOTATIONS, Annotation, parse_options
from gigaslice.core.model.options import PREFIX, RequestOptions, SliceUnit
from gigaslice.core.units import parse_bytes
from tests.fakes.kubeapi import new_pod
from tests.unit.manifests.cel import Policy, Request
from tests.unit.manifests.test_chart import CHECKED, ROOT, documents_of, helm, listed

Document = dict[str, Any]
BOUNDED = [
    row for row in ANNOTATIONS if row.option.free_values is not None or row.option.free_up_to is not None
]
UNIT = SliceUnit(1 << 30, parse_bytes)
TEXTS = (
    "", " ", "0", "1", "00", "100", "101", "+30", "-1", "3e1", "30 ", "30\n", "٣٠", "1000000000", "8GiB", "16",
    "true", "false", "True", "FALSE", " true ", "false ", "yes", " YES ", "no",
    "guaranteed", "Guaranteed", "burstable", "best-effort",
)  # fmt: skip
CONTAINERS = ("c0", "c1", "c2")
UPDATES = ["", "status", "resize", "ephemeralcontainers"]
BINDINGS = ["binding"]
LABELS = tuple((row.option.namespace_label, "true") for row in BOUNDED)


def policy(name: str, *sets: str) -> Policy:
    words = [word for one in sets for word in ("--set", one)]
    (found,) = [
        one
        for one in listed(*words, "--kube-version", "1.36.0")
        if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"] == f"gigaslice-{name}"
    ]
    return Policy(found)


RIGHTS = policy("rights")
FEW_CORES = policy("rights", "admission.freeCores=30")
ASSIGNMENTS = policy("assignments")
MESSAGE = {row.name: f'{row.option.namespace_label}: "true" on the Namespace' for row in BOUNDED}


def pod(annotations: dict[str, str] | None = None) -> Document:
    return new_pod("p", *({} for _ in CONTAINERS), init=({},), annotations=annotations)


def update(old: dict[str, str] | None, new: dict[str, str] | None, part: str = "", **more: Any) -> Request:
    return Request("UPDATE", pod(new), pod(old), part, **more)


def create(annotations: dict[str, str], part: str = "", **more: Any) -> Request:
    document = pod(annotations)
    if part == "binding":
        document = {"metadata": document["metadata"], "target": {"kind": "Node", "name": "n"}}
    return Request("CREATE", document, None, part, **more)


def is_free(row: Annotation, text: str, free_cores: int = 100) -> bool:
    """By the table alone."""
    if row.option.free_values is not None:
        return text in row.option.free_values
    return text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= free_cores


def keys(row: Annotation) -> tuple[str, ...]:
    return tuple(f"{PREFIX}{row.name}{end}" for end in ("", ".c0", ".c2", ".i0"))


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_policy_knows_the_annotations_of_the_table_and_no_others():
    everything = {key: "nobody reads this" for row in ANNOTATIONS for key in (*keys(row), *row.aliases)}
    refusals = RIGHTS.refusals(create(everything))
    assert len(refusals) == len(BOUNDED) == 5
    for row in BOUNDED:
        assert [text for text in refusals if MESSAGE[row.name] in text], row.name
        assert not row.aliases, "the policy would have to know them"


@pytest.mark.parametrize("row", BOUNDED, ids=lambda row: row.name)
def test_only_the_exact_texts_of_the_table_are_free(row):
    assert row.option.free_up_to in (None, 100), "the chart's own value of admission.freeCores"
    for text, key in itertools.product((*TEXTS, *(row.option.free_values or ())), keys(row)):
        refusals = RIGHTS.refusals(create({key: text}))
        assert (refusals == []) == is_free(row, text), (key, text)
        assert all(MESSAGE[row.name] in one for one in refusals)
        if not refusals:
            options = parse_options({key: text}, "c0", UNIT, AnnotationRights.CHECKED)
            assert not asked(options), (key, text)
            assert options == parse_options({key: text}, "c0", UNIT, AnnotationRights.REFUSE), (key, text)


@pytest.mark.parametrize("row", BOUNDED, ids=lambda row: row.name)
def test_the_label_of_the_namespace_frees_its_annotation_and_no_other(row):
    for text in TEXTS:
        given = {key: text for one in BOUNDED for key in keys(one)}
        refusals = RIGHTS.refusals(create(given, labels=((row.option.namespace_label, "true"),)))
        assert not [one for one in refusals if MESSAGE[row.name] in one]
        for value in ("", "True", "1", "yes"):
            label = ((row.option.namespace_label, value), ("gigaslice.io/allow", "true"))
            assert RIGHTS.refusals(create({keys(row)[0]: "x"}, labels=label))
    assert (
        RIGHTS.refusals(
            create(dict.fromkeys((key for one in BOUNDED for key in keys(one)), "x"), labels=LABELS)
        )
        == []
    )


@pytest.mark.parametrize(
    "text, free", [("30", True), ("0", True), ("31", False), ("100", False), ("030", True)]
)
def test_the_free_cores_are_the_charts(text, free):
    for key in ("gigaslice.io/cores", "gigaslice.io/cores.c0"):
        assert (FEW_CORES.refusals(create({key: text})) == []) == free


def test_names_that_only_begin_alike_are_free():
    alike = {"gigaslice.io/cores-policy": "elastic", "gigaslice.io/exclusively": "true", "exclusive": "true"}
    alike |= {"gigaslice.io/prioritys.c0": "x", "x.gigaslice.io/exclusive": "true"}
    assert RIGHTS.refusals(create(alike)) == [] == RIGHTS.refusals(create(alike, "binding"))


def test_annotations_of_containers_that_the_pod_has_not_are_nobodys():
    """A pod never gets other containers; a binding does not say which there are, so it carries none."""
    assert RIGHTS.refusals(create({"gigaslice.io/exclusive.c9": "true"})) == []
    assert RIGHTS.refusals(create({"gigaslice.io/exclusive.c9": "true"}, "binding"))


# --- every request that can change annotations ------------------------------------------------------------------------


@pytest.mark.parametrize("row", BOUNDED, ids=lambda row: row.name)
def test_every_way_to_write_an_annotation_is_guarded(row):
    for key in keys(row):
        forged = {key: "x"}
        ways = [create(forged), *(update(None, forged, part) for part in UPDATES)]
        ways += [update({key: "y"}, forged, part) for part in UPDATES]
        ways += [create(forged, part) for part in BINDINGS]
        for request in ways:
            assert RIGHTS.refusals(request), request


def test_the_legacy_path_of_bindings_is_guarded_too():
    for name in ("rights", "assignments"):
        (found,) = [
            one
            for one in listed("--kube-version", "1.36.0")
            if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"] == f"gigaslice-{name}"
        ]
        rules = found["spec"]["matchConstraints"]["resourceRules"]
        assert ["bindings" in rule["resources"] for rule in rules] == [False, True]


@pytest.mark.parametrize("part", UPDATES)
def test_what_stands_there_already_blocks_nothing(part):
    """A label, a finalizer, another annotation: whatever was written before the policy came."""
    old = {key: "true" for row in BOUNDED for key in keys(row)} | {"a": "b"}
    for new in (old, {**old, "a": "c"}, {**old, "d": "e"}, {key: old[key] for key in old if key != "a"}):
        assert RIGHTS.refusals(update(old, new, part)) == []
    request = update(old, old, part)
    request.new["metadata"]["finalizers"] = ["x/y"]
    assert RIGHTS.refusals(request) == []
    assert RIGHTS.refusals(update(old, None, part)) == []


def test_the_pods_of_a_deployment_are_made_by_a_controller_and_judged_alike():
    for user in ("tenant", "system:serviceaccount:kube-system:replicaset-controller", "system:admin"):
        assert RIGHTS.refusals(create({"gigaslice.io/exclusive": "true"}, user=user))
        allowed = create({"gigaslice.io/exclusive": "true"}, user=user, labels=LABELS)
        assert RIGHTS.refusals(allowed) == []


def test_taking_away_a_containers_own_annotation_uncovers_the_pods():
    both = {"gigaslice.io/exclusive": "true", "gigaslice.io/exclusive.c0": "false"}
    one = {"gigaslice.io/exclusive": "true"}
    assert RIGHTS.refusals(update(both, one))
    assert RIGHTS.refusals(update(both, one, labels=LABELS)) == []
    assert RIGHTS.refusals(update(both, {})) == []
    assert (
        RIGHTS.refusals(
            update({**both, "gigaslice.io/exclusive": "false"}, {"gigaslice.io/exclusive": "false"})
        )
        == []
    )


# --- against the parser -----------------------------------------------------------------------------------------------


def asked(options: RequestOptions, free_cores: int = 100) -> set[tuple[object, ...]]:
    """What the options ask for beyond counted slices."""
    found: set[tuple[object, ...]] = set()
    if options.exclusive:
        found.add(("exclusive",))
    if options.elastic:
        found.add(("elastic", options.max_slices))
    if options.priority == "guaranteed":
        found.add(("priority",))
    if not options.time_slicing:
        found.add(("time-slicing",))
    if options.cores > free_cores:
        found.add(("cores", options.cores))
    return found


annotations = st.dictionaries(
    st.sampled_from([f"{PREFIX}{row.name}{end}" for row in BOUNDED for end in ("", ".c0", ".c1")] + ["a"]),
    st.sampled_from(TEXTS),
    max_size=6,
)


@given(annotations, annotations, st.sets(st.sampled_from([row.name for row in BOUNDED])))
def test_who_gets_past_the_policy_has_nothing_that_was_not_there_or_allowed(old, new, allowed):
    """With the agents' own parser, for every container: the policy's only promise."""
    labels = tuple((f"gigaslice.io/allow-{name}", "true") for name in allowed)
    for request in (create(new, labels=labels), update(old, new, labels=labels)):
        if FEW_CORES.refusals(request):
            continue
        before = old if request.operation == "UPDATE" else {}
        for container in CONTAINERS:
            had = asked(parse_options(before, container, UNIT, AnnotationRights.CHECKED), 30)
            for more in asked(parse_options(new, container, UNIT, AnnotationRights.CHECKED), 30) - had:
                assert more[0] in allowed, (container, more)


@given(annotations)
def test_the_doctor_names_the_labels_that_the_policy_asks_for(given_annotations):
    containers = tuple(PodContainer(name) for name in (*CONTAINERS, "i0"))
    found = needed_labels(Pod("team", "p", "u", given_annotations, containers), 30)
    refusals = FEW_CORES.refusals(create(given_annotations))
    assert found == {
        row.option.namespace_label for row in BOUNDED if any(MESSAGE[row.name] in one for one in refusals)
    }
    assert FEW_CORES.refusals(create(given_annotations, labels=tuple((one, "true") for one in found))) == []


@given(annotations, st.sampled_from(UPDATES))
def test_an_update_that_leaves_annotations_as_they_are_is_never_refused(old, part):
    assert RIGHTS.refusals(update(old, dict(old), part)) == []


# --- assignments ------------------------------------------------------------------------------------------------------


def test_an_assignment_is_the_schedulers_in_every_way_to_install():
    forged = {ASSIGNMENT: "{}"}
    ways = [create(forged), create(forged, "binding")]
    ways += [update(old, new, part) for part in UPDATES for old, new in ((None, forged), (forged, None))]
    scheduler = "system:serviceaccount:gigaslice:gigaslice-scheduler"
    for request in ways:
        assert len(ASSIGNMENTS.refusals(request)) == 1
        mine = Request(request.operation, request.new, request.old, request.subresource, user=scheduler)
        assert ASSIGNMENTS.refusals(mine) == []
    assert ASSIGNMENTS.refusals(update(forged, {**forged, "a": "b"})) == []


# --- the chart --------------------------------------------------------------------------------------------------------


def flags(found: list[Document]) -> list[list[str]]:
    """Those about annotation rights, of every container of ours that is started."""
    templates = [
        one["spec"]["template"]["spec"] for one in found if one["kind"] in ("DaemonSet", "Deployment")
    ]
    containers = [container for spec in templates for container in spec["containers"] if "args" in container]
    return [[word for word in one["args"] if word.startswith("--annotation-rights")] for one in containers]


ANYWHERE = [
    ("deny", "1.30.0", ["Deny"]), ("warn", "1.36.0", ["Warn"]), ("off", "1.36.0", None), ("false", "1.36.0", None),
]  # fmt: skip


@pytest.mark.parametrize(
    "cluster, rights, version, actions",
    [(cluster, *row) for cluster in (False, True) for row in ANYWHERE] + [(False, "deny", "1.29.0", None)],
)
def test_the_roles_are_told_to_trust_exactly_where_the_api_server_denies(cluster, rights, version, actions):
    sets = f"cluster.enabled={str(cluster).lower()},admission.rights={rights}"
    found = listed("--set", sets, "--kube-version", version)
    bound = [
        one["spec"]["validationActions"]
        for one in found
        if one["kind"] == "ValidatingAdmissionPolicyBinding" and one["metadata"]["name"] == "gigaslice-rights"
    ]
    assert bound == ([actions] if actions else [])
    assert flags(found) == [[CHECKED] if actions == ["Deny"] else []] * (3 if cluster else 1)


def test_whoever_sets_it_has_his_way():
    sets = ",".join(f"{role}settings.annotationRights=refuse" for role in ("", "scheduler.", "controller."))
    assert (
        flags(listed("--set", f"cluster.enabled=true,{sets}", "--kube-version", "1.36.0"))
        == [["--annotation-rights=refuse"]] * 3
    )


@pytest.mark.parametrize("value", ["rights=maybe", "freeCores=101", "freeCores=-1", "freeCores=x"])
def test_values_that_mean_nothing_are_refused(value):
    assert helm("--set", f"admission.{value}").returncode != 0


def test_a_namespace_with_the_label_has_its_gpus_counted_by_classes():
    found = listed("--set", "cluster.enabled=true", "--kube-version", "1.36.0")
    named = [one for one in found if one["metadata"]["name"] == "gigaslice-class-required"]
    rules = {one["kind"]: one for one in named}
    assert rules["ValidatingAdmissionPolicyBinding"]["spec"]["matchResources"] == {
        "namespaceSelector": {"matchLabels": {"gigaslice.io/require-class": "true"}}
    }
    required = Policy(rules["ValidatingAdmissionPolicy"])

    def refused(*limits: dict[str, int], init: tuple[dict[str, int], ...] = ()) -> bool:
        document = new_pod("p", *limits, init=init, annotations={"gigaslice.io/gpu-type": "H100"})
        return bool(required.refusals(Request("CREATE", document)))

    memory, h100 = {"gigaslice.io/vgpu-memory": "8"}, {"gpuclass.gigaslice.io/h100": "1"}
    assert (
        refused(memory)
        and refused({"gigaslice.io/gpu": "1"})
        and refused({"gigaslice.io/vgpu-memory.h100": "8"})
    )
    assert refused({**memory, **h100}, memory) and refused({**memory, **h100}, init=(memory,))
    assert (
        not refused({**memory, **h100})
        and not refused({"cpu": "1"})
        and not refused({**memory, **h100}, {"cpu": "1"})
    )


def test_the_plain_manifest_has_all_policies_and_denies():
    found = documents_of((ROOT / "deploy" / "pod-policy.yaml").read_text())
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [
        (kind, f"gigaslice-{name}")
        for name in ("assignments", "environment", "rights")
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    ]
    assert {tuple(one["spec"]["validationActions"]) for one in found[1::2]} == {("Deny",)}
    assert {one["spec"]["failurePolicy"] for one in found[::2]} == {"Fail"}
