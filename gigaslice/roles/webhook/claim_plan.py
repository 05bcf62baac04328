# SPDX-License-Identifier: Apache-2.0
"""Claims in place of a pod's resources: which templates they are made from, and the JSON Patch that writes them. Pure.

A container that asks by one line gets a claim of its own. An init container runs while no other does, so it shares the
claim of a container that asks for the same: claims last as long as the pod, and nothing is lent as device IDs are. All
containers of a pod that are to be on the same GPUs share one claim, each with a request of its own.

The pod keeps its annotations. Those that the node follows while a container runs are read there as ever, and the others
have become part of the claim, so that editing them does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gigaslice.core.claims.templates import (
    CLAIMS,
    ClaimTemplate,
    ContainerClaim,
    container_claim,
    encode_templates,
    is_template_name,
)
from gigaslice.core.cluster.names import CLASS_PREFIX
from gigaslice.core.model import (
    ContainerKind,
    RequestOptions,
    SliceUnit,
    annotations_by_container,
    parse_options,
)
from gigaslice.core.text import plain
from gigaslice.core.units import format_bytes, parse_bytes
from gigaslice.roles.webhook.admission_pod import AdmissionPod, ContainerRequest
from gigaslice.roles.webhook.facts import AdmissionFacts
from gigaslice.roles.webhook.mistakes import findings
from gigaslice.roles.webhook.namespace_rules import API_LABEL, DEVICE_PLUGIN

__all__ = ["ClaimPlan", "names_own_claims", "plan_claims", "without_resources"]

_ENTRY = "gigaslice"
"""The beginning of the names that claims have in the pod."""


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """What becomes of a pod. mistakes: why it is refused, and then the rest is empty. templates: that it names."""

    mistakes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    templates: tuple[ClaimTemplate, ...] = ()
    patch: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A container and what it has of a claim. live: its options that no claim has."""

    container: ContainerRequest
    claim: ContainerClaim
    live: RequestOptions

    def may_share(self, other: _Asked) -> bool:
        return self.claim == other.claim and self.live == other.live


@dataclass(frozen=True, slots=True)
class _Slot:
    """A part of a claim: the containers that have it, one after the other."""

    users: list[_Asked]

    @property
    def claim(self) -> ContainerClaim:
        return self.users[0].claim


def names_own_claims(admission: AdmissionPod) -> list[str]:
    """Returns what the pod's claims to devices are called that come from a template of ours."""
    return [claim.name for claim in admission.claims if is_template_name(claim.template)]


def plan_claims(admission: AdmissionPod, facts: AdmissionFacts) -> ClaimPlan:
    """Returns the claims of a pod that asks for resources of ours in a namespace whose pods get claims."""
    mistakes = [*_ways(admission, facts)]
    if not mistakes:
        checked = findings(admission, facts, completed=False)
        mistakes = checked.mistakes
    if mistakes:
        return ClaimPlan(tuple(mistakes))
    annotations = annotations_by_container(admission.pod.annotations)
    asked: list[_Asked] = []
    together = False
    for container in admission.asking:
        if not any(facts.units.counts(name) for name in container.counts):
            continue  # RDMA adapters and others are counted by the device plugin of their node
        options = parse_options(
            annotations(container.name),
            container.name,
            SliceUnit(facts.units.slice_bytes, parse_bytes),
            facts.units.rights,
        )
        together |= options.same_gpu
        claim = _claim(container, options, facts)
        if isinstance(claim, ContainerClaim):
            mistakes += _too_large(container, claim, facts)
            asked.append(_Asked(container, claim, _live(options)))
        else:
            mistakes += [f"container {container.name}: {sentence}" for sentence in claim]
    slots = _slots(asked)
    if together:
        mistakes += _apart(slots)
    if mistakes:
        return ClaimPlan(tuple(mistakes))
    groups = [slots] if together else [[slot] for slot in slots]
    templates = [ClaimTemplate(tuple(slot.claim for slot in group)) for group in groups if group]
    mistakes += [sentence for template in templates for sentence in template.mistakes()]
    if mistakes or not templates:
        return ClaimPlan(tuple(mistakes), tuple(checked.warnings))
    return ClaimPlan(
        warnings=(*checked.warnings, *_held_beside(slots)),
        templates=tuple({template.name: template for template in templates}.values()),
        patch=tuple(_patch(admission, facts, list(zip(groups, templates, strict=True)))),
    )


