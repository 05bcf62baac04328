# SPDX-License-Identifier: Apache-2.0
"""Pods as the API server writes them, to values. Pure.

A pod's document is some ten kilobytes of which a few dozen bytes matter; the outlines here name them, for readers that
make values of nothing else. Nothing is taken for what it ought to be: every value that goes on from here has been
checked, and anything else in a pod ends in ValueError or in a pod that says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gigaslice.core.kube.fields import object_at
from gigaslice.core.kube.object_reader import ANY, PRESENCE, ObjectReader, Outline
from gigaslice.core.kube.pod_fields import ContainerFields, containers_in, count_of, object_in, objects_in
from gigaslice.core.model import ClaimUse, CsiVolume, Pod, PodClaim, PodContainer

__all__ = ["parse_pod", "pod_change_reader", "pod_list_reader", "unread_pod"]

_NOISE = "kubectl.kubernetes.io/last-applied-configuration"
_MAX_ANNOTATION = 4096  # characters; nothing that is meant for the agent is longer
_OURS, _MAX_OURS = "gigaslice.io/", 65536  # but an assignment of many containers and GPUs
_MAX_TEXT = 253
_MAX_ATTRIBUTES = 64  # of one volume
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123, as of namespaces and containers
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[!-~]{1,128}")

_CONTAINER: Outline = {
    "name": PRESENCE,
    "restartPolicy": PRESENCE,
    "resources": {
        "requests": {ANY: PRESENCE},
        "limits": {ANY: PRESENCE},
        "claims": {"name": PRESENCE, "request": PRESENCE},
    },
    "volumeMounts": {"name": PRESENCE},
}
_VOLUME: Outline = {
    "name": PRESENCE,
    "csi": {
        "driver": PRESENCE,
        "volumeAttributes": {ANY: PRESENCE},
        "nodePublishSecretRef": {"name": PRESENCE},
    },
    "persistentVolumeClaim": PRESENCE,
    "ephemeral": PRESENCE,
}
_METADATA: Outline = dict.fromkeys(
    ("namespace", "name", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"), PRESENCE
)
_NAMES: Outline = {"metadata": _METADATA, "spec": {"nodeName": PRESENCE}, "status": {"phase": PRESENCE}}
_POD: Outline = {
    "metadata": {
        **_METADATA,
        "annotations": {_NOISE: None, ANY: PRESENCE},
        "ownerReferences": {"controller": PRESENCE},
    },
    "spec": {
        **dict.fromkeys(("nodeName", "schedulerName", "priority"), PRESENCE),
        "resourceClaims": dict.fromkeys(("name", "resourceClaimName", "resourceClaimTemplateName"), PRESENCE),
        **dict.fromkeys(("initContainers", "containers"), _CONTAINER),
        "volumes": _VOLUME,
    },
    "status": {
        "phase": PRESENCE,
        "nominatedNodeName": PRESENCE,
        "resourceClaimStatuses": {"name": PRESENCE, "resourceClaimName": PRESENCE},
        "conditions": {"type": PRESENCE, "status": PRESENCE},
    },
}
_EVENT: Outline = {**_POD, "code": PRESENCE, "message": PRESENCE}  # the object of an ERROR is a Status
_LIST: Outline = {"metadata": {"resourceVersion": PRESENCE, "continue": PRESENCE}}


def pod_list_reader() -> ObjectReader:
    """Returns a reader of the pods of a PodList."""
    return ObjectReader(_POD, _NAMES, items="items", envelope=_LIST)


def pod_change_reader() -> ObjectReader:
    """Returns a reader of the events of a watch of pods."""
    return ObjectReader({"type": PRESENCE, "object": _EVENT}, {"type": PRESENCE, "object": _NAMES})


def parse_pod(document: Mapping[str, Any]) -> Pod:
    """The Pod of a document. Raises ValueError for what is none."""
    metadata, spec, status = (object_in(document, key) for key in ("metadata", "spec", "status"))
    return Pod(
        namespace=_matched(metadata, "namespace", _LABEL),
        name=_matched(metadata, "name", _NAME),
        uid=_matched(metadata, "uid", _UID),
        annotations={
            key: value
            for key, value in object_in(metadata, "annotations", "metadata.").items()
            if key != _NOISE
            and isinstance(value, str)
            and len(value) <= (_MAX_OURS if key.startswith(_OURS) else _MAX_ANNOTATION)
        },
        containers=tuple(map(_container, containers_in(spec))),
        phase=_phase(status.get("phase")),
        controlled=any(
            owner.get("controller") is True for owner in objects_in(metadata, "ownerReferences", "metadata.")
        ),
        ending=metadata.get("deletionTimestamp") is not None,
        node=_short(spec, "nodeName"),
        scheduler=_short(spec, "schedulerName"),
        priority=_priority(spec.get("priority")),
        created=_short(metadata, "creationTimestamp"),
        volumes=_csi_volumes(spec),
        nominated=_short(status, "nominatedNodeName"),
        awaits_provisioning=_awaits_provisioning(spec),
        claims=_claims(spec, status),
        sandboxed=_sandboxed(status),
        version=_short(metadata, "resourceVersion"),
    )


def unread_pod(document: Mapping[str, Any]) -> Pod | None:
    """What stands for a pod that `parse_pod` refuses: its names and its node, and `readable` is False.

    It may have GPUs, so it must not be as if it were not there. None for a pod that does not even have names and a UID.
    """
    metadata, spec = object_at(document, "metadata"), object_at(document, "spec")
    try:
        return Pod(
            namespace=_matched(metadata, "namespace", _LABEL),
            name=_matched(metadata, "name", _NAME),
            uid=_matched(metadata, "uid", _UID),
            phase=_short(object_at(document, "status"), "phase") or "Unknown",
            node=_short(spec, "nodeName"),
            readable=False,
        )
    except ValueError:
        return None


def _matched(document: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    text = document.get(key)
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(f"{key} is none")
    return text


def _short(document: Mapping[str, Any], key: str) -> str:
    """Returns the text at KEY, empty where there is none. Other parts of the pod do not depend on it."""
    text = document.get(key)
    return text if isinstance(text, str) and len(text) <= _MAX_TEXT else ""


def _priority(priority: object) -> int:
    return (
        priority
        if isinstance(priority, int) and not isinstance(priority, bool) and abs(priority) < 1 << 31
        else 0
    )


def _phase(phase: object) -> str:
    if phase is not None and not isinstance(phase, str):
        raise ValueError("phase is no text")
    return phase or "Pending"


def _container(fields: ContainerFields) -> PodContainer:
    """What is no quantity counts as none: what another vendor's resource says must not hide the pod from us."""
    asked = {**fields.requests, **fields.limits}
    counts = {
        name: count
        for name, quantity in asked.items()
        if "/" in name and (count := count_of(quantity) or 0) > 0
    }
    return PodContainer(
        _matched(fields.document, "name", _LABEL), fields.kind, counts, _claim_uses(fields.document)
    )


