# SPDX-License-Identifier: Apache-2.0
"""Checks whether an agent of this configuration would work on this node: one finding per question, with a remedy.

Meant to run where the agent runs (in its pod, or as root on the node), before it or beside it. Takes no lock, changes
nothing that an agent owns, and asks each question on its own, so that one answer does not hide the next.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import grpc

import vcuda
from agent.apiserver import find_access
from agent.apiserver.node_client import node_client
from agent.apiserver.node_trial import REMEDY, UnboundedError, check_bounds
from agent.config import Config, made_by
from agent.inventory import memory_clearing
from agent.inventory.page_faults import counters_are_on
from agent.inventory.source import Inventory
from agent.kubelet.podresources import PodResourcesClient
from agent.persistence.ledger_files import tried
from agent.roles.gpu_wait import read_bus
from gigaslice.core import units
from gigaslice.core.claims.names import DRIVER
from gigaslice.core.errors import GigasliceError, MissingError
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.kube.fields import object_at
from gigaslice.core.limits.driver_limit_messages import SupportAnswer
from gigaslice.core.text import plain
from gigaslice.kubeapi.access import Access
from gigaslice.kubeapi.client import NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.role_settings import unmade
from gigaslice.runtime import local_protocol
from gigaslice.runtime.files import read_file
from vcuda.doctor import Finding, check_locks, check_managed

__all__ = ["as_lines", "examine"]

_HOST_PID_NAMESPACE = (
    0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel: the first namespace has this number everywhere
)
_MAX_LIST_BYTES = 64 << 20  # an API server may leave the limit out of account
_EVICT = ("create", "pods/eviction")
_PUBLISH = ("patch", "nodes")
_RIGHTS = (("watch", "pods"), ("create", "events"), ("patch", "events"), _EVICT)
_CLAIMS, _SLICES = "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io"
_CLAIM_RIGHTS = (
    ("get", _CLAIMS),
    *((verb, _SLICES) for verb in ("list", "create", "update", "delete")),
)
_MISSED_LITTLE = ("events",)  # without writing these, pods are served all the same
_LEDGER_REMEDY = "choose a --state-dir on ext4, xfs or btrfs, or mount a tmpfs of the host at --ledger-dir"
_LIMITS_LOG = "see the log of the container driver-limits"
_CDI_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))


def examine(config: Config, scan: Callable[[Config], Inventory]) -> Iterator[Finding]:
    """All findings, in an order in which an early failure explains later ones. SCAN finds the GPUs."""
    yield from _check_gpus(config, scan)
    yield from _check_clearing()
    yield _check_library()
    missing = dict(unmade(config, *made_by(config)))
    for flag, directory in missing.items():
        text = f"there is no {directory}, and the agent makes a default directory only where it is named"
        yield Finding("fail", flag, text, f"mount the host's there, or write --{flag}={directory}")
    if "state-dir" not in missing:  # else they would be tried in the directory above it
        yield from _check_state(config.state_dir)
        yield _check_ledgers(config.state_dir, config.ledger_dir)
    yield from _check_kubelet(config)
    yield _check_pod_resources(config)
    yield _check_pid_namespace(Path("/proc/self/ns/pid"))
    if config.api == "dra":
        yield from _check_claim_directories(config)
    yield from _check_api(config)
    yield _check_driver_limits(config)
    if config.host_memory:
        yield from _check_paging()
    if config.visible_devices == "cdi":
        yield _check_cdi(_CDI_DIRECTORIES)


def as_lines(findings: Iterator[Finding]) -> Iterator[tuple[Finding, str]]:
    """Each finding with its line for people."""
    for finding in findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        yield finding, f"{finding.level:<5} {finding.subject:<16} {plain(finding.text)}{remedy}"


def _check_gpus(config: Config, scan: Callable[[Config], Inventory]) -> Iterator[Finding]:
    try:
        inventory = scan(config)
    except MissingError as error:
        bus = read_bus(config.sysfs)
        if bus.gpus:
            yield Finding("fail", "GPUs", f"{len(bus.gpus)} NVIDIA GPUs are on the PCI bus, but {error}")
        elif config.without_gpus == "wait":
            yield Finding(
                "warn", "GPUs", f"the agent would wait for GPUs: none is on the PCI bus, and {error}"
            )
        else:
            yield Finding("fail", "GPUs", str(error))
        return
    except GigasliceError as error:
        yield Finding("fail", "GPUs", str(error))
        return
    except vcuda.VcudaError as error:
        yield Finding("fail", "GPUs", f"{error.what}: {error.cause}", error.remedy)
        return
    for gpu in inventory.gpus:
        numa = "" if gpu.numa_node is None else f", NUMA node {gpu.numa_node}"
        text = f"{gpu.model}, {gpu.slices} slices of {units.format_bytes(gpu.slice_bytes)}{numa}, {gpu.uuid}"
        if gpu.healthy:
            yield Finding("ok", f"GPU {gpu.index}", text)
        else:
            yield Finding(
                "warn", f"GPU {gpu.index}", text, "it is not healthy: see the agent's log and dmesg"
            )
    for sentence in inventory.warnings:
        yield Finding("warn", "GPUs", sentence, "the agent works, with what it knows")


def _check_library() -> Finding:
    try:
        path = vcuda.library_path()
    except vcuda.VcudaError as error:
        return Finding("fail", "library", f"{error.what}: {error.cause}", error.remedy)
    return Finding("ok", "library", f"{path.name} of version {vcuda.__version__}")


def _nearest(path: Path) -> Path:
    """PATH, or the closest directory above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _check_state(directory: Path) -> Iterator[Finding]:
    present = _nearest(directory)
    if not os.access(present, os.W_OK | os.X_OK):
        yield Finding(
            "fail", "state", f"{present} cannot be written", "run as root, or choose another --state-dir"
        )
        return
    missing = "" if present == directory else ", which the agent will make"
    yield Finding("ok", "state", f"{directory}{missing}")
    yield check_locks(present, "choose a --state-dir on a local file system (ext4, xfs, btrfs)")
    free = os.statvfs(present)
    if free.f_bavail * free.f_frsize < 64 << 20:
        size = units.format_bytes(free.f_bavail * free.f_frsize)
        yield Finding("warn", "state", f"only {size} free", "each allocation takes 340 KiB")


