# SPDX-License-Identifier: Apache-2.0
"""The node agent's settings: one field of `Config` is one setting, with its flag, default and help.

How flags, environment and file are read is `gigaslice.runtime.settings`. A new setting is one field here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gigaslice import role_settings
from gigaslice.core import units
from gigaslice.core.model import AnnotationRights, ResourceTypes, annotation_rights
from gigaslice.role_settings import NodeRoleSettings
from gigaslice.runtime import setting_values as values
from gigaslice.runtime import settings
from gigaslice.runtime.settings import setting

__all__ = ["SETTINGS", "Config", "load", "made_by", "socket_name"]

_GPU_UUID = r"GPU(-[0-9a-fA-F]+){5}"
_TYPE = r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?"
_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_LABEL_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_DERIVED = (
    "vendor model memory cores architecture computeCapability driver cudaDriver driverLimits numa nvlink pcieRoot node "
    "uuid"
)
_SOCKET_PATH_MAX = 107  # bytes of sockaddr_un.sun_path without the final zero


def socket_name(resource: str) -> str:
    """File name of a resource's socket in the kubelet's directory."""
    return resource.replace("/", "_") + ".sock"


def _inventory(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError('must be "nvml" or name a file')
    return text if text == "nvml" else str(Path(text).absolute())


def _lending(text: str) -> Mapping[str, int]:
    """Bytes by UUID, and for all GPUs of the node together under the empty name."""
    sizes: dict[str, int] = {}
    for item in text.split(",") if text and not values.is_off(text) else ():
        name, equals, size = item.strip().rpartition("=")
        if equals and not re.fullmatch(_GPU_UUID, name):
            raise ValueError(f"{name!r} is no GPU; write UUIDs as nvidia-smi -L shows them")
        key, size_bytes = "GPU" + name[3:].lower() if name else "", units.parse_bytes(size)
        if key in sizes:
            raise ValueError("one size is given twice; give one for the node, and one for each GPU at most")
        sizes[key] = size_bytes
    return sizes


def _types(text: str) -> tuple[tuple[str, str], ...] | None:
    """Pairs of a model's words and a type; none for types by themselves, None where the setting is off."""
    if values.is_off(text):
        return None
    if text == "auto":
        return ()
    types = []
    for item in text.split(","):
        pattern, equals, name = (part.strip() for part in item.partition("="))
        if not equals or not re.search(r"[A-Za-z0-9]", pattern) or not re.fullmatch(_TYPE, name):
            raise ValueError(
                f"{item.strip()!r} is no type; write auto, or words of a model and a name of lower-case letters, "
                "digits and '-', such as H100=h100,RTX 6000 Ada=rtx-6000"
            )
        types.append((pattern, name))
    return tuple(types)


def _labels(text: str) -> Mapping[str, Mapping[str, str]]:
    """Labels by UUID, and of all GPUs of the node under the empty name."""
    labels_by_gpu: dict[str, dict[str, str]] = {}
    for item in text.split(",") if text else ():
        name, equals, value = item.strip().partition("=")
        gpu, slash, key = name.rpartition("/")
        if slash and not re.fullmatch(_GPU_UUID, gpu):
            raise ValueError(f"{gpu!r} is no GPU; write UUIDs as nvidia-smi -L shows them")
        if not equals or not re.fullmatch(_LABEL_KEY, key) or not re.fullmatch(_LABEL_VALUE, value):
            raise ValueError(
                f"{item.strip()!r} is no label; write key=value of letters, digits, '-', '_' and '.', such as rack=r7"
            )
        if key in _DERIVED.split():
            raise ValueError(f"{key!r} is a property that every GPU has by itself; choose another key")
        labels = labels_by_gpu.setdefault("GPU" + gpu[3:].lower() if gpu else "", {})
        if key in labels:
            raise ValueError(f"{key!r} is given twice")
        labels[key] = value
    return labels_by_gpu


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text and not values.is_off(text) else ()
    for name in names:
        if not re.fullmatch(_NAMESPACE, name):
            raise ValueError(f"{name!r} is no name of a namespace; write them with commas between, or off")
    return names


