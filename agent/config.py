"""The node agent's configuration: one table of fields, read from flags, environment and a YAML file.

A value is looked up in this order: flag, environment (GIGASLICE_<FLAG>), file (the flag in camelCase), default. Every
mistake in any of the four is collected, so one attempt shows all of them. This is the agent's only door to the
environment. What a value means to the node (does the directory exist, is NVML there) is not checked here.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gigaslice import units
from gigaslice.errors import ConfigError
from gigaslice.runtime.files import read_file

__all__ = ["ENV_PREFIX", "FIELDS", "Config", "Field", "environment", "load", "socket_name"]

ENV_PREFIX = "GIGASLICE_"
_MAX_PATH_BYTES = 3800  # of Linux's 4,095: what is made below it has names, too
_MAX_FILE_BYTES = 1 << 20
_SOCKET_PATH_MAX = 107  # bytes of sockaddr_un.sun_path without the final zero
# What the kubelet adds for a Service called "gigaslice" in the pod's namespace; not meant for this program.
_SERVICE_LINK = re.compile(r"GIGASLICE_(SERVICE_(HOST|PORT.*)|PORT(_\d+_.*)?)")


def socket_name(resource: str) -> str:
    """File name of a resource's socket in the kubelet's directory."""
    return resource.replace("/", "_") + ".sock"


@dataclass(frozen=True, slots=True)
class Config:
    """Everything the node agent can be told. Paths are absolute, sizes are bytes, intervals are seconds."""

    state_dir: Path
    kubelet_dir: Path
    pod_resources: Path
    resource: str
    slice_bytes: int
    host_memory: Mapping[str, int]
    inventory: str
    without_gpus: str
    standby: str
    visible_devices: str
    placement: str
    poll_interval: float
    measure_interval: float
    scan_interval: float
    health_cooldown: float
    bind_cpus: str
    overuse: str
    evict_grace: float
    evict_above: int
    evict_over_limit: str
    metrics_address: tuple[str | None, int] | None
    metrics_token_file: Path | None
    kube_api: str
    kubeconfig: Path | None
    node_name: str
    whole_gpus: str
    rdma: str
    rdma_share: int
    sysfs: Path
    log_level: str
    log_format: str
    warnings: tuple[str, ...] = ()
    kubernetes_service: str = ""  # "host:port" of the API server, as the kubelet tells a container

    @property
    def socket_name(self) -> str:
        """File name of the plugin's own socket in kubelet_dir; differs between resources."""
        return socket_name(self.resource)


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the table. PARSE turns text into the value or raises ValueError with a sentence for the user."""

    flag: str
    attribute: str
    metavar: str
    parse: Callable[[str], object]
    default: str
    help: str

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return ENV_PREFIX + self.flag.upper().replace("-", "_")

    @property
    def key(self) -> str:
        """Name in the configuration file."""
        head, *tail = self.flag.split("-")
        return head + "".join(word.capitalize() for word in tail)


def _absolute_path(text: str) -> Path:
    if "\0" in text or not text.startswith("/"):
        raise ValueError("must be an absolute path: mount sources and sockets are named by it on the host")
    path = os.path.normpath(text)
    if len(os.fsencode(path)) > _MAX_PATH_BYTES or any(
        len(os.fsencode(one)) > 255 for one in path.split("/")
    ):
        raise ValueError(f"is too long: {_MAX_PATH_BYTES} bytes are possible, and 255 between two slashes")
    return Path(path)


def _optional_path(text: str) -> Path | None:
    return _absolute_path(text) if text else None


def _node_name(text: str) -> str:
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    if text and (len(text) > 253 or not re.fullmatch(rf"{label}(\.{label})*", text)):
        raise ValueError("must be the name that kubectl get nodes shows for this node")
    return text


def _resource_name(text: str) -> str:
    domain, slash, name = text.partition("/")
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    if not slash or not re.fullmatch(rf"{label}(\.{label})*", domain) or len(domain) > 253 - len("requests."):
        raise ValueError('must look like "gigaslice.io/vgpu-memory": a DNS domain, "/", a name')
    if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", name) or len(name) > 63:
        raise ValueError('the part after "/" must be at most 63 letters, digits, "-", "_" or "."')
    if domain.startswith("requests.") or (domain + "/").endswith("kubernetes.io/"):
        raise ValueError(f'the domain "{domain}" is reserved by Kubernetes; choose one of your own')
    return text


def _resource_or_off(text: str) -> str:
    return "" if _is_off(text) else _resource_name(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text):
        raise ValueError("must be a number from 1 to 999")
    return int(text)


def _inventory(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError('must be "nvml" or name a file')
    return text if text == "nvml" else str(Path(text).absolute())


def _lending(text: str) -> Mapping[str, int]:
    """Bytes by UUID, and for all GPUs of the node together under the empty name."""
    found: dict[str, int] = {}
    for item in text.split(",") if text and not _is_off(text) else ():
        name, equals, size = item.strip().rpartition("=")
        if equals and not re.fullmatch(r"GPU(-[0-9a-fA-F]+){5}", name):
            raise ValueError(f"{name!r} is no GPU; write UUIDs as nvidia-smi -L shows them")
        key, count = "GPU" + name[3:].lower() if name else "", units.parse_bytes(size)
        if key in found:
            raise ValueError("one size is given twice; give one for the node, and one for each GPU at most")
        found[key] = count
    return found


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|)", text)
    value = float(match[1]) * {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}[match[2]] if match else math.nan
    if not 0.1 <= value <= 86400:
        raise ValueError('must be a time between 100ms and 86400s, such as "10s" or "500ms"')
    return value


def _address(text: str) -> tuple[str | None, int] | None:
    if _is_off(text):
        return None
    host, colon, port = text.rpartition(":")
    if (
        not colon
        or not re.fullmatch(r"[0-9]{1,5}", port)
        or int(port) > 65535
        or (":" in host and host[0] != "[")
    ):
        raise ValueError('must be "off", ":9445", "127.0.0.1:9445" or "[::1]:9445"')
    return host.strip("[]") or None, int(port)


def _is_off(text: str) -> bool:
    """Whether TEXT turns a setting off. What YAML makes of a plain off, as Helm does with its values, counts too."""
    return text.lower() in ("off", "false", "no")


def _on_off(text: str) -> str:
    if not _is_off(text) and text.lower() not in ("on", "true", "yes"):
        raise ValueError("must be one of on, off")
    return "off" if _is_off(text) else "on"


def _auto_off(text: str) -> str:
    if not _is_off(text) and text != "auto":
        raise ValueError("must be one of auto, off")
    return "off" if _is_off(text) else "auto"


def _choice(*options: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in options:
            raise ValueError(f"must be one of {', '.join(options)}")
        return text

    return parse


FIELDS: tuple[Field, ...] = (
    Field("state-dir", "state_dir", "DIR", _absolute_path, "/var/lib/gigaslice",
          "where allocations and the checkpoint live; must be the same path on the host"),
    Field("kubelet-dir", "kubelet_dir", "DIR", _absolute_path, "/var/lib/kubelet/device-plugins",
          "the kubelet's device plugin directory, which holds kubelet.sock"),
    Field("pod-resources", "pod_resources", "SOCKET", _absolute_path,
          "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's pod-resources socket"),
    Field("resource", "resource", "NAME", _resource_name, "gigaslice.io/vgpu-memory",
          "name of the resource that pods ask for"),
    Field("slice", "slice_bytes", "SIZE", units.parse_bytes, "1GiB", "GPU memory of one unit of the resource"),
    Field("host-memory", "host_memory", "SIZE|off", _lending, "off",
          "host memory lent to this node's GPUs, or to single ones (GPU-<uuid>=8GiB,…), or both; for pods that "
          "ask for it with gigaslice.io/oversubscribe"),
    Field("inventory", "inventory", "FILE|nvml", _inventory, "nvml",
          "where GPUs come from: the NVIDIA driver, or a file that lists them"),
    Field("without-gpus", "without_gpus", "wait|exit", _choice("wait", "exit"), "wait",
          "what to do on a node on which NVML finds no GPU: wait until it does, or end with exit code 3"),
    Field("standby", "standby", "on|off", _on_off, "off",
          "what to do where another agent serves the same state directory: get ready and go on when it ends, as in "
          "an upgrade, or end with exit code 1"),
    Field("visible-devices", "visible_devices", "env|cdi", _choice("env", "cdi"), "env",
          "how the runtime is told which GPUs to mount: NVIDIA_VISIBLE_DEVICES or CDI device names"),
    Field("placement", "placement", "NAME", _choice("gaia", "best-effort", "max-sum", "binpack", "spread"), "gaia",
          "which algorithm chooses the GPUs"),
    Field("poll-interval", "poll_interval", "TIME", _seconds, "10s",
          "how often the kubelet is asked which containers still hold devices"),
    Field("measure-interval", "measure_interval", "TIME", _seconds, "2s",
          "how often memory that no allocation call declares is measured through NVML"),
    Field("scan-interval", "scan_interval", "TIME", _seconds, "10s", "how often the GPUs are looked for again"),
    Field("health-cooldown", "health_cooldown", "TIME", _seconds, "10m",
          "how long an unhealthy GPU must be quiet before it is given out again; twice as long after each relapse"),
    Field("bind-cpus", "bind_cpus", "on|off", _on_off, "off",
          "whether processes of containers are kept on the CPUs nearest to their GPUs; needs the capability SYS_NICE"),
    Field("overuse", "overuse", "report|dry-run|evict", _choice("report", "dry-run", "evict"), "report",
          "what to do with a pod whose programs pass the library by and take more than they may"),
    Field("evict-grace", "evict_grace", "TIME", _seconds, "60s",
          "how long overuse must last, after the pod was told, until the pod is evicted"),
    Field("evict-above", "evict_above", "SIZE", units.parse_bytes, "256MiB",
          "how much beyond its quota a container must hold for that"),
    Field("evict-over-limit", "evict_over_limit", "on|off", _on_off, "off",
          "whether a pod is evicted too for holding more than a limit that was lowered under it"),
    Field("metrics-address", "metrics_address", "HOST:PORT|off", _address, ":9445",
          "where /metrics, /healthz and /readyz are served; without a host on every address"),
    Field("metrics-token-file", "metrics_token_file", "FILE", _optional_path, "",
          "a token without which /metrics, which names all pods with slices, is refused (Authorization: Bearer …)"),
    Field("kube-api", "kube_api", "auto|off", _auto_off, "auto",
          "whether the API server is asked for this node's pods and told events, where there is access to it"),
    Field("kubeconfig", "kubeconfig", "FILE", _optional_path, "",
          "how to reach the API server from outside a pod; in one, its service account is used"),
    Field("node-name", "node_name", "NAME", _node_name, "",
          "this node's name in the cluster; empty: the host's name, in a pod no access to the API server"),
    Field("whole-gpus", "whole_gpus", "NAME|off", _resource_or_off, "off",
          "name of a resource of whole GPUs beside that of slices, such as gigaslice.io/gpu"),
    Field("rdma", "rdma", "NAME|off", _resource_or_off, "off",
          "name of a resource of RDMA adapters, such as gigaslice.io/rdma"),
    Field("rdma-share", "rdma_share", "COUNT", _count, "1", "how many containers may have an RDMA adapter at a time"),
    Field("sysfs", "sysfs", "DIR", _absolute_path, "/sys", "where RDMA adapters are looked for"),
    Field("log-level", "log_level", "LEVEL", _choice("debug", "info", "warning", "error"), "info",
          "least severity that is logged"),
    Field("log-format", "log_format", "json|console", _choice("json", "console"), "json", "how log lines look"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Given:
    text: str
    origin: str  # how the user wrote it, for messages


def environment() -> Mapping[str, str]:
    """The process's own environment; tests pass a mapping of theirs to load() instead."""
    return os.environ


