# SPDX-License-Identifier: Apache-2.0
"""Cgroup v2 trees as kubelets and runtimes make them, in ordinary directories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gigaslice.roles.driver_limits import cgroup_tree

__all__ = ["LAYOUTS", "Layout", "make_cgroup", "make_root", "version_2_at"]

CONTROLLERS = ("memory", "misc", "dmem")
NODE = "9f" * 32  # the ID of a container that is a node


@dataclass(frozen=True)
class Layout:
    """Where a pod and its container are. POD of the name has the UID, CONTAINER the ID, UNDERSCORED the UID so."""

    name: str
    pod: str
    container: str

    def pod_path(self, uid: str) -> str:
        return self.pod.replace("UNDERSCORED", uid.replace("-", "_")).replace("UID", uid)

    def container_path(self, uid: str, container: str) -> str:
        return f"{self.pod_path(uid)}/{self.container.replace('CONTAINER', container)}"


_SCOPE = "cri-containerd-CONTAINER.scope"
LAYOUTS = [
    Layout("systemd-guaranteed", "kubepods.slice/kubepods-podUNDERSCORED.slice", _SCOPE),
    Layout(
        "systemd-burstable",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUNDERSCORED.slice",
        _SCOPE,
    ),
    Layout(
        "systemd-besteffort",
        "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUNDERSCORED.slice",
        _SCOPE,
    ),
    Layout("cgroupfs-guaranteed", "kubepods/podUID", "CONTAINER"),
    Layout("cgroupfs-burstable", "kubepods/burstable/podUID", "CONTAINER"),
    Layout("cgroupfs-besteffort", "kubepods/besteffort/podUID", "CONTAINER"),
    Layout(
        "kind",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        "kubelet-kubepods-burstable-podUNDERSCORED.slice",
        _SCOPE,
    ),
    Layout("kind-cgroupfs", "kubelet/kubepods/besteffort/podUID", "CONTAINER"),
    Layout(
        "kind-from-the-host",
        f"system.slice/docker-{NODE}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUNDERSCORED.slice",
        _SCOPE,
    ),
    Layout("kind-from-the-host-cgroupfs", f"docker/{NODE}/kubelet/kubepods/burstable/podUID", "CONTAINER"),
    Layout("k3s", "kubepods/burstable/podUID", "CONTAINER"),
    Layout("k3s-in-a-container", f"docker/{NODE}/k3s/kubepods/podUID", "CONTAINER"),
    Layout(
        "crio",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUNDERSCORED.slice",
        "crio-CONTAINER.scope/container",
    ),
    Layout(
        "cgroup-root",
        "a.slice/a-b_1.slice/a-b_1-kubepods.slice/a-b_1-kubepods-podUNDERSCORED.slice",
        _SCOPE,
    ),
    Layout("cgroup-root-cgroupfs", "a/b-1/kubepods/burstable/podUID", "CONTAINER"),
]


def make_root(root: Path, controllers: tuple[str, ...] = CONTROLLERS, *, nvidia: bool = False) -> Path:
    """Makes a root; NVIDIA: the kernel counts the driver's memory."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text(" ".join(controllers) + "\n")
    (root / "cgroup.subtree_control").write_text(" ".join(controllers) + "\n")
    (root / "cgroup.procs").touch()
    if nvidia:
        (root / "dmem.capacity").write_text(
            "drm/0000:01:00.0/vram0 1\nnvidia/0000:3b:00.0/vidmem 85899345920\n"
        )
    return root


def make_cgroup(
    root: Path, path: str, *, controllers: tuple[str, ...] = CONTROLLERS, pids: tuple[int, ...] = ()
) -> Path:
    """Makes a cgroup and those above it, each with the files of CONTROLLERS, as the kernel does."""
    directory = root
    for name in Path(path).parts:
        directory /= name
        if not directory.exists():
            directory.mkdir()
            for controller in controllers:
                (directory / f"{controller}.max").write_text("max\n")
            (directory / "cgroup.procs").touch()
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return directory


@pytest.fixture
def version_2_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """A list; directories in it are taken for mounts of cgroup v2."""
    roots: list[Path] = []
    monkeypatch.setattr(
        cgroup_tree, "filesystem", lambda path: cgroup_tree._CGROUP2 if path in roots else 0x01021994
    )
    return roots  # type: ignore[return-value]
