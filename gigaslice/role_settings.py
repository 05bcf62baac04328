# SPDX-License-Identifier: Apache-2.0
"""The settings that several roles have: each stands once, in the base class of the tables that share it.

    LogSettings                  every role: log
      RoleSettings               those but for driver limits: metrics and probes, the API server's credentials
        NodeRoleSettings         those of one node: the node agent, the dataset service
        ClusterRoleSettings      those of the cluster, which count as the agents do: the scheduler, the controller

A role whose default or whose help differs declares the field again. In help texts, files and the reference the role's
own settings come first and the shared ones last, as `gigaslice.runtime.settings.table` orders them.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gigaslice.core import units
from gigaslice.core.cluster.names import GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.core.errors import ConfigError
from gigaslice.core.model import AnnotationRights, annotation_rights
from gigaslice.runtime import setting_values as values
from gigaslice.runtime import settings
from gigaslice.runtime.settings import Settings, setting

if TYPE_CHECKING:
    from gigaslice.core.cluster.demand import ClusterUnits

__all__ = [
    "SETTINGS_DESCRIPTION",
    "ClusterRoleSettings",
    "LogSettings",
    "NodeRoleSettings",
    "RoleSettings",
    "from_command_line",
    "kubernetes_service",
    "load",
    "refuse_unmade",
    "unmade",
]

SETTINGS_DESCRIPTION = (
    "Flags can also be set in the environment (GIGASLICE_STATE_DIR) or in the file (stateDir)."
)
"""In the help of every command that loads settings."""


@dataclass(frozen=True, slots=True)
class LogSettings(Settings):
    """What every role can be told."""

    # fmt: off
    log_level: str = setting("LEVEL", values.choice("debug", "info", "warning", "error"), "info",
        "least severity that is logged")
    log_format: str = setting("json|console", values.choice("json", "console"), "json", "how log lines look")
    # fmt: on


@dataclass(frozen=True, slots=True)
class RoleSettings(LogSettings):
    """What a role can be told that is asked how it is, and asks the API server."""

    # fmt: off
    metrics_address: tuple[str | None, int] | None = setting("HOST:PORT|off", values.address, ":9446",
        "where /metrics, /healthz and /readyz are served; without a host on every address")
    metrics_token_file: Path | None = setting("FILE", values.optional_path, "",
        "a token without which /metrics is refused (Authorization: Bearer …)")
    kubeconfig: Path | None = setting("FILE", values.optional_path, "",
        "how to reach the API server from outside a pod; default: $KUBECONFIG, then the pod's service account")
    # fmt: on
    kubernetes_service: str = ""
    """"host:port" of the API server, which the kubelet tells every container; not a setting."""
    kubeconfig_variable: str = ""
    """$KUBECONFIG, which counts where kubeconfig is not set; kubectl's, and not a setting."""


@dataclass(frozen=True, slots=True)
class NodeRoleSettings(RoleSettings):
    """What a role can be told that runs on every node."""

    # fmt: off
    node_name: str = setting("NAME", values.node_name, "",
        "this node's name in the cluster; empty: the host's name")
    kube_api: str = setting("auto|off", values.auto_off, "auto",
        "whether pods of this node are read from the API server and events are sent, where there is access")
    # fmt: on

    @property
    def node(self) -> str:
        """This node's name; the host's, where none is set."""
        return self.node_name or platform.node().lower()


@dataclass(frozen=True, slots=True)
class ClusterRoleSettings(RoleSettings):
    """What a role can be told that judges pods of the whole cluster."""

    # fmt: off
    resource: str = setting("NAME", values.resource_name, MEMORY_RESOURCE,
        "name of the resource that pods ask for, as set on the agents; NAME.TYPE is that of one type of GPU")
    whole_gpus: str = setting("NAME", values.resource_name, GPU_RESOURCE,
        "name of the resource of whole GPUs, as set on the agents; GPUs of a class without a share are counted by it")
    slice_bytes: int = setting("SIZE", units.parse_bytes, "1GiB",
        "GPU memory of one unit of the resource, as set on the agents", flag="slice")
    annotation_rights: AnnotationRights = setting("refuse|checked", annotation_rights, "refuse",
        "what becomes of annotations that take more than is counted for a pod, such as gigaslice.io/exclusive: checked "
        "only where the cluster's policy has compared them with labels of the Namespace; as set on the agents")
    # fmt: on

    @property
    def units(self) -> ClusterUnits:
        """What pods count in."""
        from gigaslice.core.cluster.demand import ClusterUnits  # noqa: PLC0415  (0.6 MiB that a node's roles do without)

        return ClusterUnits(self.slice_bytes, self.resource, self.whole_gpus, self.annotation_rights)


R = TypeVar("R", bound=RoleSettings)


def load(
    role: type[R],
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    *,
    mistakes: tuple[str, ...] = (),
) -> R:
    """The configuration of ROLE; see `gigaslice.runtime.settings.load`."""
    config = settings.load(role, flags, environ, mistakes=mistakes)
    return replace(
        config,
        kubernetes_service=kubernetes_service(environ),
        kubeconfig_variable=environ.get("KUBECONFIG", ""),
    )


def from_command_line(role: type[R], arguments: argparse.Namespace) -> R:
    """The configuration of ROLE by ARGUMENTS and the environment. Raises ConfigError with every mistake."""
    return load(role, settings.flags_of(role, arguments), settings.environment(), mistakes=arguments.mistakes)


def refuse_unmade(config: Settings, *fields: str, hint: str = "") -> None:
    """Refuses a start that would make a default directory, such as one below /var, that nobody has asked for.

    A pod has its directories mounted, and where a service has run before they are there. They are missing where a
    person types a command to see what it does: that must leave nothing behind.

    Args:
        config: Of a role that is about to start.
        fields: Those of its directories that the role makes.
        hint: What else the person may have meant.

    Raises:
        ConfigError: With a line for each directory that is a default and not there.
    """
    mistakes = [
        f"there is no {directory}, the default of --{flag}; write --{flag}={directory} to have it made, "
        f"or name another directory{hint}"
        for flag, directory in unmade(config, *fields)
    ]
    if mistakes:
        raise ConfigError(mistakes)


def unmade(config: Settings, *fields: str) -> list[tuple[str, Path]]:
    """The directories of CONFIG in FIELDS that are defaults and not there, each with its flag before it."""
    return [
        (entry.flag, directory)
        for entry in settings.table(type(config))
        if entry.attribute in config.defaulted and entry.attribute in fields
        for directory in (getattr(config, entry.attribute),)
        if not os.path.lexists(directory)
    ]


def kubernetes_service(environ: Mapping[str, str]) -> str:
    """Host and port of the API server, "host:port" as the kubelet tells every container; empty outside of one."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    usable = host and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) <= 65535
    return f"{host}:{port}" if usable else ""