def load(
    flags: Mapping[str, str | None], environ: Mapping[str, str], *, mistakes: tuple[str, ...] = ()
) -> Config:
    """Builds the configuration from FLAGS (flag -> text, None when absent), ENVIRON and the file that "config" names.

    MISTAKES are those the command line parser has found already. Raises ConfigError with one line per mistake.
    """
    found = list(mistakes)
    path = flags.get("config") or environ.get(ENV_PREFIX + "CONFIG")
    from_file = _read_file(path, found) if path else {}
    values: dict[str, Any] = {}
    for field in FIELDS:
        given = _look_up(field, flags, environ, from_file)
        try:
            values[field.attribute] = field.parse(given.text)
        except ValueError as error:
            found.append(f"{given.origin} {_quoted(given.text)}: {error}")
    if not found:
        config = Config(
            **values,
            warnings=_unknown_variables(environ),
            kubernetes_service=_kubernetes_service(environ),
        )
        found.extend(_contradictions(config))
    if found:
        raise ConfigError(found)
    return config


def _look_up(
    field: Field, flags: Mapping[str, str | None], environ: Mapping[str, str], from_file: Mapping[str, _Given]
) -> _Given:
    flag = flags.get(field.flag)
    if flag is not None:
        return _Given(flag, f"--{field.flag}")
    if field.variable in environ:
        return _Given(environ[field.variable], f"environment {field.variable}")
    return from_file.get(field.key) or _Given(field.default, f"default of --{field.flag}")