@dataclass(frozen=True, slots=True)
class Config(NodeRoleSettings):
    """Everything the node agent can be told. Paths are absolute, sizes are bytes, intervals are seconds."""

    # fmt: off
    state_dir: Path = setting("DIR", values.absolute_path, "/var/lib/gigaslice",
        "where allocations and the checkpoint live; must be the same path on the host")
    ledger_dir: Path = setting("DIR", values.absolute_path, "/run/gigaslice",
        "a tmpfs: where new ledgers lie if locks do not last in the state directory, as on overlayfs; must be the same "
        "path on the host")
    kubelet_dir: Path = setting("DIR", values.absolute_path, "/var/lib/kubelet/device-plugins",
        "the kubelet's device plugin directory, which holds kubelet.sock")
    pod_resources: Path = setting("SOCKET", values.absolute_path, "/var/lib/kubelet/pod-resources/kubelet.sock",
        "the kubelet's pod-resources socket")
    api: str = setting("device-plugin|dra", values.choice("device-plugin", "dra"), "device-plugin",
        "by which API of the kubelet new pods get GPUs: device plugins, or claims to devices (DRA); pods that "
        "have some by the other one keep them")
    kubelet_root: Path = setting("DIR", values.absolute_path, "/var/lib/kubelet",
        "the kubelet's directory; claims are served in plugins and plugins_registry below it")
    cdi_dir: Path = setting("DIR", values.absolute_path, "/var/run/cdi",
        "where the container runtime reads what the containers of claims get (Container Device Interface)")
    resource: str = setting("NAME", values.resource_name, "gigaslice.io/vgpu-memory",
        "name of the resource that pods ask for")
    resource_per_type: tuple[tuple[str, str], ...] | None = setting("off|auto|MODEL=TYPE,…", _types, "off",
        "one resource for each type of GPU, the name above with .TYPE after it: by itself from the model (h100, "
        "rtx-3090), or by words of the model; other GPUs keep the name above")
    slice_bytes: int = setting("SIZE", units.parse_bytes, "1GiB", "GPU memory of one unit of the resource",
        flag="slice")
    host_memory: Mapping[str, int] = setting("SIZE|off", _lending, "off",
        "host memory lent to this node's GPUs, or to single ones (GPU-<uuid>=8GiB,…), or both; for pods that "
        "ask for it with gigaslice.io/oversubscribe")
    gpu_labels: Mapping[str, Mapping[str, str]] = setting("KEY=VALUE,…", _labels, "",
        "properties of this node's GPUs for the selectors of GPU classes, such as rack=r7, or of single ones "
        "(GPU-<uuid>/tier=gold)")
    annotation_rights: AnnotationRights = setting("refuse|checked", annotation_rights, "refuse",
        "what becomes of annotations that take more than is counted for a pod, such as gigaslice.io/exclusive: checked "
        "only where the cluster's policy has compared them with labels of the Namespace")
    inventory: str = setting("FILE|nvml", _inventory, "nvml",
        "where GPUs come from: the NVIDIA driver, or a file that lists them")
    without_gpus: str = setting("wait|exit", values.choice("wait", "exit"), "wait",
        "what to do on a node on which NVML finds no GPU: wait until it does, or end with exit code 3")
    standby: str = setting("on|off", values.on_off, "off",
        "what to do where another agent serves the same state directory: get ready and go on when it ends, as in "
        "an upgrade, or end with exit code 1")
    visible_devices: str = setting("env|cdi", values.choice("env", "cdi"), "env",
        "how the runtime is told which GPUs to mount: NVIDIA_VISIBLE_DEVICES or CDI device names")
    placement: str = setting("NAME", values.choice("gaia", "best-effort", "max-sum", "binpack", "spread"), "gaia",
        "which algorithm chooses the GPUs")
    poll_interval: float = setting("TIME", values.seconds, "10s",
        "how often the kubelet is asked which containers still hold devices")
    measure_interval: float = setting("TIME", values.seconds, "2s",
        "how often memory that no allocation call declares is measured through NVML")
    scan_interval: float = setting("TIME", values.seconds, "10s", "how often the node is scanned for GPUs")
    health_cooldown: float = setting("TIME", values.seconds, "10m",
        "how long an unhealthy GPU must be quiet before it is allocated again; twice as long after each relapse")
    bind_cpus: str = setting("on|off", values.on_off, "off",
        "whether processes of containers are kept on the CPUs nearest to their GPUs; needs the capability SYS_NICE")
    overuse: str = setting("report|dry-run|evict", values.choice("report", "dry-run", "evict"), "report",
        "what to do with a pod whose programs bypass the library and take more than they may")
    evict_grace: float = setting("TIME", values.seconds, "60s",
        "how long overuse must last, after the pod was told, until the pod is evicted")
    evict_above: int = setting("SIZE", units.parse_bytes, "256MiB",
        "how much beyond its quota a container must hold for that")
    evict_over_limit: str = setting("on|off", values.on_off, "off",
        "whether a pod is evicted too for holding more than a limit that was lowered under it")
    metrics_address: tuple[str | None, int] | None = setting("HOST:PORT|off", values.address, ":9445",
        "where /metrics, /healthz and /readyz are served; without a host on every address")
    node_name: str = setting("NAME", values.node_name, "",
        "this node's name in the cluster; empty: the host's name, in a pod no access to the API server")
    whole_gpus: str = setting("NAME|off", values.resource_or_off, "off",
        "name of a resource of whole GPUs beside that of slices, such as gigaslice.io/gpu")
    rdma: str = setting("NAME|off", values.resource_or_off, "off",
        "name of a resource of RDMA adapters, such as gigaslice.io/rdma")
    rdma_share: int = setting("COUNT", values.count, "1", "how many containers may have an RDMA adapter at a time")
    sysfs: Path = setting("DIR", values.absolute_path, "/sys", "where RDMA adapters are found")
    driver_limits: str = setting("auto|required|off", values.choice("auto", "required", "off"), "auto",
        "whether the driver, from branch 615 on, bounds the memory of each pod itself, behind the library: where it "
        "can; or nothing is listed and started without it; or not at all")
    driver_limits_margin: int = setting("SIZE", units.parse_bytes, "256MiB",
        "how much more than it was promised of a GPU the driver lets a pod have: it counts more than NVML shows, and "
        "the library is to refuse first")
    driver_limits_exempt: tuple[str, ...] = setting("NAMESPACE,…|off", _namespaces, "kube-system,gpu-operator",
        "namespaces whose pods may use GPUs without having asked for memory, such as monitoring; the driver gives all "
        "other pods none of them")
    driver_limits_socket: Path = setting("SOCKET", values.absolute_path, "/run/gigaslice/driver-limits/limits.sock",
        "where `gigaslice driver-limits` listens, which sets the driver's limits")
    dataset_gate: Path | None = setting("SOCKET|off", values.path_or_off, "/run/gigaslice-dataset/gate/gate.sock",
        "where the dataset service of this node listens, which containers that mount a dataset wait for")
    # fmt: on

    @property
    def socket_name(self) -> str:
        """File name of the plugin's own socket in kubelet_dir; differs between resources."""
        return socket_name(self.resource)

    @property
    def resource_types(self) -> ResourceTypes:
        """By which resource the slices of a GPU are requested."""
        return ResourceTypes(self.resource, self.resource_per_type == (), self.resource_per_type or ())

    def contradictions(self) -> list[str]:
        """Resources that have the same name, and socket paths that are too long."""
        flags = {"resource": self.resource, "whole-gpus": self.whole_gpus, "rdma": self.rdma}
        named = {flag: resource for flag, resource in flags.items() if resource}
        mistakes = [
            f"--{flag} and --{other}: both are {resource}; every resource needs a name of its own"
            for flag, resource in named.items()
            for other in list(named)[list(named).index(flag) + 1 :]
            if named[other] == resource
        ]
        if self.api == "dra" and self.kube_api == "off":
            mistakes.append(
                "--api=dra and --kube-api=off: the kubelet only names claims, and what they are for is read from the "
                "API server"
            )
        types = self.resource_types
        mistakes += [
            f'--resource-per-type: a GPU that has "{pattern}" in its model can have "{other}" too, and would count '
            "under two names; give both one type, or leave one out"
            for pattern, other in types.overlapping()
        ]
        mistakes += self._type_names(dict.fromkeys(f"{self.resource}.{name}" for _, name in types.patterns))
        for flag, resource in named.items():
            path = self.kubelet_dir / socket_name(resource)
            length = len(os.fsencode(path))
            if length > _SOCKET_PATH_MAX:
                mistakes.append(
                    f"--kubelet-dir and --{flag}: the socket path {path} has {length} bytes, "
                    f"{_SOCKET_PATH_MAX} are possible; use a shorter directory or resource name"
                )
        return mistakes

    def type_contradictions(self, models: Iterable[str]) -> list[str]:
        """What is wrong with the resources of a node with GPUs of these models."""
        types = self.resource_types
        mistakes = [
            f"--resource-per-type: {model} is {' and '.join(matching)}; types must not overlap"
            for model in dict.fromkeys(models)
            if len(matching := types.matching(model)) > 1
        ]
        return mistakes + self._type_names(dict.fromkeys(map(types.of, models)))

    def _type_names(self, resources: Iterable[str]) -> list[str]:
        mistakes = []
        for resource in resources:
            try:
                values.resource_name(resource)
            except ValueError as error:
                mistakes.append(f"--resource-per-type: {resource!r}: {error}")
            if resource in (self.whole_gpus, self.rdma):
                mistakes.append(f"--resource-per-type: {resource} is the name of another resource")
            length = len(os.fsencode(self.kubelet_dir / socket_name(resource)))
            if length > _SOCKET_PATH_MAX:
                mistakes.append(
                    f"--kubelet-dir and --resource-per-type: the socket path of {resource} has {length} bytes, "
                    f"{_SOCKET_PATH_MAX} are possible; use a shorter directory or type"
                )
        return mistakes


SETTINGS = settings.table(Config)


def made_by(config: Config) -> tuple[str, ...]:
    """The fields with the directories that an agent with CONFIG makes where they are not there.

    The runtime's directory is written for claims alone. An agent that only gives back what claims have had writes there
    what an earlier one was asked for.
    """
    return ("state_dir", "cdi_dir") if config.api == "dra" else ("state_dir",)


def load(
    flags: Mapping[str, str | None], environ: Mapping[str, str], *, mistakes: tuple[str, ...] = ()
) -> Config:
    """The node agent's configuration; see `gigaslice.runtime.settings.load`."""
    return role_settings.load(Config, flags, environ, mistakes=mistakes)
