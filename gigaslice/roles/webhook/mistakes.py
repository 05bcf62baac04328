# SPDX-License-Identifier: Apache-2.0
"""The mistakes in a pod that asks for resources of ours, each as a sentence that says what to write instead. Pure.

Only what no cluster state could mend is a mistake; the rest is the scheduler's to answer, since a class and a node may
come at any time. A pod that names a class must be sure to pass our scheduler: its names are ignored by every other one,
which would bind it to any node.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from gigaslice.core.cluster.demand import demand_of
from gigaslice.core.cluster.names import ASSIGNMENT, CLASS_PREFIX, GROUP
from gigaslice.core.cluster.refusal import Refusal
from gigaslice.core.model import (
    ANNOTATIONS,
    SliceUnit,
    annotations_by_container,
    parse_options,
)
from gigaslice.core.model.environment import environment_mistakes
from gigaslice.core.model.options import PREFIX
from gigaslice.core.text import plain
from gigaslice.core.units import parse_bytes
from gigaslice.roles.webhook.admission_pod import AdmissionPod, ContainerRequest
from gigaslice.roles.webhook.complete import DEFAULT_SCHEDULER, raw_units, shares_beside_others
from gigaslice.roles.webhook.facts import AdmissionFacts

__all__ = ["SHARE_BESIDE_OTHERS", "Findings", "findings"]

_ANNOTATIONS = frozenset(row.name for row in ANNOTATIONS)
_OURS = frozenset({"allocation", "claims", "wake"})
"""Annotations under our prefix that the agent and the controller write; a pod that was copied has them."""
_NEAR = 0.7
_ENOUGH = 20
_FEW = 100  # containers, among which the nearest name is looked for
SHARE_BESIDE_OTHERS = "one with a share stands beside others: give it a container of its own"
"""As the policy of the chart says it."""


@dataclass(slots=True)
class Findings:
    """What was found in a pod. mistakes: why it is refused. warnings: what its author should see all the same."""

    mistakes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def enough(self) -> bool:
        """Whether nobody would read more: a pod may have tens of thousands of mistakes."""
        return len(self.mistakes) >= _ENOUGH


def findings(admission: AdmissionPod, facts: AdmissionFacts, completed: bool) -> Findings:
    """Looks for mistakes in a pod.

    Args:
        admission: The pod, as the API server sent it.
        facts: What is known of the cluster.
        completed: Whether the pod has passed `completion_patch`, so that raw units and scheduler must be there.
    """
    findings = Findings()
    if not admission.asking:
        return findings
    if ASSIGNMENT in admission.pod.annotations:
        findings.mistakes.append(f"{ASSIGNMENT} is written by the scheduler; leave it out")
    _environment(admission, facts, findings)
    for container in admission.asking:
        if findings.enough:
            break
        _names(container, facts, findings)
        _counts(container, findings)
        _shares(container, facts, findings)
    _annotations(admission, findings)
    _route(admission, facts, completed, findings)
    if not findings.mistakes:
        _demand(admission, facts, findings)
    if not findings.mistakes:
        _size(admission, facts, findings)
    return findings


def _environment(admission: AdmissionPod, facts: AdmissionFacts, findings: Findings) -> None:
    """Limits of the driver that the pod would set itself, where it asks for GPUs."""
    names = {name for container in admission.asking for name in container.counts}
    if any(name.startswith(CLASS_PREFIX) or facts.counts_gpus(name) for name in names):
        findings.mistakes += environment_mistakes(admission.environments, facts.units.memory_resource)


def _names(container: ContainerRequest, facts: AdmissionFacts, findings: Findings) -> None:
    """Names that no class and no node has."""
    for name in sorted(container.counts):
        if findings.enough:
            return
        subject = f"container {container.name}: {plain(name)}"
        if name.startswith(CLASS_PREFIX):
            class_name = name.removeprefix(CLASS_PREFIX)
            if class_name not in facts.classes:
                findings.mistakes.append(f"{subject}: there is no such class; {_classes(class_name, facts)}")
        elif name not in facts.names and not facts.units.is_memory(name):
            _unknown(subject, name, facts, findings)
        elif name not in facts.names:
            findings.warnings.append(f"{subject}: no node offers it now; the pod waits for one")


def _unknown(subject: str, name: str, facts: AdmissionFacts, findings: Findings) -> None:
    """Judges a resource that nobody here offers: it is refused where it is certain what was meant.

    Any other name under our domain may be of a newer agent, or of one whose settings are not known here.
    """
    domain, _, rest = name.partition("/")
    if domain == GROUP:
        ours = {name.removeprefix(GROUP + "/") for name in facts.names if name.startswith(GROUP + "/")}
        nearest = _nearest(rest, ours)
        if rest in facts.classes:
            findings.mistakes.append(f"{subject} is a class; write {CLASS_PREFIX}{rest}")
        elif nearest:
            findings.mistakes.append(f"{subject}: there is no such resource; did you mean {GROUP}/{nearest}?")
        elif rest.partition(".")[0] in _ANNOTATIONS:
            findings.mistakes.append(
                f"{subject} is no resource but an annotation; write it under metadata.annotations"
            )
        else:
            offered = ", ".join(sorted(facts.names))
            findings.warnings.append(f"{subject}: no node is known to offer it; there are {offered}")
    elif _nearest(domain, [GROUP, CLASS_PREFIX.rstrip("/")]):
        nearest = _nearest(name, [*facts.names, *(CLASS_PREFIX + class_name for class_name in facts.classes)])
        hint = f"did you mean {nearest}?" if nearest else f"our names begin with {GROUP}/ or {CLASS_PREFIX}"
        findings.mistakes.append(f"{subject}: there is no such resource; {hint}")


def _classes(name: str, facts: AdmissionFacts) -> str:
    near = _nearest(name, facts.classes)
    if near:
        return f"did you mean {CLASS_PREFIX}{near}?"
    if not facts.classes:
        return "the cluster has none yet (kubectl get resourceclasses)"
    return f"there are {_some(facts.classes)} (kubectl get resourceclasses)"


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")


def _nearest(word: str, words: Collection[str]) -> str:
    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=_NEAR)), "")


def _counts(container: ContainerRequest, findings: Findings) -> None:
    for name in sorted(container.only_requested):
        findings.mistakes.append(
            f"container {container.name}: {plain(name)} stands under requests alone; write it under limits"
        )
    for name, count in sorted(container.counts.items()):
        if findings.enough:
            return
        if count is None or count < 1:
            findings.mistakes.append(
                f"container {container.name}: {plain(name)} must be a whole number from 1 up; to ask for none, leave "
                "the line out"
            )


def _shares(container: ContainerRequest, facts: AdmissionFacts, findings: Findings) -> None:
    """Several classes with shares, whose sum nobody has written. Beside a class without one they are `_demand`'s."""
    shares = shares_beside_others(container, facts)
    if len(shares) < len(container.classes) or any(map(facts.counts_gpus, container.counts)):
        return
    if shares:
        classes = " and ".join(shares)
        findings.mistakes.append(
            f"container {container.name}: {classes} are classes of which {SHARE_BESIDE_OTHERS}, or write their sum as "
            f"{facts.units.memory_resource} beside them"
        )


