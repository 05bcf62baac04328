# SPDX-License-Identifier: Apache-2.0
"""What the container runtime makes of the names of CDI devices: variables and mounts out of the files of a directory.

As the library that containerd and CRI-O share does: a file that is no valid specification is not there, a device that
two files have is none, mounts replace those at the same path, and variables those of the same name. What is named by a
mount or a device node has to exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.kubelet.runtime import Bind, Launch, StartError

NVIDIA = "nvidia.com/gpu"
_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def write_nvidia(directory: Path, uuids: Sequence[str]) -> Path:
    """NVIDIA's own file, as far as it matters without driver files: its devices stand for GPUs."""
    devices = [
        {"name": name, "containerEdits": {"env": [f"CDI_GPU_{number}={name}"]}}
        for number, name in enumerate(uuids)
    ]
    document = {
        "cdiVersion": "0.5.0",
        "kind": NVIDIA,
        "devices": devices,
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "nvidia.json"
    path.write_text(json.dumps(document))
    return path


def injected(launch: Launch, names: Sequence[str], directory: Path) -> Launch:
    """LAUNCH with the devices of these full names.

    Raises:
        StartError: Some are not to be found, or what they name does not exist.
    """
    if not names:
        return launch
    files = _read(directory)
    known: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for document in files:
        for device in document["devices"]:
            known.setdefault(f"{document['kind']}={device['name']}", []).append((document, device))
    missing = [name for name in names if len(known.get(name, ())) != 1]
    if missing:
        raise StartError(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    env, mounts = dict(launch.env), {mount.target: mount for mount in launch.mounts}
    begun: list[int] = []
    for name in names:
        ((document, device),) = known[name]
        edits = [device.get("containerEdits") or {}]
        if id(document) not in begun:
            begun.append(id(document))
            edits.insert(0, document.get("containerEdits") or {})
        for one in edits:
            _apply(one, env, mounts)
    gpus = [name.partition("=")[2] for name in names if name.startswith(f"{NVIDIA}=")]
    named = (*launch.gpus, *gpus)
    return Launch(
        launch.command, env, tuple(mounts.values()), launch.interactive, tuple(dict.fromkeys(named))
    )


def _apply(edits: Mapping[str, Any], env: dict[str, str], mounts: dict[str, Bind]) -> None:
    for text in edits.get("env") or []:
        key, _, value = text.partition("=")
        env[key] = value
    for node in edits.get("deviceNodes") or []:
        path = node.get("hostPath") or node["path"]
        if not Path(path).exists():
            raise StartError(f'CDI device injection failed: failed to stat CDI host device "{path}"')
    for mount in edits.get("mounts") or []:
        source, target = mount["hostPath"], mount["containerPath"]
        if not Path(source).exists():
            raise StartError(f'error mounting "{source}" to rootfs at "{target}": no such file or directory')
        mounts.pop(target, None)  # RemoveMount, then AddMount: it goes to the end
        mounts[target] = Bind(source, target, "ro" in (mount.get("options") or []))


def _read(directory: Path) -> list[Mapping[str, Any]]:
    return [document for path in sorted(directory.glob("*")) for document in _specification(path)]


def _specification(path: Path) -> Iterator[Mapping[str, Any]]:
    """The document of a file, where it is a valid one."""
    try:
        if path.suffix == ".json":
            document = json.loads(path.read_text())
        elif path.suffix in (".yaml", ".yml"):
            document = yaml.safe_load(path.read_text())
        else:
            return
        names = [device["name"] for device in document["devices"]]
        fits = document["cdiVersion"] in _VERSIONS and _KIND.fullmatch(document["kind"])
        if fits and names and len(set(names)) == len(names) and all(map(_NAME.fullmatch, names)):
            yield document
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return
