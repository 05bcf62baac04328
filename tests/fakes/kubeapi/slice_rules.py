# SPDX-License-Identifier: Apache-2.0
"""What a server refuses of a ResourceSlice: sizes, names, values and the policies of shared capacity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gigaslice.core.kube.quantity import parse_quantity

Document = dict[str, Any]
_MOST_DEVICES = 128
_MOST_TAINTED_DEVICES = 64
_MOST_FIELDS = 32
_MOST_TAINTS = 16
_MOST_TEXT = 64
_MOST_VALUES = 10
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_WHERE = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_EFFECTS = ("None", "NoSchedule", "NoExecute")


def check_slice(document: Document, old: Document | None) -> Iterator[str]:
    """What is wrong with a slice, OLD being what it is to replace."""
    spec = document.get("spec") or {}
    yield from _check_spec(spec)
    devices = spec.get("devices") or []
    sparse = any(one.get("taints") or one.get("consumesCounters") for one in devices)
    most = _MOST_TAINTED_DEVICES if sparse else _MOST_DEVICES
    if len(devices) > most:
        more = " when any device has taints or consumes counters" if sparse else ""
        yield f"spec.devices: Too many: {len(devices)}: must have at most {most} items{more}"
    names = [one.get("name") for one in devices]
    for number, device in enumerate(devices):
        where = f"spec.devices[{number}]"
        if names.count(device.get("name")) > 1:
            yield f'{where}.name: Duplicate value: "{device.get("name")}"'
        yield from _check_device(device, where)
    before = (old or {}).get("spec") or {}
    for path in ("driver", "nodeName"):
        if old is not None and spec.get(path) != before.get(path):
            yield f'spec.{path}: Invalid value: "{spec.get(path)}": field is immutable'
    if old is not None and (spec.get("pool") or {}).get("name") != (before.get("pool") or {}).get("name"):
        yield "spec.pool.name: Invalid value: field is immutable"


def _check_spec(spec: Document) -> Iterator[str]:
    driver, pool = spec.get("driver") or "", spec.get("pool") or {}
    if not driver:
        yield "spec.driver: Required value"
    elif len(driver) > 63 or not _SUBDOMAIN.fullmatch(driver):
        yield f'spec.driver: Invalid value: "{driver}": a lowercase RFC 1123 subdomain must consist of…'
    parts = (pool.get("name") or "").split("/")
    if not all(_SUBDOMAIN.fullmatch(part) for part in parts):
        yield f'spec.pool.name: Invalid value: "{pool.get("name")}": a lowercase RFC 1123 subdomain must consist of…'
    if pool.get("resourceSliceCount", 0) <= 0:
        yield "spec.pool.resourceSliceCount: Invalid value: must be greater than zero"
    if pool.get("generation", 0) < 0:
        yield "spec.pool.generation: Invalid value: must be greater than or equal to zero"
    if sum(bool(spec.get(field)) for field in _WHERE) != 1:
        yield f"spec: Invalid value: exactly one of `{'`, `'.join(_WHERE)}` is required"
    if spec.get("devices") and spec.get("sharedCounters"):
        yield "spec: Invalid value: only one of `sharedCounters` or `devices` is allowed"


def _check_device(device: Document, where: str) -> Iterator[str]:
    name = device.get("name") or ""
    if not _LABEL.fullmatch(name):
        yield f'{where}.name: Invalid value: "{name}": a lowercase RFC 1123 label must consist of lower case…'
    attributes, capacities = device.get("attributes") or {}, device.get("capacity") or {}
    count = len(attributes) + len(capacities)
    if count > _MOST_FIELDS:
        yield f"{where}: Invalid value: {count}: the total number of attributes and capacities must not exceed 32"
    for key, value in attributes.items():
        yield from _check_name(key, f"{where}.attributes[{key}]")
        yield from _check_attribute(value, f"{where}.attributes[{key}]")
    for key, value in capacities.items():
        yield from _check_name(key, f"{where}.capacity[{key}]")
        shared = bool(device.get("allowMultipleAllocations"))
        yield from _check_capacity(value, shared, f"{where}.capacity[{key}]")
    taints = device.get("taints") or []
    if len(taints) > _MOST_TAINTS:
        yield f"{where}.taints: Too many: {len(taints)}: must have at most {_MOST_TAINTS} items"
    for number, taint in enumerate(taints):
        if not taint.get("key"):
            yield f"{where}.taints[{number}].key: Required value"
        if taint.get("effect") not in _EFFECTS:
            yield f'{where}.taints[{number}].effect: Unsupported value: "{taint.get("effect")}"'
        if len(taint.get("value") or "") > 63:
            yield f"{where}.taints[{number}].value: Invalid value: must be no more than 63 characters"


def _check_name(name: str, where: str) -> Iterator[str]:
    domain, slash, rest = name.rpartition("/")
    if not _IDENTIFIER.fullmatch(rest):
        yield f'{where}: Invalid value: "{rest}": a valid C identifier of at most 32 characters is required'
    if slash and (len(domain) > 63 or not _SUBDOMAIN.fullmatch(domain)):
        yield f'{where}: Invalid value: "{domain}": a lowercase RFC 1123 subdomain must consist of…'


def _check_attribute(value: Document, where: str) -> Iterator[str]:
    kinds = {"string": str, "version": str, "int": int, "bool": bool}
    if len(value) != 1 or not set(value) <= set(kinds):
        yield f"{where}: Invalid value: exactly one value must be specified"
        return
    ((kind, content),) = value.items()
    if type(content) is not kinds[kind]:
        yield f"{where}.{kind}: Invalid value: of another type"
    elif isinstance(content, str) and len(content) > _MOST_TEXT:
        yield f"{where}.{kind}: Too long: may not be more than {_MOST_TEXT} bytes"
    elif kind == "version" and not _VERSION.fullmatch(content):
        yield f'{where}.version: Invalid value: "{content}": must be a string compatible with semver.org spec 2.0.0'


def _check_capacity(capacity: Document, shared: bool, where: str) -> Iterator[str]:
    policy = capacity.get("requestPolicy")
    try:
        value = parse_quantity(capacity.get("value"))
        if policy is None:
            return
        if not shared:
            yield f"{where}.requestPolicy: Forbidden: must not be set when allowMultipleAllocations is not true"
        yield from _check_policy(policy, value, f"{where}.requestPolicy")
    except ValueError as error:
        yield f"{where}: Invalid value: {error}"


def _check_policy(policy: Document, value: int, where: str) -> Iterator[str]:
    values, limits = policy.get("validValues"), policy.get("validRange")
    if values and limits:
        yield f"{where}: Forbidden: exactly one policy can be specified, cannot specify `validValues` and `validRange`"
    if policy.get("default") is None:
        if values or limits:
            yield f"{where}.default: Required value: required when a valid value is limited"
        return
    default = parse_quantity(policy["default"])
    if default > value:
        yield f"{where}.default: Invalid value: must not be more than the capacity's value"
    if values:
        counts = [parse_quantity(one) for one in values]
        if len(counts) > _MOST_VALUES:
            yield f"{where}.validValues: Too many: {len(counts)}: must have at most {_MOST_VALUES} items"
        if counts != sorted(set(counts)):
            yield f"{where}.validValues: Invalid value: must be sorted in ascending order, without duplicates"
        if counts[-1] > value:
            yield f"{where}.validValues: Invalid value: must not be more than the capacity's value"
        if default not in counts:
            yield f"{where}.default: Invalid value: must be one of validValues"
    if limits is not None:
        yield from _check_range(limits, default, value, where)


def _check_range(limits: Document, default: int, value: int, where: str) -> Iterator[str]:
    here = f"{where}.validRange"
    if limits.get("min") is None:
        yield f"{here}.min: Required value"
        return
    least = parse_quantity(limits["min"])
    most = value if limits.get("max") is None else parse_quantity(limits["max"])
    if least > value or least > most:
        yield f"{here}.min: Invalid value: must not be more than the capacity's value or the maximum"
    if most > value:
        yield f"{here}.max: Invalid value: must not be more than the capacity's value"
    if not least <= default <= most:
        yield f"{where}.default: Invalid value: must be within the range"
    if limits.get("step") is None:
        return
    step = parse_quantity(limits["step"])
    if step <= 0:
        yield f"{here}.step: Invalid value: must be greater than zero"
        return
    if least + step > value:
        yield f"{here}.step: Invalid value: one step above the minimum must not be more than the capacity's value"
    if (default - least) % step:
        yield f"{where}.default: Invalid value: must be a multiple of the step above the minimum"
    if limits.get("max") is not None and (most - least) % step:
        yield f"{here}.max: Invalid value: must be a multiple of the step above the minimum"