def _read_file(path: str, found: list[str]) -> dict[str, _Given]:
    """What the file says, each value as the text that stands there: YAML's own ideas of on, 010 and 1:30 stay out."""
    try:
        raw = read_file(path, _MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise ValueError("larger than 1 MiB; that is no configuration")
        root = yaml.compose(raw.decode("utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        found.append(f"--config {_quoted(path)}: {error.strerror}; name a readable YAML file")
        return {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        found.append(f"--config {_quoted(path)}: not YAML: {' '.join(str(error).split())}")
        return {}
    if root is None or _is_null(root):
        return {}
    if not isinstance(root, yaml.MappingNode):
        found.append(f'--config {_quoted(path)}: must be a mapping such as "slice: 1GiB"')
        return {}
    return _checked_keys(path, root, found)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and str(node.tag).endswith(":null")


def _checked_keys(path: str, root: yaml.MappingNode, found: list[str]) -> dict[str, _Given]:
    known = [field.key for field in FIELDS]
    values: dict[str, _Given] = {}
    for name, node in root.value:
        key = str(name.value) if isinstance(name, yaml.ScalarNode) else "…"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}"
            found.append(f"file {path}: unknown key {_quoted(key)}; {hint}")
        elif key in values:
            found.append(f"file {path}: {key} stands there twice; leave one of the two lines")
        elif not isinstance(node, yaml.ScalarNode):
            found.append(f"file {path}: {key} must be a text or a number")
        elif _is_null(node):
            found.append(f"file {path}: {key} has no value; write one, or leave the line out for the default")
        else:
            values[key] = _Given(str(node.value), f"file {path}: {key}")
    return values


def _contradictions(config: Config) -> list[str]:
    flags = {"resource": config.resource, "whole-gpus": config.whole_gpus, "rdma": config.rdma}
    named = {flag: resource for flag, resource in flags.items() if resource}
    found = [
        f"--{flag} and --{other}: both are {resource}; every resource needs a name of its own"
        for flag, resource in named.items()
        for other in list(named)[list(named).index(flag) + 1 :]
        if named[other] == resource
    ]
    for flag, resource in named.items():
        path = config.kubelet_dir / socket_name(resource)
        length = len(os.fsencode(path))
        if length > _SOCKET_PATH_MAX:
            found.append(
                f"--kubelet-dir and --{flag}: the socket path {path} has {length} bytes, "
                f"{_SOCKET_PATH_MAX} are possible; use a shorter directory or resource name"
            )
    return found


def _kubernetes_service(environ: Mapping[str, str]) -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    usable = host and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) <= 65535
    return f"{host}:{port}" if usable else ""


def _unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = {field.variable for field in FIELDS} | {ENV_PREFIX + "CONFIG"}
    odd = (
        v for v in environ if v.startswith(ENV_PREFIX) and v not in known and not _SERVICE_LINK.fullmatch(v)
    )
    return tuple(f"environment {name} is not an option and has no effect" for name in sorted(odd))


def _quoted(text: str) -> str:
    return '"' + text.encode("unicode_escape").decode("ascii")[:200] + '"'