def _ways(admission: AdmissionPod, facts: AdmissionFacts) -> Iterator[str]:
    """What makes no sense for a pod with claims, whatever it asks for."""
    for container in admission.asking:
        for name in sorted(container.classes):
            yield (
                f"container {container.name}: {CLASS_PREFIX}{plain(name)}: GPU classes are no claims yet; write "
                "gigaslice.io/vgpu-memory with the annotation gigaslice.io/gpu-type, or have the Namespace labelled "
                f"{API_LABEL}: {DEVICE_PLUGIN}"
            )
    for name in admission.ephemeral:
        yield f"container {plain(name)}: an ephemeral container cannot have GPUs of its own; leave its resources out"
    if not any(facts.units.counts(name) for container in admission.asking for name in container.counts):
        return
    if own := names_own_claims(admission):
        yield (
            f"the pod names claims of ours already ({', '.join(map(plain, own))}) and asks by resources too; a pod was "
            "copied that had been completed: leave its spec.resourceClaims and resources.claims out, or the resources"
        )
    if admission.pod.node:
        yield (
            "a pod with claims is bound by the scheduler, which allocates them; leave spec.nodeName out, and write a "
            "nodeSelector such as kubernetes.io/hostname where it must be that node"
        )


def _claim(
    container: ContainerRequest, options: RequestOptions, facts: AdmissionFacts
) -> ContainerClaim | tuple[str, ...]:
    units = facts.units
    slices = {name: count or 0 for name, count in container.counts.items() if units.is_memory(name)}
    kind = "".join(slices).removeprefix(units.memory_resource).removeprefix(".")
    offered = {
        gpu.gpu.model
        for node in facts.nodes.values()
        for gpu in node.gpus
        if kind and gpu.resource == f"{units.memory_resource}.{kind}"
    }
    return container_claim(
        options,
        slices=sum(slices.values()),
        gpus=container.counts.get(units.gpu_resource) or 0,
        slice_bytes=units.slice_bytes,
        kind=kind,
        models=sorted(offered),
    )


def _too_large(container: ContainerRequest, claim: ContainerClaim, facts: AdmissionFacts) -> list[str]:
    """A part that no GPU has. Device IDs are spread over as few GPUs as hold them; a claim says how many."""
    largest = facts.largest_gpu * facts.units.slice_bytes
    part = claim.parts[0]
    if not facts.nodes or facts.nodes_may_come or part <= largest or not largest:
        return []
    return [
        f"container {container.name}: {format_bytes(part)} of one GPU are more than any has, which is "
        f"{format_bytes(largest)}; write the annotation gigaslice.io/gpus, over how many GPUs a claim is spread"
    ]


def _live(options: RequestOptions) -> RequestOptions:
    """Of a container's options those that its node follows, whose claims must not be shared where they differ."""
    return RequestOptions(
        cores=options.cores,
        cores_elastic=options.cores_elastic,
        priority=options.priority,
        elastic=options.elastic,
        max_slices=options.max_slices,
        time_slicing=options.time_slicing,
    )


def _slots(asked: list[_Asked]) -> list[_Slot]:
    """Which containers share: an init container joins one that runs when it has ended and asks for the same."""
    slots = [_Slot([one]) for one in asked if one.container.kind is not ContainerKind.INIT]
    shared = [slot for slot in slots if slot.users[0].container.kind is ContainerKind.APP]
    for one in asked:
        if one.container.kind is not ContainerKind.INIT:
            continue
        slot = next((slot for slot in shared if one.may_share(slot.users[0])), None)
        if slot is None:
            slot = _Slot([])
            slots.append(slot)
            shared.append(slot)
        slot.users.append(one)
    return slots


