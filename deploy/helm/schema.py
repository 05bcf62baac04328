# SPDX-License-Identifier: Apache-2.0
"""Writes gigaslice/values.schema.json beside this file: what Helm takes for the chart's values.

    python -m deploy.helm.schema            the file anew
    python -m deploy.helm.schema --check    whether it is what this program makes

The keys and their plain types are those of values.yaml. A role's settings are those of its table, and what a setting
takes is said for its parser, in PARSERS. What is closer than a plain type, or open, is in VALUES. Patterns are in what
Go (Helm), Python (the tests) and JavaScript (editors) have in common: no look-around, no flags, [0-9] for a digit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from agent import config
from deploy.generated import write_or_check
from gigaslice.core import units
from gigaslice.core.dataset.source_spec import KINDS
from gigaslice.core.model.annotation_rights import AnnotationRights, annotation_rights
from gigaslice.roles.controller import config as controller
from gigaslice.roles.controller.page_hosts import host_names
from gigaslice.roles.dataset_node import settings as dataset
from gigaslice.roles.scheduler import settings as scheduler
from gigaslice.runtime import setting_values as values
from gigaslice.runtime.settings import CONFIG_VARIABLE, ENV_PREFIX, Setting, Settings, table

CHART = Path(__file__).resolve().parent / "gigaslice"
FILE = CHART / "values.schema.json"
Schema = dict[str, Any]

ROLES: dict[str, type[Settings]] = {
    "": config.Config,
    "dataset.": dataset.DatasetSettings,
    "scheduler.": scheduler.SchedulerSettings,
    "controller.": controller.ControllerConfig,
}
"""Where a role's values are -> its table."""

# --- what settings take -----------------------------------------------------------------------------------------------


def either_case(word: str) -> str:
    """A pattern for WORD in upper and lower case."""
    return "".join(f"[{letter.upper()}{letter}]" for letter in word)


def listed(item: str) -> str:
    """A pattern for ITEM any number of times, with commas between and spaces around."""
    return f" *({item})?( *, *({item})?)* *"


OFF = f"({'|'.join(map(either_case, ('off', 'false', 'no')))})"
ON = f"({'|'.join(map(either_case, ('on', 'true', 'yes')))})"
_FRACTION = r"0+\.[0-9]{0,6}[1-9][0-9]{0,6}"
_BYTES = (  # 1048576 or more
    r"(104857[6-9]|10485[89][0-9]|1048[6-9][0-9]{2}|1049[0-9]{3}|10[5-9][0-9]{4}|1[1-9][0-9]{5}|[2-9][0-9]{6}"
    r"|[1-9][0-9]{7,14})"
)
SIZE = (
    rf"(0*[1-9][0-9]{{0,14}}(\.0{{1,7}})?[bB]|0*{_BYTES}(\.0{{1,7}})?"
    rf"|0*[1-9][0-9]{{0,2}}(\.[0-9]{{1,7}})?|0*[1-9][0-9]{{3}}(\.0{{1,7}})?|0*[1-8][0-9]{{3}}\.[0-9]{{1,7}}|{_FRACTION}"
    rf"|(0*[1-9][0-9]{{0,14}}(\.[0-9]{{1,7}})?|{_FRACTION})[kKmMgGtT]([iI][bB]?)?)"
)
TIME = (
    r"(0*([1-9][0-9]{0,4}(\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)s?|0*([1-9][0-9]{0,3}(\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)m"
    r"|0*[1-9][0-9]{2,7}(\.[0-9]+)?ms)"
)
PORT = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[0-5]?[0-9]{1,4})"
ADDRESS = rf"([^:]*|\[.*):{PORT}"
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN = rf"{LABEL}(\.{LABEL})*"
OBJECT = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
NAMESPACE = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
RESOURCE_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
RESOURCE = f"{DOMAIN}/{RESOURCE_NAME}"
GPU = "GPU(-[0-9a-fA-F]+){5}"
LABEL_PAIR = f"({GPU}/)?{RESOURCE_NAME}=({RESOURCE_NAME})?"
TYPE_PAIR = "[^,=]*[A-Za-z0-9][^,=]*= *[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?"
PLACE = f"/[^,]*|({'|'.join(sorted(KINDS - {'file'}))})(:[^,]*)?|file(:///[^,]*)?"
HOST_LABEL = "[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
HOST = rf"{HOST_LABEL}(\.{HOST_LABEL})*\.?"
VARIABLE = r"\$\([-._a-zA-Z][-._a-zA-Z0-9]*\)"
"""What the kubelet replaces in a container's arguments by a variable of extraEnv."""


