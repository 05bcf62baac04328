# SPDX-License-Identifier: Apache-2.0
"""One pod, or the template of one, from other projects' names to ours: as a whole, or not at all. Pure.

Half a pod would be served by nobody: HAMi's webhook takes every pod with one of its names. So where something is left
to the author, nothing of the pod is changed. What comes out is judged as our scheduler judges pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gigaslice.core.cluster.demand import demand_of
from gigaslice.core.cluster.refusal import Refusal
from gigaslice.core.kube.pod_fields import count_of
from gigaslice.core.model import AnnotationRights
from gigaslice.core.model.options import PREFIX
from gigaslice.core.model.pod import ContainerKind, Pod, PodContainer
from gigaslice.core.rewrite.edits import (
    Edit,
    Insert,
    Note,
    Path,
    Remove,
    Replace,
    edited,
    number_like,
    value_at,
    with_emptied,
)
from gigaslice.core.rewrite.gpu_request import ContainerPlan, RewriteSettings, needs_label, plan_request
from gigaslice.core.rewrite.names import (
    ANNOTATION_NAMES,
    COMPUTE_POLICY,
    CORE_LIMIT,
    MODE,
    RECORDS,
    SCHEDULERS,
    TAKEN_OUT,
)
from gigaslice.core.rewrite.variables import plan_variables, set_policy

__all__ = ["PodRewrite", "rewrite_pod"]

_CONTAINERS = ("initContainers", "containers")
_LONGEST = 63  # characters of an annotation's name after the slash, as Kubernetes has it
_POLICIES = {"fixed": "hard", "balance": "elastic", "none": "none"}
_GPU_POLICY = "hami.io/gpu-scheduler-policy"


@dataclass(frozen=True, slots=True)
class PodRewrite:
    """What becomes of a pod: edits of its document, and notes. Without edits it stays as it is."""

    edits: tuple[Edit, ...] = ()
    notes: tuple[Note, ...] = ()


def rewrite_pod(document: Mapping[str, Any], path: Path, settings: RewriteSettings) -> PodRewrite:
    """Decides about a pod.

    Args:
        document: The whole document that it stands in.
        path: Where in it: what is there has `spec` and may have `metadata`.
        settings: What the cluster is like.
    """
    return _Pod(document, path, settings).rewrite()


class _Pod:
    """A pod that is being looked at."""

    def __init__(self, document: Mapping[str, Any], path: Path, settings: RewriteSettings) -> None:
        self._document, self._path, self._settings = document, path, settings
        self._pod: Mapping[str, Any] = value_at(document, path)
        annotations = value_at(self._pod, ("metadata", "annotations"))
        self._annotations: dict[str, Any] = annotations if isinstance(annotations, dict) else {}
        self._edits: list[Edit] = []
        self._notes: list[Note] = []
        self._plans: list[ContainerPlan] = []

    def rewrite(self) -> PodRewrite:
        for container, path in _containers(self._pod, self._path):
            plan = plan_request(container, path, self._settings)
            self._edits += plan_variables(plan, container, self._settings)
            self._plans.append(plan)
        self._rename_annotations()
        self._take_scheduler_out()
        for plan in self._plans:
            self._edits += _resource_edits(plan, value_at(self._document, plan.path))
        self._add_annotations()
        notes = [*(note for plan in self._plans for note in plan.notes), *self._notes]
        left = tuple(note for note in notes if note.left)
        if left or not self._edits:
            return PodRewrite(notes=left)
        edits = with_emptied(self._document, self._edits)
        refusal = self._refusal(edits)
        if refusal:
            return PodRewrite(notes=(Note(self._path, f"what it would be is refused: {refusal}", left=True),))
        return PodRewrite(edits, tuple(notes))

    def _rename_annotations(self) -> None:
        where = (*self._path, "metadata", "annotations")
        given = set(self._annotations)
        for name, value in self._annotations.items():
            path, text = (*where, name), "" if value is None else str(value)
            if name in ANNOTATION_NAMES:
                self._rename(path, ANNOTATION_NAMES[name], text, given)
            elif name == MODE:
                self._mode(path, text)
            elif name == COMPUTE_POLICY:
                self._policy(path, text)
            elif name == CORE_LIMIT:
                self._core_limit(path, text)
            elif name in TAKEN_OUT:
                self._edits.append(Remove(path))
                self._notes.append(Note(path, f"{name}: {text} goes; {TAKEN_OUT[name][1]}"))
                if name == _GPU_POLICY and "mutex" in text:
                    self._notes.append(
                        Note(path, f"what comes nearest to mutex: {needs_label('exclusive', 'true')}")
                    )
            elif name in RECORDS:
                self._edits.append(Remove(path))
            elif name.startswith("hami.io/"):
                self._notes.append(
                    Note(path, f"{name} has no counterpart that is known here; take it out", left=True)
                )

    def _rename(self, path: Path, ours: str, text: str, given: set[str]) -> None:
        if ours in given:
            self._edits.append(Remove(path))
            self._notes.append(Note(path, f"{path[-1]} goes; {ours} is there, and counts alone"))
            return
        given.add(ours)
        if ours.endswith("gpu-type"):
            text = ",".join(word.strip().removeprefix("NVIDIA-") for word in text.split(","))
            self._notes.append(
                Note(
                    path,
                    f'{ours}: "{text}" names whole words of a model, so A10 is no A100; there it named parts',
                )
            )
        self._edits.append(Replace(path, ours, text))

    def _mode(self, path: Path, text: str) -> None:
        self._edits.append(Remove(path))
        if text and "hami-core" not in text:
            self._notes.append(
                Note(path, f"{MODE}: {text} has no counterpart; take it out for a share", left=True)
            )

    def _policy(self, path: Path, text: str) -> None:
        self._edits.append(Remove(path))
        if text not in _POLICIES:
            self._notes.append(
                Note(path, f"{COMPUTE_POLICY} must be one of {', '.join(_POLICIES)}", left=True)
            )
            return
        for plan in self._plans:
            set_policy(plan, _POLICIES[text])

    def _core_limit(self, path: Path, text: str) -> None:
        self._edits.append(Remove(path))
        most = count_of(text) or 0
        for plan in self._plans:
            if most > int(plan.options.get("cores", most)):
                set_policy(plan, "elastic")
                plan.say(
                    f"{CORE_LIMIT}: beyond its cores it may use all that is idle, not {most} per cent at most"
                )

    def _take_scheduler_out(self) -> None:
        path = (*self._path, "spec", "schedulerName")
        name = value_at(self._document, path)
        if not isinstance(name, str) or name not in SCHEDULERS:
            return
        self._edits.append(Remove(path))
        if not any(plan.resource for plan in self._plans):
            self._notes.append(
                Note(
                    path,
                    f"schedulerName {name}, and no GPU of NVIDIA's is asked for; it is not ours to serve",
                    left=True,
                )
            )

    def _add_annotations(self) -> None:
        asking = [plan for plan in self._plans if plan.resource]
        names = dict.fromkeys(name for plan in asking for name in plan.options)
        for name in names:
            values = {plan.options.get(name) for plan in asking}
            if len(values) == 1:
                self._add(PREFIX + name, asking[0].options[name], asking[0])
                continue
            for plan in asking:
                if name in plan.options:
                    self._add(f"{PREFIX}{name}.{plan.name}", plan.options[name], plan)

    def _add(self, key: str, value: str, plan: ContainerPlan) -> None:
        there = self._annotations.get(key)
        if there is not None and str(there) == value:
            return
        if there is not None:
            plan.leave(f'{key} is there with "{there}", and its request says "{value}"; write one of the two')
        elif len(key.partition("/")[2]) > _LONGEST:
            plan.leave(
                f"{key} is longer than a name of an annotation may be; give the container a shorter name"
            )
        else:
            self._edits.append(Insert((*self._path, "metadata", "annotations"), key, value))

    def _refusal(self, edits: tuple[Edit, ...]) -> str:
        """Why our scheduler would refuse what comes out; empty where it would not."""
        pod = value_at(edited(self._document, edits), self._path)
        annotations = value_at(pod, ("metadata", "annotations")) or {}
        containers = tuple(
            PodContainer(
                str(container.get("name")),
                ContainerKind.INIT if path[-2] == "initContainers" else ContainerKind.APP,
                {
                    str(name): count_of(amount) or 0
                    for name, amount in (value_at(container, ("resources", "limits")) or {}).items()
                },
            )
            for container, path in _containers(pod, ())
        )
        units = replace(self._settings.units, rights=AnnotationRights.CHECKED)
        texts = {str(key): str(value) for key, value in annotations.items()}
        demand = demand_of(Pod("default", "pod", "uid", texts, containers), {}, units)
        return demand.text if isinstance(demand, Refusal) else ""


def _containers(pod: Mapping[str, Any], path: Path) -> Iterator[tuple[Mapping[str, Any], Path]]:
    for list_name in _CONTAINERS:
        containers = value_at(pod, ("spec", list_name))
        for position, container in enumerate(containers if isinstance(containers, list) else ()):
            if isinstance(container, dict):
                yield container, (*path, "spec", list_name, position)


def _resource_edits(plan: ContainerPlan, container: Mapping[str, Any]) -> Iterator[Edit]:
    """The first name of the dialect becomes ours, and the others go, in limits and in requests."""
    if plan.dialect is None:
        return
    for section in ("limits", "requests"):
        path = (*plan.path, "resources", section)
        there = value_at(container, ("resources", section))
        names = [name for name in plan.dialect.names if isinstance(there, dict) and name in there]
        for position, name in enumerate(names):
            if position or not plan.resource:
                yield Remove((*path, name))
            elif plan.resource in there:
                plan.leave(
                    f"{plan.resource} stands beside {name}; take one of the two out",
                    "resources",
                    section,
                    name,
                )
            else:
                yield Replace((*path, name), plan.resource, number_like(there[name], plan.count))