def _check_ledgers(state: Path, elsewhere: Path) -> Finding:
    """Where new ledgers would lie: where a slot's lock lasts as long as its process."""
    reasons: list[str] = []
    for directory in (state, elsewhere):
        try:
            with tempfile.TemporaryDirectory(dir=_nearest(directory), prefix=".doctor-") as trial:
                reason = tried(Path(trial))
        except OSError as error:
            reason = error.strerror or str(error)
        if not reason:
            return Finding("ok", "ledgers", "; ".join([*reasons, f"new ones would lie in {directory}"]))
        reasons.append(f"{directory}: {reason}")
    text = f"a container that is killed and restarted may stay charged: {'; '.join(reasons)}"
    return Finding("warn", "ledgers", text, _LEDGER_REMEDY)


def _check_kubelet(config: Config) -> Iterator[Finding]:
    directory, path = config.kubelet_dir, config.kubelet_dir / "kubelet.sock"
    if not directory.is_dir():
        remedy = "mount it, or say where the kubelet of this distribution has it with --kubelet-dir"
        yield Finding("fail", "kubelet", f"{directory} does not exist", remedy)
        return
    if not os.access(directory, os.W_OK):
        yield Finding("fail", "kubelet", f"{directory} cannot be written", "run as root, mount it writable")
        return
    if problem := _unreachable(path):
        yield Finding(
            "fail", "kubelet", f"{path}: {problem}", "is the kubelet running, and this its directory?"
        )
        return
    yield Finding("ok", "kubelet", f"{path} answers")
    own = directory / config.socket_name
    if own.exists() and not _unreachable(own):
        yield Finding("ok", "agent", f"one serves {config.resource} already")