def text(pattern: str, *, off: bool = False, never: Schema | None = None) -> Schema:
    """A text that PATTERN matches as a whole, or that has a variable in it.

    Args:
        pattern: For the whole text.
        off: Whether off is taken too, which is false in YAML where it is written plainly.
        never: What is not taken all the same.
    """
    refused = [{"const": True}] * off + ([{"type": "string"} | never] if never else [])
    return {
        "type": ["string", "boolean"] if off else "string",
        "pattern": f"^({pattern}{'|' + OFF if off else ''})$|{VARIABLE}",
        **({"not": {"anyOf": refused}} if refused else {}),
    }


def numeric(form: Schema, kind: str, least: float, most: float) -> Schema:
    """What the text FORM takes, and a number of YAML. KIND: integer or number."""
    types = form["type"] if isinstance(form["type"], list) else [form["type"]]
    return form | {"type": [*types, kind], "minimum": least, "maximum": most}


def size(pattern: str = SIZE, *, off: bool = False) -> Schema:
    """An amount of memory, in a text of PATTERN with its unit, in GiB or in bytes."""
    form = numeric(text(pattern, off=off), "integer", 1, units.MAX_BYTES)
    between: Schema = {"type": "integer", "minimum": 10000, "maximum": (1 << 20) - 1}
    return form | {"not": {"anyOf": [*form.get("not", {}).get("anyOf", []), between]}}


RESERVED = {"pattern": r"^requests\.|kubernetes\.io/"}

PARSERS: dict[Callable[[str], object], Schema] = {
    str: {"type": "string"},
    units.parse_bytes: size(),
    values.absolute_path: text("/.*"),
    values.address: text(ADDRESS, off=True),
    values.auto_off: text("auto", off=True),
    values.count: numeric(text("[1-9][0-9]{0,2}"), "integer", 1, 999),
    values.node_name: text(f"({DOMAIN})?"),
    values.on_off: {"type": ["string", "boolean"], "pattern": f"^({ON}|{OFF})$"},
    values.optional_path: text("(/.*)?"),
    values.path_or_off: text("/.*", off=True),
    values.resource_name: text(RESOURCE, never=RESERVED),
    values.resource_or_off: text(RESOURCE, off=True, never=RESERVED),
    values.seconds: numeric(text(TIME), "number", 0.1, 86400),
    values.weight: numeric(text(r"0?[0-9]{1,2}(\.[0-9]{1,3})?|100(\.0{1,3})?"), "number", 0, 100),
    config._inventory: text(".+"),
    config._namespaces: text(f"( *{NAMESPACE} *(, *{NAMESPACE} *)*)?", off=True),
    config._labels: text(f"( *{LABEL_PAIR} *(, *{LABEL_PAIR} *)*)?"),
    config._lending: size(f"( *({GPU}=)?{SIZE} *(, *({GPU}=)?{SIZE} *)*)?", off=True),
    config._types: text(f"auto|{TYPE_PAIR} *(,{TYPE_PAIR} *)*", off=True),
    controller._name_or_empty: text(f"({OBJECT})?"),
    controller._object_name: text(OBJECT),
    controller._resources: text(listed(f"{OBJECT}/{RESOURCE_NAME}")),
    controller._writes: numeric(text("[1-9][0-9]{0,3}"), "integer", 1, 9999),
    dataset._allowed: text(listed(PLACE)),
    dataset._namespaces: text(listed(NAMESPACE)),
    dataset._percent: numeric(text("0*([0-9]|[1-8][0-9]|90)%?"), "integer", 0, 90),
    dataset._quotas: text(listed(f"[^,=]*[^,= ][^,=]*= *{SIZE}")),
    dataset._size_or_off: size(off=True),
    dataset._size_or_zero: size(off=True),
    annotation_rights: {"enum": [rights.value for rights in AnnotationRights]},
    host_names: text(listed(HOST)),
    scheduler._lease: text("[a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-a-z0-9.]{0,252}", off=True),
}
"""What a parser takes. A number or a plain on or off of YAML is the text that the chart makes of it."""


