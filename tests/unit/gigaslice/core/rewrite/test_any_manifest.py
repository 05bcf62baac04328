# SPDX-License-Identifier: Apache-2.0
"""Any manifest: what comes out parses, is final, keeps its comments, and is what admission takes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import yaml
from hypothesis import given
from hypothesis import settings as configured
from hypothesis import strategies as st

from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.model import AnnotationRights
from gigaslice.core.rewrite.document import _is_pod
from gigaslice.core.rewrite.manifest_text import rewrite_text
from gigaslice.core.rewrite.names import NAMES, ForeignPlace
from gigaslice.roles.webhook.admission_pod import read_admission_pod
from gigaslice.roles.webhook.mistakes import findings
from tests.unit.gigaslice.core.rewrite.pods import SETTINGS
from tests.unit.gigaslice.roles.webhook.pods import facts

GIB = 1 << 30
FACTS = facts(units=ClusterUnits(rights=AnnotationRights.CHECKED), nodes_may_come=True)

quantities = st.one_of(
    st.integers(0, 5000), st.integers(0, 200).map(str), st.sampled_from(["1k", "x", 100, "100", 50])
)
resource_names = st.sampled_from(
    [*(row.name for row in NAMES if row.place is ForeignPlace.RESOURCE), "cpu", "gigaslice.io/vgpu-memory"]
)
hami = st.fixed_dictionaries(
    {"nvidia.com/gpu": st.integers(1, 4)},
    optional={
        "nvidia.com/gpumem": st.integers(1, 90000),
        "nvidia.com/gpumem-percentage": st.integers(1, 100),
        "nvidia.com/gpucores": st.integers(0, 100),
        "nvidia.com/priority": st.integers(0, 1),
        "cpu": st.just(1),
    },
)
limits = st.one_of(hami, hami, st.dictionaries(resource_names, quantities, max_size=4))
annotations = st.dictionaries(
    st.sampled_from(
        [*(row.name for row in NAMES if row.place is ForeignPlace.ANNOTATION), "other", "gigaslice.io/cores"]
    ),
    st.sampled_from(["A100", "GPU-1", "binpack", "hami-core", "mig", "30", ""]),
    max_size=3,
)
variables = st.lists(
    st.builds(
        lambda name, value: {"name": name, "value": value},
        st.sampled_from([*(row.name for row in NAMES if row.place is ForeignPlace.VARIABLE), "A", "B"]),
        st.sampled_from(["true", "false", "0", "1", "force", "1g", "50"]),
    ),
    max_size=3,
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    containers = []
    for name in draw(st.lists(st.sampled_from(["a", "b", "c-d"]), min_size=1, max_size=3, unique=True)):
        asked = draw(limits)
        resources: dict[str, Any] = {"limits": asked}
        if draw(st.booleans()):
            resources["requests"] = draw(st.one_of(st.just(dict(asked)), limits))
        container: dict[str, Any] = {"name": name, "resources": resources}
        env = draw(variables)
        container = {"env": env, **container} if env else container
        containers.append(container)
    spec: dict[str, Any] = {"containers": containers}
    if draw(st.booleans()):
        spec = {"schedulerName": draw(st.sampled_from(["hami-scheduler", "volcano"])), **spec}
    pod: dict[str, Any] = {"spec": spec}
    metadata: dict[str, Any] = draw(st.sampled_from([{}, {"name": "x"}, {"labels": {"a": "b"}}]))
    its_annotations = draw(annotations)
    if its_annotations:
        metadata = {**metadata, "annotations": its_annotations}
    return {"metadata": metadata, **pod} if metadata else pod


documents = st.one_of(
    pods().map(lambda pod: {"kind": "Pod", **pod}),
    pods().map(lambda pod: {"kind": "Deployment", "spec": {"replicas": 1, "template": pod}}),
    st.lists(pods(), max_size=3).map(lambda items: {"kind": "List", "items": items}),
)
settings = st.builds(
    lambda size, alone, piece: replace(
        SETTINGS, gpu_bytes=size * GIB, alone_bytes=alone * GIB, units=replace(SETTINGS.units, slice_bytes=piece)
    ),
    st.sampled_from([0, 23, 80]), st.sampled_from([0, 7]), st.sampled_from([GIB, GIB // 2]),
)  # fmt: skip


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Documents in one of the ways in which people and programs write them, with a comment behind each line of some."""
    style = draw(st.sampled_from(["block", "flow", "mixed", "json", "json lines", "tabs"]))
    if "json" in style or style == "tabs":
        indent = {"json": None, "json lines": 2, "tabs": "\t"}[style]
        return json.dumps(draw(documents), indent=indent)
    flow = {"block": False, "flow": True, "mixed": None}[style]
    written = yaml.dump_all(
        draw(st.lists(documents, min_size=1, max_size=3)),
        default_flow_style=flow,
        indent=draw(st.sampled_from([2, 4])),
        sort_keys=draw(st.booleans()),
        width=10_000,
        explicit_start=draw(st.booleans()),
    )
    if style == "block" and draw(st.booleans()):
        lines = written.splitlines()
        written = "".join(
            f"{line}  # behind {number}\n{' ' * (len(line) - len(line.lstrip()))}# below {number}\n"
            for number, line in enumerate(lines)
        )
    return written


def pods_of(document: object) -> list[dict[str, Any]]:
    if _is_pod(document):
        return [document]  # type: ignore[list-item]
    parts = (
        document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    )
    return [pod for part in parts for pod in pods_of(part)]


@configured(max_examples=60)
@given(texts(), settings)
def test_what_is_printed_parses_is_final_and_keeps_its_comments(text: str, its_settings: Any) -> None:
    rewrite = rewrite_text(text, its_settings)
    after = list(yaml.safe_load_all(rewrite.text.replace("\t", " ")))
    before = list(yaml.safe_load_all(text.replace("\t", " ")))
    assert len(after) == len(before)
    again = rewrite_text(rewrite.text, its_settings)
    assert again.text == rewrite.text
    assert {note.text for note in again.notes if note.left} == {
        note.text for note in rewrite.notes if note.left
    }
    assert not again.pods
    assert "explode" not in str(rewrite.notes), "no form of these is refused"
    for comment, line in re.findall(r"(# below \d+)\n.*(# behind \d+)\n", text):
        assert comment + "\n" in rewrite.text or line + "\n" not in rewrite.text, (
            "its next line is there, and it is not"
        )


@configured(max_examples=40)
@given(texts(), settings)
def test_what_is_rewritten_has_no_name_of_others_and_passes_admission(text: str, its_settings: Any) -> None:
    rewrite = rewrite_text(text, its_settings)
    before = [pod for document in yaml.safe_load_all(text.replace("\t", " ")) for pod in pods_of(document)]
    after = [
        pod for document in yaml.safe_load_all(rewrite.text.replace("\t", " ")) for pod in pods_of(document)
    ]
    changed = [pod for pod, old in zip(after, before, strict=True) if pod != old]
    assert len(changed) == rewrite.pods
    known = facts(units=its_settings.units, nodes_may_come=True)
    for pod in changed:
        written = json.dumps(pod)
        assert not [row.name for row in NAMES if f'"{row.name}"' in written]
        assert not findings(read_admission_pod(pod), known, completed=True).mistakes