def _unreachable(path: Path) -> str:
    """Why a Unix socket is not answered; empty when it is."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return "is no socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            probe.connect(str(path))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _check_pod_resources(config: Config) -> Finding:
    client = PodResourcesClient(config.pod_resources, config.resource)
    try:
        asyncio.run(client.list())
    except (GigasliceError, grpc.RpcError) as error:
        return Finding("fail", "pod resources", str(error), "or name another socket with --pod-resources")
    return Finding("ok", "pod resources", f"{config.pod_resources} answers")


def _check_pid_namespace(path: Path) -> Finding:
    try:
        inside = path.stat().st_ino != _HOST_PID_NAMESPACE
    except OSError as error:
        return Finding("warn", "PIDs", f"{path}: {error.strerror}", "mount /proc")
    if inside:
        remedy = "set hostPID: true, or memory that no call declares is not measured"
        return Finding("fail", "PIDs", "this is not the host's PID namespace", remedy)
    return Finding("ok", "PIDs", "these are the host's")


def _check_api(config: Config) -> Iterator[Finding]:
    if config.kube_api == "off":
        yield Finding("ok", "API server", "not to be asked (--kube-api=off)")
        return
    try:
        access, whence = find_access(
            config.kubeconfig, config.kubernetes_service, variable=config.kubeconfig_variable
        )
    except GigasliceError as error:
        yield Finding("fail", "API server", str(error))
        return
    if access is None:
        remedy = "annotations are not read and pods get no events; --kubeconfig names credentials"
        yield Finding("warn", "API server", whence, remedy)
        return
    if not config.node_name:
        yield Finding("warn", "API server", f"{access}, {whence}", "name this node with --node-name")
        return
    yield from asyncio.run(_ask(access, config, f"{access}, {whence}, node {config.node_name}"))


async def _ask(access: Access, config: Config, where: str) -> list[Finding]:
    async with node_client(access) as client:
        answer = await _ask_api(client, config, where)
        if answer.level == "fail":
            return [answer]
        claims = [await _ask_for_claims(client, config.node_name)] if config.api == "dra" else []
        return [answer, *claims, await _try_publishing(client, config.node_name)]


async def _ask_api(client: KubeClient, config: Config, where: str) -> Finding:
    """Asks what the agent would ask: without a right of its own it goes on with less, and says so only in its log."""
    query = {"fieldSelector": f"spec.nodeName={config.node_name}", "limit": "1", "resourceVersion": "0"}
    try:
        await client.request("GET", object_path("api", "v1", "pods"), query, most=_MAX_LIST_BYTES)
        rights = (*_RIGHTS, *(_CLAIM_RIGHTS if config.api == "dra" else ()))
        missing = [right for right in rights if not await _allowed(client, right)]
    except ApiFailure as failure:
        return _not_listed(failure, where)
    if config.overuse == "report":
        missing = [right for right in missing if right is not _EVICT]
    if missing:
        names = ", ".join(f"{verb} {resource}" for verb, resource in missing)
        level: Literal["warn", "fail"] = (
            "warn" if all(right[1] in _MISSED_LITTLE for right in missing) else "fail"
        )
        remedy = (
            "apply daemonset.yaml's ClusterRole"
            if missing != [_EVICT]
            else (
                f"--overuse={config.overuse} needs it: apply deploy/eviction.yaml, or set the chart's rbac.evict"
            )
        )
        return Finding(level, "API server", f"{where}: the agent may not {names}", remedy)
    return Finding("ok", "API server", f"{where}; it lets us in")


async def _ask_for_claims(client: KubeClient, node: str) -> Finding:
    """Whether the cluster has claims to devices at all, lets pods be woken that wait with one, and who waits now."""
    subject = "claims"
    try:
        await client.request(
            "GET", object_path("apis", "resource.k8s.io", "v1", "resourceslices"), {"limit": "1"}
        )
        waiting = await _waiting_with_claims(client, node)
        wakes = await _allowed(client, ("patch", "pods"))
    except ApiFailure as failure:
        if failure.status == NOT_FOUND:
            text = "the cluster has no resource.k8s.io/v1"
            remedy = "claims need Kubernetes 1.34, and their sharing 1.36; serve device plugins (--api=device-plugin)"
            return Finding("fail", subject, text, remedy)
        return Finding("warn", subject, str(failure), "see the API server's log")
    if not wakes:
        text = "the agent may not annotate pods: memory that becomes free may idle for 90 seconds"
        return Finding("warn", subject, text, "apply deploy/claims.yaml, or the chart with node.api=dra")
    if waiting:
        remedy = (
            "kubectl describe tells why each; one that is to be deleted waits for the kubelet and this agent"
        )
        return Finding("warn", subject, f"pods of this node wait with claims: {', '.join(waiting)}", remedy)
    return Finding("ok", subject, "the cluster has them, and no pod of this node waits with one")


async def _waiting_with_claims(client: KubeClient, node: str) -> list[str]:
    """The pods of a node that have claims, and have not started or are to be deleted, with which of the two."""
    query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}
    answer = await client.request("GET", object_path("api", "v1", "pods"), query, most=_MAX_LIST_BYTES)
    waiting = []
    for document in answer.document().get("items") or ():
        try:
            pod = parse_pod(document)
        except ValueError:
            continue
        if pod.claims and (pod.ending or pod.phase == "Pending"):
            waiting.append(f"{pod} ({'Terminating' if pod.ending else 'Pending'})")
    return sorted(waiting)


def _check_claim_directories(config: Config) -> Iterator[Finding]:
    """The directories by which the kubelet finds the driver, and the runtime what the containers of a claim get."""
    own = config.kubelet_root / "plugins" / DRIVER
    for path in (config.kubelet_root / "plugins_registry", own if own.exists() else own.parent):
        if not os.access(path, os.W_OK | os.X_OK):
            text = f"{path} is not there, or not to be written"
            remedy = (
                "mount the kubelet's directory there (chart: node.api=dra), or name it with --kubelet-root"
            )
            yield Finding("fail", "claims", text, remedy)
    parent = _nearest(config.cdi_dir)
    if not os.access(parent, os.W_OK | os.X_OK):
        text = (
            f"{parent} cannot be written: the container runtime would not learn what a claim's containers get"
        )
        yield Finding(
            "fail", "claims", text, "mount the host's /var/run/cdi there, or name it with --cdi-dir"
        )


def _not_listed(failure: ApiFailure, where: str) -> Finding:
    text, remedy = f"does not list pods; {where}: {failure}", "see the API server's log"
    if not failure.status:
        text, remedy = f"not reached: {failure}", "check the address, the network and the credentials"
    elif failure.status == 401:
        text = f"does not accept the credentials; {where}: {failure}"
        remedy = "the token or certificate is old or of another cluster: make it anew, or the pod where it is mounted"
    elif failure.status == 403:
        text = f"the agent may not list pods; {where}: {failure}"
        remedy = (
            "apply the ClusterRole and ClusterRoleBinding of daemonset.yaml, or of the chart with rbac.create"
        )
    return Finding("fail", "API server", text, remedy)


async def _try_publishing(client: KubeClient, node: str) -> Finding:
    """Tries what the agent tries before it writes what its node has."""
    try:
        if not await _allowed(client, _PUBLISH):
            remedy = "where those are used, apply deploy/node-policy.yaml (Kubernetes 1.30)"
            text = "it may not patch its node: classes, the scheduler, explain, top and nodes do not see its GPUs"
            return Finding("warn", "publishing", text, remedy)
        await check_bounds(client, "nodes", node)
    except UnboundedError as error:
        return Finding("fail", "publishing", f"withheld: {error}", REMEDY)
    except ApiFailure as error:
        return Finding("warn", "publishing", str(error), "the agent publishes nothing until it is answered")
    return Finding("ok", "publishing", f"the API server keeps the agent to its own annotations of {node}")


async def _allowed(client: KubeClient, right: tuple[str, str]) -> bool:
    """Whether the API server would let us; True where it does not say: then the agent will see."""
    verb, (resource, _, part) = right[0], right[1].partition("/")
    name, _, group = resource.partition(".")
    attributes = {"verb": verb, "resource": name, "group": group, **({"subresource": part} if part else {})}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = object_path("apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews")
    try:
        review = await client.post(path, body)
    except ApiFailure as failure:
        if not failure.status:
            raise
        return True
    return object_at(review, "status").get("allowed") is not False


def _check_driver_limits(config: Config) -> Finding:
    """Whether the driver bounds pods itself: asked of who would set its limits."""
    subject, required = "driver limits", config.driver_limits == "required"
    if config.driver_limits == "off":
        return Finding("ok", subject, "not to be set (--driver-limits=off)")
    try:
        support = SupportAnswer.decode(
            local_protocol.ask(config.driver_limits_socket, "gigaslice driver-limits", {"support": {}})
        )
    except MissingError as error:
        text = f"nobody sets any, and only the library limits: {error}"
        remedy = "the chart's driverLimits.enabled adds that container (driver 615 and later)"
        return Finding("fail" if required else "ok", subject, text, remedy)
    except GigasliceError as error:
        return Finding("fail" if required else "warn", subject, str(error), _LIMITS_LOG)
    if support.backend == "none":
        remedy = "the library limits all the same; docs/driver-limits.md has what is needed"
        return Finding("fail" if required else "warn", subject, support.reason, remedy)
    forgetful = [gpu for gpu, told in support.gpus.items() if told.persistence is False]
    if forgetful:
        text = f"{support.backend}; without persistence mode an idle GPU may forget them while the agent is down: "
        return Finding(
            "warn", subject, text + ", ".join(forgetful), "nvidia-smi -pm 1, or nvidia-persistenced"
        )
    return Finding("ok", subject, f"{support.backend}, driver {support.driver}")


def _check_cdi(directories: tuple[Path, ...]) -> Finding:
    files = [path for directory in directories if directory.is_dir() for path in directory.iterdir()]
    if any("nvidia.com/gpu" in _text(path) for path in files):
        return Finding("ok", "CDI", "devices nvidia.com/gpu are described")
    where = " or ".join(map(str, directories))
    remedy = "nvidia-ctk cdi generate --device-name-strategy=uuid; in a pod, mount that directory to have it checked"
    return Finding("warn", "CDI", f"no description of nvidia.com/gpu in {where}", remedy)


def _check_clearing() -> Iterator[Finding]:
    """What the next tenant of a GPU's memory finds in it."""
    if memory_clearing.is_switched_off():
        yield Finding(
            "warn",
            "GPU memory",
            f"the driver does not clear what a process gives back ({memory_clearing.OPTION}=1): others can read it",
            "take the option out of NVreg_RegistryDwords and load the nvidia module anew",
        )


def _check_paging() -> Iterator[Finding]:
    """What lent host memory needs of the driver."""
    yield check_managed()
    told = counters_are_on()
    how = "load nvidia-uvm with uvm_enable_debug_procfs=1 and the driver tells it"
    if told is None:
        yield Finding("ok", "page faults", f"nvidia-uvm is not loaded, or does not tell; {how}")
    elif told:
        yield Finding(
            "ok", "page faults", "the driver counts them; time slices are given only where pages move"
        )
    else:
        yield Finding(
            "ok", "page faults", f"not counted, so progress alone says whether a GPU thrashes; {how}"
        )


def _text(path: Path) -> str:
    try:
        return read_file(path, 16 << 20).decode("utf-8", "replace")
    except OSError:
        return ""