def _annotations(admission: AdmissionPod, findings: Findings) -> None:
    """Names under our prefix that mean nothing."""
    containers = admission.container_names
    for key in sorted(admission.pod.annotations):
        if findings.enough:
            return
        if not key.startswith(PREFIX) or key == ASSIGNMENT:
            continue
        name, dot, container = key.removeprefix(PREFIX).partition(".")
        if name in _OURS:
            continue
        if name not in _ANNOTATIONS:
            near = _nearest(name, _ANNOTATIONS)
            hint = f"did you mean {PREFIX}{near}?" if near else f"there are {', '.join(sorted(_ANNOTATIONS))}"
            findings.mistakes.append(f"annotation {plain(key)}: there is no such annotation; {hint}")
        elif dot and container not in containers:
            near = _nearest(container, containers) if len(containers) <= _FEW else ""
            hint = f"did you mean {PREFIX}{name}.{near}?" if near else f"there are {_some(containers)}"
            findings.mistakes.append(f"annotation {plain(key)}: the pod has no such container; {hint}")


def _route(admission: AdmissionPod, facts: AdmissionFacts, completed: bool, findings: Findings) -> None:
    """Ways past our scheduler, for a pod that names a class."""
    classed = [container for container in admission.asking if container.classes]
    if not classed:
        return
    if admission.pod.node:
        findings.mistakes.append(
            "a pod that names a GPU class is bound by the scheduler, which chooses its GPUs; leave spec.nodeName out, "
            "and write a nodeSelector such as kubernetes.io/hostname where it must be that node"
        )
    chosen = admission.pod.scheduler or DEFAULT_SCHEDULER
    if chosen != facts.scheduler and (completed or chosen != DEFAULT_SCHEDULER):
        findings.mistakes.append(
            f'schedulerName "{plain(chosen)}" does not see GPU classes and would bind the pod to any node; write '
            f'"{facts.scheduler}", or leave it out'
        )
    for container in classed if completed else ():
        if findings.enough:
            return
        if missing := raw_units(container, facts):
            lines = " and ".join(f"{name}: {count}" for name, count in missing.items())
            findings.mistakes.append(
                f"container {container.name}: its class needs {lines} beside it; add it to the limits"
            )