def words(*options: str) -> Schema:
    """One of OPTIONS. Where off is one of them it is taken in all its spellings, and as false."""
    if "off" not in options:
        return {"enum": list(options) + [True] * ("on" in options)}
    form = text("|".join(option for option in options if option != "off"), off=True)
    return {key: part for key, part in form.items() if key != "not" or "on" not in options}


def closed(properties: dict[str, Schema]) -> Schema:
    """An object that has no others than PROPERTIES."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def taken(setting: Setting) -> Schema:
    """What SETTING takes.

    Raises:
        KeyError: Nothing is said of its parser; PARSERS needs a line.
    """
    if isinstance(setting.parse, values.WordChoice):
        return words(*setting.parse.options)
    if setting.parse is values.address and not setting.metavar.endswith("|off"):
        return text(ADDRESS)
    return PARSERS[setting.parse]


def settings(role: type[Settings]) -> Schema:
    """The settings of ROLE by their keys in its file."""
    return closed({one.key: {"description": one.help} | taken(one) for one in table(role)})


def arguments(role: type[Settings]) -> Schema:
    """Further flags of ROLE, with their values behind "=" or as the next argument."""
    flags = "|".join(["config", *(one.flag for one in table(role))])
    return {"type": "array", "items": {"type": "string", "pattern": f"^--({flags})(=|$)|^[^-]|^$"}}


def variables(role: type[Settings]) -> Schema:
    """Variables of ROLE's container; of those with our prefix only what ROLE knows."""
    ours = [CONFIG_VARIABLE, *(one.variable for one in table(role))]
    name = {
        "type": "string",
        "minLength": 1,
        "anyOf": [{"not": {"pattern": f"^{ENV_PREFIX}"}}, {"enum": ours}],
    }
    item = closed({"name": name, "value": {"type": "string"}, "valueFrom": FREE})
    return {"type": "array", "items": item | {"required": ["name"]}}


# --- the other values -------------------------------------------------------------------------------------------------

