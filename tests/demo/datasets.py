# SPDX-License-Identifier: Apache-2.0
"""The demo's last act: one dataset, two pods. `python -m tests.demo.datasets DIRECTORY` prints what happened as JSON.

A process of its own, in a mount namespace of its own where the machine allows one: whatever ends it, no mount is left.
Where mounting is not allowed the files are unpacked into a directory instead, which is what a node without EROFS does.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from gigaslice.core.dataset.image import plan
from gigaslice.core.dataset.source_spec import SourceSpec, dataset_key
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.mounts import MountError
from gigaslice.roles.dataset_node.mounts.linux import LinuxMounts
from gigaslice.roles.dataset_node.sources.posix import PosixSource
from gigaslice.roles.dataset_node.store import Budget, DatasetMetadata, DatasetStore, Volume, VolumeSource
from gigaslice.roles.dataset_node.unpack import unpack_image
from tests.demo.machine import ROOT

FILES, FILE_BYTES, LATENCY = 2000, 16 << 10, 0.001
_NEW_MOUNTS, _PRIVATE = 0x00020000, 1 << 18 | 16384  # CLONE_NEWNS; MS_PRIVATE | MS_REC


class SlowSource(PosixSource):
    """A storage system that takes a millisecond per file; counts what it is asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[bytes] = []

    def read_into(self, entry, offset, size, sink):  # type: ignore[no-untyped-def]
        """As the source does, later."""
        time.sleep(LATENCY)
        self.asked.append(entry.path)
        super().read_into(entry, offset, size, sink)


def private_mounts() -> bool:
    """Whether this process may mount, in a namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        libc.unshare(_NEW_MOUNTS) == 0 and libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None) == 0
    )


def make_files(root: Path) -> None:
    for number in range(FILES):
        directory = root / f"{number % 20:02d}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:05d}.jpg").write_bytes(os.urandom(FILE_BYTES))


def copied(root: Path, to: Path) -> float:
    """Seconds that a plain copy, file by file, takes."""
    begun = time.monotonic()
    for path in sorted(root.rglob("*.jpg")):
        time.sleep(LATENCY)
        target = to / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return time.monotonic() - begun


def same(root: Path, found: Path) -> bool:
    """Whether two directories have the same files."""
    names = [sorted(str(p.relative_to(one)) for p in one.rglob("*.jpg")) for one in (root, found)]
    return names[0] == names[1] and all((root / n).read_bytes() == (found / n).read_bytes() for n in names[0])


def act(base: Path) -> dict[str, object]:
    """One dataset, two pods, and what is left of it."""
    base.mkdir(parents=True, exist_ok=True)
    root = base / "source"
    make_files(root)
    plain = copied(root, base / "copy")
    mounts = LinuxMounts()
    mounted = private_mounts() and mounts.has_erofs
    store = DatasetStore(base / "state", mounts, budget=Budget(keep_free=0.0))
    store.open()
    source, spec = SlowSource(root), SourceSpec.parse(str(root))

    async def fetched() -> tuple[str, float, Path]:
        listing = await source.list()
        key, laid_out = dataset_key(spec, listing.digest), plan(listing)
        begun = time.monotonic()
        part = store.begin_fetch(
            DatasetMetadata(key, laid_out.size, spec.canonical, listing.files, listing.bytes)
        )
        digest = await fetch(laid_out, listing, source, part, bounds=FetchLimits())
        store.complete(part, digest)
        return key, time.monotonic() - begun, base / "state" / "objects" / f"{key}.img"

    key, seconds, image = asyncio.run(fetched())
    result: dict[str, object] = {
        "plain": plain,
        "fetched": seconds,
        "once": sorted(source.asked) == sorted({*source.asked}) and len(source.asked) == FILES,
    }
    pods = [Volume(f"pod-{n}", str(base / f"pod-{n}"), f"uid-{n}", "demo", f"pod-{n}") for n in (1, 2)]
    times = []
    try:
        for pod in pods if mounted else ():
            begun = time.monotonic()
            store.publish(pod, [VolumeSource(key=key)])
            times.append(time.monotonic() - begun)
    except MountError:
        mounted = False
    if not mounted:
        unpack_image(image, base / "tree")
        return {**result, "mounted": False, "same": same(root, base / "tree")}
    result |= {
        "mounted": True,
        "same": all(same(root, Path(pod.target)) for pod in pods),
        "published": times[1],
        "kept": store.evict([key]) != {},
    }
    for pod in pods:
        store.remove(pod.id, pod.target)
    return {**result, "evicted": store.evict([key]) == {} and not image.exists()}


def run_act(base: Path) -> dict[str, object]:
    """Has a child do it. Raises subprocess.CalledProcessError with what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo.datasets", str(base)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(act(Path(sys.argv[1]))))
