# SPDX-License-Identifier: Apache-2.0
"""The settings of `gigaslice dataset`: one field is one setting, with its flag, default and help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gigaslice.core import units
from gigaslice.role_settings import NodeRoleSettings
from gigaslice.runtime import setting_values as values
from gigaslice.runtime.settings import setting

__all__ = ["DatasetSettings", "admits"]

_OPEN = "s3,gs,az,http,https"


def _size_or_off(text: str) -> int | None:
    return None if values.is_off(text) else units.parse_bytes(text)


def _size_or_zero(text: str) -> int:
    return 0 if values.is_off(text) else units.parse_bytes(text)


def _percent(text: str) -> float:
    number = text.removesuffix("%")
    if not number.isdigit() or not 0 <= int(number) <= 90:
        raise ValueError("must be a share of the file system from 0% to 90%")
    return int(number) / 100


def _quotas(text: str) -> Mapping[str, int]:
    quotas: dict[str, int] = {}
    for quota in filter(None, (part.strip() for part in text.split(","))):
        name, divider, size = quota.partition("=")
        if not divider or not name.strip():
            raise ValueError('must be pairs of a namespace and a size, such as "team-a=500GiB,team-b=1TiB"')
        quotas[name.strip()] = units.parse_bytes(size.strip())
    return quotas


def _allowed(text: str) -> tuple[str, ...]:
    from gigaslice.core.dataset.source_spec import KINDS  # noqa: PLC0415  (needs a library that --help must do without)

    allowed = tuple(part.strip() for part in text.split(",") if part.strip())
    for prefix in allowed:
        kind = prefix.partition(":")[0]
        if prefix.startswith("/"):
            continue
        if kind not in KINDS:
            raise ValueError(
                f'"{prefix}" is no kind of source and no beginning of one; there are {", ".join(sorted(KINDS))}'
            )
        if kind == "file" and prefix != "file" and not prefix.startswith("file:///"):
            raise ValueError(f'"{prefix}" is no path; write file:///data or /data')
    return allowed


def _namespaces(text: str) -> tuple[str, ...]:
    namespaces = tuple(part.strip() for part in text.split(",") if part.strip())
    for namespace in namespaces:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace):
            raise ValueError(
                f'"{namespace}" is no name of a namespace; write each one, as in "datasets,shared"'
            )
    return namespaces


def admits(allowed: tuple[str, ...], canonical: str) -> bool:
    """Whether a source is one that pods may name: its kind is allowed, or something that it is below.

    Args:
        allowed: Kinds such as "s3", and beginnings such as "nfs://server/export" or "/data".
        canonical: The source, normalised.
    """
    kind = canonical.partition(":")[0]
    # Only servers' sources have options behind "?"; in the path of a directory it is a character like any other.
    place = canonical if kind in ("file", "rclone") else canonical.partition("?")[0]
    for prefix in allowed:
        text = f"file://{prefix}" if prefix.startswith("/") else prefix
        if text == kind:
            return True
        if ":" in text:
            start = text.rstrip("/")
            if place == start or place.startswith(
                (f"{start}/", f"{start}:")
                if start.count(":") == 1 and start.startswith("rclone")
                else f"{start}/"
            ):
                return True
    return False


@dataclass(frozen=True, slots=True)
class DatasetSettings(NodeRoleSettings):
    """Everything the dataset service can be told."""

    # fmt: off
    state_dir: Path = setting("DIR", values.absolute_path, "/var/lib/gigaslice-dataset",
        "where datasets, records and mounts are; must be the same path on the host, on a fast disk")
    run_dir: Path = setting("DIR", values.absolute_path, "/run/gigaslice-dataset",
        "where the start gate's socket is, and credentials of volumes under way; must be in memory (tmpfs)")
    kubelet_root: Path = setting("DIR", values.absolute_path, "/var/lib/kubelet",
        "the kubelet's directory; nothing is mounted outside of its pods")
    capacity: int | None = setting("SIZE|off", _size_or_off, "off",
        "the most that the cache takes; off: as much as --keep-free leaves")
    keep_free: float = setting("PERCENT", _percent, "20%",
        "the share of the file system that is kept free: below 15% the kubelet deletes images, below 10% it evicts")
    quotas: Mapping[str, int] = setting("NAMESPACE=SIZE,…", _quotas, "",
        "how many bytes of datasets the pods of a namespace may use on this node at a time")
    quota: int | None = setting("SIZE|off", _size_or_off, "off", "the same for every other namespace")
    allow: tuple[str, ...] = setting("KIND|SOURCE,…", _allowed, _OPEN,
        "which sources pods may name: kinds, or what a source must be below, such as nfs://server/export or /data; "
        "those without credentials of their own (file, nfs, lustre, …) are open to every pod that may name them")
    trusted_namespaces: tuple[str, ...] = setting("NAMESPACE,…", _namespaces, "",
        "namespaces in which administrators alone may write Datasets: those may say check: never, and with pinned or "
        "never give pods a copy that the node has without a listing with the pods' own credentials")
    local_addresses: str = setting("on|off", values.on_off, "off",
        "whether sources may be at addresses of the node itself, or at its cloud's metadata service")
    fetchers: int = setting("COUNT", values.count, "64", "how many reads of one dataset are under way at a time")
    datasets: int = setting("COUNT", values.count, "4", "how many datasets are fetched at a time")
    bandwidth: int = setting("SIZE|off", _size_or_zero, "off", "the most that is read from all sources, each second")
    early: str = setting("auto|off", values.auto_off, "auto",
        "whether volumes are published before their data are there, where the GPU agent holds the containers back")
    layout: str = setting("auto|tree", values.choice("auto", "tree"), "auto",
        "tree: plain directories in place of EROFS images, as where the kernel has no EROFS")
    # fmt: on
