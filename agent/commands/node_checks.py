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

import grpc

import vcuda
from agent.commands.gpu_checks import (
    CDI_DIRECTORIES,
    check_cdi,
    check_clearing,
    check_driver_limits,
    check_gpus,
    check_paging,
)
from agent.commands.node_api_checks import check_api
from agent.config import Config, made_by
from agent.inventory.source import Inventory
from agent.kubelet.podresources import PodResourcesClient
from agent.persistence.ledger_files import tried
from agent.roles.claim_parts import claims_may_come
from gigaslice.core import units
from gigaslice.core.claims.names import DRIVER
from gigaslice.core.errors import GigasliceError
from gigaslice.core.text import plain
from gigaslice.role_settings import unmade
from vcuda.doctor import Finding, check_locks

__all__ = ["as_lines", "examine"]

_HOST_PID_NAMESPACE = (
    0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel: the first namespace has this number everywhere
)
_LEDGER_REMEDY = "choose a --state-dir on ext4, xfs or btrfs, or mount a tmpfs of the host at --ledger-dir"


def examine(config: Config, scan: Callable[[Config], Inventory]) -> Iterator[Finding]:
    """All findings, in an order in which an early failure explains later ones. SCAN finds the GPUs."""
    yield from check_gpus(config, scan)
    yield from check_clearing()
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
    if claims_may_come(config):
        yield from _check_claim_directories(config)
    yield from check_api(config)
    yield check_driver_limits(config)
    if config.host_memory:
        yield from check_paging()
    if config.visible_devices == "cdi":
        yield check_cdi(CDI_DIRECTORIES)


def as_lines(findings: Iterator[Finding]) -> Iterator[tuple[Finding, str]]:
    """Each finding with its line for people."""
    for finding in findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        yield finding, f"{finding.level:<5} {finding.subject:<16} {plain(finding.text)}{remedy}"


def _check_library() -> Finding:
    try:
        path = vcuda.library_path()
    except vcuda.VcudaError as error:
        return Finding("fail", "library", f"{error.what}: {error.cause}", error.remedy)
    return Finding("ok", "library", f"{path.name} of version {vcuda.__version__}")


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


def _nearest(path: Path) -> Path:
    """PATH, or the closest directory above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
