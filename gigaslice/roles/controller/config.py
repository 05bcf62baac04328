# SPDX-License-Identifier: Apache-2.0
"""The controller's settings: one field of `ControllerConfig` is one setting, with its flag, default and help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gigaslice.core.cluster.names import SCHEDULER_NAME
from gigaslice.role_settings import ClusterRoleSettings
from gigaslice.roles.controller.page_hosts import host_names
from gigaslice.runtime import setting_values as values
from gigaslice.runtime.settings import setting

__all__ = ["ControllerConfig"]

_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"


def _object_name(text: str) -> str:
    if not re.fullmatch(_NAME, text):
        raise ValueError("must be the name of an object, such as gigaslice-controller")
    return text


def _name_or_empty(text: str) -> str:
    return _object_name(text) if text else ""


def _resources(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not re.fullmatch(rf"{_NAME}/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?", name):
            raise ValueError(f"{name} is no name of a resource, such as example.com/gpu-memory")
    return names


def _writes(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise ValueError("must be a number from 1 to 9999")
    return int(text)


@dataclass(frozen=True, slots=True)
class ControllerConfig(ClusterRoleSettings):
    """Everything the controller can be told."""

    # fmt: off
    namespace: str = setting("NAME", _object_name, "gigaslice",
        "the controller's own namespace, which has its lease and secret")
    leader_lease: str = setting("NAME", _object_name, "gigaslice-controller",
        "the lease by which one of several replicas is chosen to write")
    identity: str = setting("NAME", _name_or_empty, "", "this replica's name; empty: the host's, in a pod the pod's")
    scheduler_name: str = setting("NAME", _object_name, SCHEDULER_NAME,
        "schedulerName of pods that ask for GPUs by class")
    resources: tuple[str, ...] = setting("NAME,…", _resources, "",
        "resources that agents offer beside --resource, --whole-gpus and what inventories name; pods that ask for them "
        "are not warned")
    automatic_classes: str = setting("on|off", values.on_off, "on",
        "whether a ResourceClass is made for each type of GPU that the cluster has")
    extended_resources: str = setting("on|off", values.on_off, "on",
        "whether an ExtendedResource object is kept for each GPU")
    pod_events: str = setting("on|off", values.on_off, "on", "whether waiting pods are told why by an event")
    writes_per_second: int = setting("COUNT", _writes, "50", "the most objects that are written in a second")
    page_address: tuple[str | None, int] | None = setting("HOST:PORT|off", values.address, "off",
        "where the read-only web page of the cluster is served; it names all pods with GPUs")
    page_hosts: tuple[str, ...] = setting("HOST,…", host_names, "",
        "names under which browsers reach the page beside localhost, IP addresses and Services of its namespace (in "
        "full, as in page.gigaslice.svc), such as that of a proxy with a login; under others it answers with an error")
    page_usage: str = setting("off|agents", values.choice("off", "agents"), "off",
        "whether the page shows what pods use: agents asks the metrics of the agents' pods in its own namespace "
        "(label app.kubernetes.io/component=node), with the token of --metrics-token-file, while somebody looks at it")
    webhook_address: tuple[str | None, int] | None = setting("HOST:PORT|off", values.address, "off",
        "where the admission webhook is served by TLS")
    webhook_secret: str = setting("NAME", _object_name, "gigaslice-webhook", "the secret with its certificates")
    webhook_service: str = setting("NAME", _object_name, "gigaslice-webhook",
        "the Service by which the API server reaches it")
    webhook_configuration: str = setting("NAME", _object_name, "gigaslice",
        "the name of its mutating and validating webhook configurations")
    api: str = setting("device-plugin|dra", values.choice("device-plugin", "dra"), "device-plugin",
        "by which API pods get GPUs in namespaces without the label gigaslice.io/api: by the kubelet's device plugins, "
        "or by claims that admission makes of their requests (Kubernetes 1.36)")
    oversize: str = setting("refuse|warn", values.choice("refuse", "warn"), "refuse",
        "what admission does with a pod that asks for more than any node has: warn, where larger nodes may be added")
    # fmt: on
