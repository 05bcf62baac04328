# SPDX-License-Identifier: Apache-2.0
import contextlib
import time

import pytest

from gigaslice.roles.dataset_node.store import (
    Budget,
    DatasetMetadata,
    DatasetStore,
    DiskSpace,
    Volume,
    digest_of,
)
from gigaslice.roles.dataset_node.store.trash import TrashPace
from tests.fakes.mounts import MemoryMounts

KEYS = [f"{number:x}" * 64 for number in range(1, 10)]
MIB = 1 << 20


class World:
    """A store on a simulated disk of so many bytes, with a clock that the test moves."""

    def __init__(self, root, size=1000):
        self.root, self.mounts, self.now, self.size = root, MemoryMounts(), 1_700_000_000.0, size
        self.quotas, self.pods, self.unpack, self.outside = {}, None, None, 0
        self.trash_pace = TrashPace()
        self.store = None
        self.again()

    def again(self):
        """A service that starts."""
        if self.store is not None:
            self.store.close()
        self.store = DatasetStore(
            self.root / "state",
            self.mounts,
            budget=Budget(keep_free=0.0),
            quotas=self.quotas,
            unpack=self.unpack,
            pod_is_there=(lambda volume: volume.pod in self.pods)
            if self.pods is not None
            else lambda _: True,
            disk=self.disk,
            clock=lambda: self.now,
            trash_pace=self.trash_pace,
        )
        self.store.open()
        return self.store

    def disk(self):
        taken = 0
        for path in (self.root / "state").glob("*/*.img"):
            with contextlib.suppress(FileNotFoundError):  # the trash is emptied meanwhile
                taken += path.stat().st_size
        return DiskSpace(self.size, self.size - taken - self.outside)

    def emptied(self):
        """Waits until nothing is in the trash."""
        until = time.monotonic() + 20
        while self.store._trash.last or list((self.root / "state/trash").iterdir()):
            assert time.monotonic() < until, list((self.root / "state/trash").iterdir())
            time.sleep(0.002)

    def metadata(self, number, size=100):
        return DatasetMetadata(KEYS[number], size, f"s3://bucket/{number}", 1, size)

    def fetch(self, number, size=100):
        """What a fetch does, without a source."""
        part = self.store.begin_fetch(self.metadata(number, size))
        part.image.write_bytes(bytes([number]) * size)
        return self.store.complete(part, digest_of(part.image))

    def volume(self, name, namespace="default"):
        target = self.root / "pods" / name / "mount"
        target.parent.mkdir(parents=True, exist_ok=True)
        return Volume(f"csi-{name}", str(target), f"uid-{name}", namespace, name)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.store.close()