FREE: Schema = {"type": "object"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
OBJECTS = {"type": "array", "items": FREE}
PATH = {"type": "string", "pattern": "^/.*[^/]$"}
SOME = {"type": "string", "minLength": 1}
DIGEST = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
REGISTRY = {  # a host, a port, and a path that mirrors often have; without https:// and without a slash at its end
    "type": "string",
    "pattern": "^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]([-a-z0-9._]*[a-z0-9])?)*)?$",
}
NODES = {"type": ["integer", "string"], "minimum": 0, "pattern": "^([0-9]+|[1-9]?[0-9]%|100%)$"}

VALUES: dict[str, Schema] = {
    "global": FREE | {"properties": {"imageRegistry": REGISTRY}},  # of all charts of an installation
    "image.repository": SOME,
    "image.digest": DIGEST,
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "imagePullSecrets": OBJECTS,
    "extraEnv": variables(config.Config),
    "kubeletDir": PATH,
    "stateDir": PATH,
    "maxSurge": NODES,
    "node.api": words("device-plugin", "dra"),
    "networkPolicy.from": OBJECTS,
    "metrics.rules.enabled": {"enum": ["auto", True, False]},
    "metrics.rules.labels": TEXTS,
    "metrics.podMonitor.enabled": {"enum": ["auto", True, False]},
    "metrics.podMonitor.labels": TEXTS,
    "metrics.podMonitor.interval": {"type": "string", "pattern": "^([1-9][0-9]*(ms|s|m))?$"},
    "serviceAccount.annotations": TEXTS,
    "rbac.evict": {"enum": ["auto", True, False]},
    "driverLimits.mode": words("auto", "required", "off"),
    "driverLimits.margin": size(f"({SIZE})?"),
    "driverLimits.exempt": {"type": "array", "items": {"type": "string", "pattern": f"^{NAMESPACE}$"}},
    "dataset.stateDir": PATH,
    "scheduler.mode": {"enum": ["second", "extender", "none"]},
    "scheduler.name": {"type": "string", "pattern": f"^({OBJECT})?$"},
    "scheduler.replicas": {"type": "integer", "minimum": 1},
    "scheduler.managedResources": {"type": "array", "items": {"type": "string", "pattern": f"^{RESOURCE}$"}},
    "scheduler.kubeScheduler.repository": SOME,
    "scheduler.kubeScheduler.digest": DIGEST,
    "scheduler.kubeScheduler.extraArgs": {"type": "array", "items": {"type": "string"}},
    "controller.replicas": {"type": "integer", "minimum": 1},
    "admission.mode": {"enum": ["auto", "policy", "webhook", "none"]},
    "admission.objectSelector": FREE,
    "admission.rights": {"enum": ["deny", "warn", "off", False]},
    "admission.freeCores": {"type": "integer", "minimum": 0, "maximum": 100},
} | {
    f"{where}{key}": schema
    for where, role in ROLES.items()
    for key, schema in (("settings", settings(role)), ("extraArgs", arguments(role)))
}
"""Values by their path that are not simply of the type that they have in values.yaml."""

ANYWHERE: dict[str, Schema] = {
    "affinity": FREE,
    "maxUnavailable": NODES,
    "nodeSelector": TEXTS,
    "podAnnotations": TEXTS,
    "podLabels": TEXTS,
    "resources": FREE,
    "tolerations": OBJECTS,
}
"""The same by their last name: what Kubernetes defines, and checks."""


def schema_of(value: object, path: str) -> Schema:
    """What may stand at PATH, where values.yaml has VALUE.

    Raises:
        ValueError: values.yaml has nothing there that says it.
    """
    closer = VALUES.get(path) or ANYWHERE.get(path.rpartition(".")[2])
    if closer is not None:
        return closer
    if isinstance(value, dict) and value:
        return closed({key: schema_of(below, f"{path}.{key}") for key, below in value.items()})
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer", "minimum": 0}
    if isinstance(value, str):
        return {"type": "string"}
    if value == []:
        return {"type": "array", "items": {"type": "string"}}
    raise ValueError(f"values.yaml: {path}: say in VALUES of {Path(__file__).name} what it takes")


def made(chart: Path = CHART) -> str:
    """The text of the schema.

    Raises:
        ValueError: VALUES and values.yaml do not have the same paths.
    """
    defaults = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    if stale := sorted(set(VALUES) - set(paths(defaults))):
        raise ValueError(f"VALUES: values.yaml has no {', '.join(stale)}")
    of_values = {key: schema_of(value, key) for key, value in defaults.items()}
    whole_schema = {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "$comment": "Made by deploy/helm/schema.py; not to be edited.",
        **closed(of_values),
    }
    return json.dumps(whole_schema, indent=2, ensure_ascii=False) + "\n"


def paths(found: object, above: str = "") -> Iterable[str]:
    """The path of every value below FOUND."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield f"{above}{key}"
            yield from paths(value, f"{above}{key}.")


if __name__ == "__main__":
    sys.exit(write_or_check(lambda: {FILE: made()}, "chart-schema", __doc__))
