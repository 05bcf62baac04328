# SPDX-License-Identifier: Apache-2.0
"""A storm of kills over the whole path of datasets: pods come and go, the data change, service and kubelet are killed.

What must hold at any instant: a pod sees exactly one version of the data that there was since it was made, and the same
one for as long as it lives; a program that reads is never disturbed. What must hold when all is quiet: nothing is
mounted, and no file is there, that is of no pod and no dataset of the cache. What must hold in the end: of what had
arrived at least nine tenths were not read again.

Each version differs from the one before in one file, which is replaced in one step: so every listing is one version.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gigaslice.roles.dataset_node.mounts.linux import LinuxMounts
from tests.fakes.eventually import until
from tests.fakes.kubelet.csi import CsiPod
from tests.integration.dataset.service import ServiceNode

__all__ = ["Figures", "Storm"]

FILES, MOST_BYTES, MILLISECONDS = 300, 20_000, 50
PODS = 4
QUIET_EVERY = 25
SECONDS = 120


def digest(root: Path) -> str:
    """Of all names and contents below ROOT."""
    found = hashlib.blake2b(digest_size=16)
    for one in sorted(root.rglob("*")):
        if one.is_file():
            body = one.read_bytes()
            found.update(f"{one.relative_to(root)}\0{len(body)}\0".encode() + body)
    return found.hexdigest()


@dataclass
class Figures:
    """What happened."""

    kills: int = 0
    early_kills: int = 0
    """Of them, before the kubelet had accepted the service."""
    kubelets: int = 0
    """Times that the kubelet was killed too."""
    versions: int = 0
    pods: int = 0
    passes: int = 0
    """Times that the reader read everything."""
    evictions: int = 0
    given: int = 0
    """Bytes that arrived."""
    twice: int = 0
    """Bytes that arrived again."""
    interrupted: int = 0
    """Fetches that went on from what an earlier service had left."""

    @property
    def kept(self) -> float:
        """The share of what had arrived that was not read again."""
        return 1 - self.twice / self.given if self.given else 1.0


@dataclass
class Life:
    """A pod of the storm. since: the number of the version that there was when it was made."""

    pod: CsiPod
    since: int
    seen: str = ""
    watch: asyncio.Task[None] | None = field(default=None, repr=False)


class Reader:
    """A thread that reads all of a volume, again and again."""

    def __init__(self, root: Path) -> None:
        self.passes, self.failure = 0, ""
        self._root, self._ended = root, threading.Event()
        self._first = digest(root)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.3):
                found = digest(self._root)
                if found != self._first:
                    self.failure = "the reader found other data"
                    return
                self.passes += 1
        except OSError as error:
            self.failure = f"the reader failed: {error}"

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class Storm:
    """One storm over NODE, which must not run yet."""

    def __init__(self, node: ServiceNode, seed: int) -> None:
        self.node = node
        self.chance = random.Random(seed)
        self.figures = Figures()
        self.given = node.root / "given"
        node.program = ["tests.integration.dataset.slow_service", str(self.given), str(MILLISECONDS)]
        node.settings |= {"capacity": str(8 * FILES * MOST_BYTES // 2)}
        self._versions: list[str] = []
        self._lives: dict[str, Life] = {}

    async def run(self, kills: int) -> Figures:
        """Plays it. Raises AssertionError."""
        for number in range(FILES):
            path = self.node.data / f"d{number % 7}/f{number}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(self.chance.randbytes(self.chance.randrange(MOST_BYTES)))
        self._note_version()
        long_lived = self._pod()
        await asyncio.wait_for(long_lived.pod.ready.wait(), SECONDS)
        reader = Reader(self.node.kubelet.target(long_lived.pod, "data"))
        try:
            while self.figures.kills < kills:
                self._step()
                if self.chance.random() < 0.1:
                    await self._evict()
                await asyncio.sleep(self.chance.uniform(0, 1.2))
                await self._kill()
                assert not reader.failure, reader.failure
                if self.figures.kills % QUIET_EVERY == 0:
                    await self._quiet(long_lived)
            await self._quiet(long_lived)
        finally:
            reader.end()
        assert not reader.failure, reader.failure
        self.figures.passes = reader.passes
        assert await self.node.end() == 0
        self._count()
        return self.figures

    # What happens

    def _step(self) -> None:
        lives = [one for one in self._lives.values() if not one.pod.deleted]
        if len(lives) > 1 and (len(lives) == PODS or self.chance.random() < 0.3):
            self._delete(self.chance.choice(lives[1:]))
        if self.chance.random() < 0.5:
            name = f"d0/f{self.chance.randrange(FILES) // 7 * 7}"
            fresh = self.node.root / "fresh"
            fresh.write_bytes(self.chance.randbytes(self.chance.randrange(MOST_BYTES)))
            fresh.replace(self.node.data / name)
            self._note_version()
        for _ in range(self.chance.randrange(3)):
            self._pod()

    def _note_version(self) -> None:
        self._versions.append(digest(self.node.data))
        self.figures.versions += 1

    def _pod(self) -> Life:
        self.figures.pods += 1
        life = Life(self.node.pod(f"p{self.figures.pods}"), len(self._versions) - 1)
        self._lives[life.pod.uid] = life
        self.node.kubelet.run(life.pod)
        life.watch = asyncio.create_task(self._watch(life))
        return life

    async def _watch(self, life: Life) -> None:
        await life.pod.ready.wait()
        await self._look(life)

    async def _look(self, life: Life) -> None:
        found = await asyncio.to_thread(digest, self.node.kubelet.target(life.pod, "data"))
        if life.pod.deleted:
            return
        if life.seen:
            assert found == life.seen, f"{life.pod.name} sees another version than before"
        assert found in self._versions[life.since :], f"{life.pod.name} sees what was never a version"
        life.seen = found

    def _delete(self, life: Life) -> None:
        assert life.watch is not None
        if life.watch.done():
            life.watch.result()
        life.watch.cancel()
        self.node.kubelet.delete(life.pod)
        del self._lives[life.pod.uid]

    async def _evict(self) -> None:
        with contextlib.suppress(OSError, ValueError, Exception):
            await asyncio.to_thread(self.node.ask, evict={"idle_seconds": 0})

    async def _kill(self) -> None:
        await self.node.end(signal.SIGKILL)
        self.figures.kills += 1
        self._at_any_instant()
        ready = [one for one in self._lives.values() if one.seen]
        if ready:
            await self._look(self.chance.choice(ready))
        if self.chance.random() < 0.3:
            self.figures.kubelets += 1
            await self.node.kubelet.stop()
            await self.node.kubelet.start()
        while self.chance.random() < 0.2:
            self.node.begin()
            await asyncio.sleep(self.chance.uniform(0.1, 1.2))
            early = not self.node.kubelet.registered.is_set()
            await self.node.end(signal.SIGKILL)
            self.figures.kills += 1
            self.figures.early_kills += early
            self._at_any_instant()
        await self.node.start()

    # What must hold

    def _at_any_instant(self) -> None:
        state = self.node.root / "s"
        for one in LinuxMounts().table():
            assert "/partial/" not in one.source, f"{one.source} is mounted at {one.point}"
            if one.point.startswith(f"{state}/mnt/"):
                key = one.point.rpartition("/")[2]
                assert one.source.endswith(f"/{key}.img") or "/loop" in one.source, f"{one}"

    async def _quiet(self, long_lived: Life) -> None:
        for life in list(self._lives.values()):
            assert life.watch is not None
            try:
                await asyncio.wait_for(asyncio.shield(life.watch), SECONDS)
            except asyncio.TimeoutError:
                raise AssertionError(f"{life.pod.name} got no data: {life.pod.events[-3:]}") from None
            await self._look(life)
        for life in list(self._lives.values()):
            if life is not long_lived:
                self._delete(life)
        await until(lambda: set(self.node.kubelet.pods) == {long_lived.pod.uid}, seconds=SECONDS)
        state, target = self.node.root / "s", str(self.node.kubelet.target(long_lived.pod, "data"))
        assert self.node.mounted() == [target]
        assert len(list((state / "records").iterdir())) == 1, "a record of a pod that is gone"
        await until(self._tidy, seconds=SECONDS)

    def _tidy(self) -> bool:
        """Whether every file is of a dataset that the service knows, and of no other, and nothing is in the trash."""
        state = self.node.root / "s"
        if list((state / "trash").iterdir()):
            return False
        datasets = self.node.ask(ps={})["datasets"]
        if any(one["state"] == "fetching" for one in datasets):
            return False
        partial = {one["key"] for one in datasets if one["state"] == "partial"}
        ready = {one["key"] for one in datasets} - partial
        assert {one.name for one in (state / "objects").iterdir()} == {
            f"{key}{end}" for key in ready for end in (".img", ".json")
        }
        assert {one.stem for one in (state / "partial").iterdir()} == partial
        assert {one.name for one in (state / "mnt").iterdir()} <= ready
        points = {
            Path(one.point).name for one in LinuxMounts().table() if one.point.startswith(f"{state}/mnt/")
        }
        assert points <= ready
        return True

    def _count(self) -> None:
        seen: Counter[str] = Counter(self.given.read_text().splitlines())
        for line, times in seen.items():
            size = int(line.rpartition(" ")[2])
            self.figures.given += size * times
            self.figures.twice += size * (times - 1)
        for line in self.node.lines():
            self.figures.evictions += line.get("event") == "evicted"
            self.figures.interrupted += line.get("event") == "fetch started" and bool(line.get("resumed"))