def _slices(container: ContainerRequest, facts: AdmissionFacts) -> int:
    """How many slices the container counts by itself; what its classes stand for is not for annotations to divide."""
    if container.classes:
        return 0
    return sum(count or 0 for name, count in container.counts.items() if facts.units.is_memory(name))


def _demand(admission: AdmissionPod, facts: AdmissionFacts, findings: Findings) -> None:
    """What the scheduler would refuse whatever the nodes have: annotations that contradict each other or the counts."""
    demand = demand_of(admission.pod, facts.classes, facts.units)
    if isinstance(demand, Refusal):
        findings.mistakes.append(demand.text)


def _size(admission: AdmissionPod, facts: AdmissionFacts, findings: Findings) -> None:
    """What no node has, even empty: a warning where nodes may come, or where there is nothing of the kind at all."""
    if not facts.nodes:
        return
    annotations = annotations_by_container(admission.pod.annotations)
    for container in admission.asking:
        if findings.enough:
            return
        for much, most, what in _measures(container, annotations(container.name), facts):
            if much <= most:
                continue
            sentence = (
                f"container {container.name}: {much} {what} are more than any node has, which is {most}"
            )
            if facts.nodes_may_come:
                findings.warnings.append(f"{sentence}; the pod waits for a larger node")
            elif not most:
                findings.warnings.append(
                    f"container {container.name}: no node has {what} now; the pod waits for one"
                )
            else:
                findings.mistakes.append(f"{sentence}; ask for {most} at most")


def _measures(
    container: ContainerRequest, annotations: Mapping[str, str], facts: AdmissionFacts
) -> Iterator[tuple[int, int, str]]:
    """What the container asks for, the most of it that one node has, and its name."""
    for name, count in container.classes.items():
        share = facts.classes[name].share
        slices = facts.slices(share.memory_bytes) if share and share.memory_bytes else 0
        yield count or 0, facts.most_of_class(name, slices), f"GPUs of class {name}"
    if not container.classes and container.counts.get(facts.units.gpu_resource):
        yield container.counts[facts.units.gpu_resource] or 0, facts.most_gpus, "GPUs"
    for name, count in container.counts.items():
        if facts.units.is_memory(name) and name in facts.names:
            yield count or 0, facts.most_slices(name), f"of {name}"
    unit = SliceUnit(facts.units.slice_bytes, parse_bytes)
    options = parse_options(annotations, container.name, unit, facts.units.rights)
    slices = _slices(container, facts)
    if options.parts:
        yield max(options.parts), facts.largest_gpu, "slices of one GPU"
    elif options.gpus and slices:
        yield -(-slices // options.gpus), facts.largest_gpu, "slices of one GPU"