def _apart(slots: list[_Slot]) -> list[str]:
    """Why containers cannot be on the same GPUs."""
    if len(slots) < 2:
        return []
    if len({len(slot.claim.parts) for slot in slots}) > 1:
        names = " and ".join(slot.users[0].container.name for slot in slots[:3])
        return [
            f"gigaslice.io/same-gpu: containers {names} ask for different numbers of GPUs; make them equal, or "
            "leave it out"
        ]
    if any(slot.claim.whole for slot in slots):
        return [
            "gigaslice.io/same-gpu: containers with a claim of a whole GPU each cannot be on the same one; write a "
            "ResourceClaim that all of them name, or leave one of exclusive and same-gpu out"
        ]
    return []


def _held_beside(slots: list[_Slot]) -> Iterator[str]:
    for slot in slots:
        first = slot.users[0].container
        if first.kind is ContainerKind.INIT and len(slots) > 1:
            size = f" ({format_bytes(sum(slot.claim.parts))})" if sum(slot.claim.parts) else ""
            yield (
                f"container {first.name}: its claim{size} is held beside the others' as long as the pod lives; an init "
                "container that asks for the same as another container shares that one's claim"
            )


def _patch(
    admission: AdmissionPod, facts: AdmissionFacts, groups: list[tuple[list[_Slot], ClaimTemplate]]
) -> Iterator[dict[str, Any]]:
    taken = {claim.name for claim in admission.claims}
    entries: list[dict[str, str]] = []
    number = 0
    for slots, template in groups:
        while (name := f"{_ENTRY}-{number}") in taken:
            number += 1
        taken.add(name)
        entries.append({"name": name, "resourceClaimTemplateName": template.name})
        for position, slot in enumerate(slots):
            requests = template.request_names(position)
            uses = [{"name": name, "request": request} for request in requests] or [{"name": name}]
            for user in slot.users:
                yield from _container_patch(user.container, facts, uses)
    yield from _additions("/spec/resourceClaims", entries, there=admission.has_claims)
    text = encode_templates([template for _, template in groups])
    if admission.has_annotations:
        yield {"op": "add", "path": f"/metadata/annotations/{_escaped(CLAIMS)}", "value": text}
    else:
        yield {"op": "add", "path": "/metadata/annotations", "value": {CLAIMS: text}}


def _container_patch(
    container: ContainerRequest, facts: AdmissionFacts, uses: list[dict[str, str]]
) -> Iterator[dict[str, Any]]:
    resources = f"{container.path}/resources"
    for name in sorted(container.counts):
        if facts.units.counts(name):
            yield {"op": "remove", "path": f"{resources}/limits/{_escaped(name)}"}
            if name in container.requested:
                yield {"op": "remove", "path": f"{resources}/requests/{_escaped(name)}"}
    yield from _additions(f"{resources}/claims", uses, there=container.has_claims)


def _additions(path: str, items: list[dict[str, str]], *, there: bool) -> Iterator[dict[str, Any]]:
    if not there:
        yield {"op": "add", "path": path, "value": items}
    else:
        yield from ({"op": "add", "path": f"{path}/-", "value": item} for item in items)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def without_resources(admission: AdmissionPod, facts: AdmissionFacts) -> list[str]:
    """Returns sentences about resources that should have become claims: of a pod as it is going to be stored."""
    return [
        f"container {container.name}: {plain(name)}: in this Namespace GPUs are claimed (label {API_LABEL}), and the "
        "webhook that writes the claims was not asked before; try again"
        for container in admission.asking
        for name in sorted(container.counts)
        if facts.units.counts(name) or name.startswith(CLASS_PREFIX)
    ]