def _claim_uses(container: Mapping[str, Any]) -> tuple[ClaimUse, ...]:
    """What cannot be understood of them is left out, as of claims and volumes: a pod must not be lost for it."""
    try:
        uses = objects_in(object_in(container, "resources"), "claims")
    except ValueError:
        return ()
    return tuple(ClaimUse(name, _short(use, "request")) for use in uses if (name := _short(use, "name")))


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[PodClaim, ...]:
    """The claims of a pod, each with its object: named in the spec, or made from a template and named in the status."""
    try:
        statuses = {
            _short(made, "name"): _short(made, "resourceClaimName")
            for made in objects_in(status, "resourceClaimStatuses")
        }
        claims = objects_in(spec, "resourceClaims")
    except ValueError:
        return ()
    return tuple(
        PodClaim(
            name,
            _short(claim, "resourceClaimName") or statuses.get(name, ""),
            _short(claim, "resourceClaimTemplateName"),
        )
        for claim in claims
        if (name := _short(claim, "name"))
    )


def _sandboxed(status: Mapping[str, Any]) -> bool:
    """Whether the kubelet says that the sandbox is there; where it does not say (before 1.29), whether the pod runs."""
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == "PodReadyToStartContainers":
            return condition.get("status") == "True"
    return status.get("phase") == "Running"


def _awaits_provisioning(spec: Mapping[str, Any]) -> bool:
    """Whether it has volumes by claims, or claims to devices."""
    volumes = spec.get("volumes")
    return bool(spec.get("resourceClaims")) or any(
        isinstance(volume, dict) and ("persistentVolumeClaim" in volume or "ephemeral" in volume)
        for volume in (volumes if isinstance(volumes, list) else ())
    )


def _csi_volumes(spec: Mapping[str, Any]) -> tuple[CsiVolume, ...]:
    """The inline CSI volumes. What cannot be understood of them is left out: a pod must not be lost for a volume."""
    try:
        csi_volumes = {
            name: (csi, driver)
            for volume in objects_in(spec, "volumes")
            if (csi := object_in(volume, "csi"))
            and (name := _short(volume, "name"))
            and (driver := _short(csi, "driver"))
        }
        mounts = [
            (
                _short(container, "name"),
                {_short(mount, "name") for mount in objects_in(container, "volumeMounts")},
            )
            for kind in (("initContainers", "containers") if csi_volumes else ())
            for container in objects_in(spec, kind)
        ]
        return tuple(
            CsiVolume(
                name=name,
                driver=driver,
                attributes={
                    key: value
                    for key, value in list(object_in(csi, "volumeAttributes").items())[:_MAX_ATTRIBUTES]
                    if isinstance(value, str) and len(value) <= _MAX_ANNOTATION
                },
                secret=_short(object_in(csi, "nodePublishSecretRef"), "name"),
                mounted_by=tuple(container for container, names in mounts if name in names),
            )
            for name, (csi, driver) in csi_volumes.items()
        )
    except ValueError:
        return ()
