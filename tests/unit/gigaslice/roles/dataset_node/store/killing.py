# SPDX-License-Identifier: Apache-2.0
"""A child process that does random operations on a store until it is killed: `python -m … ROOT SEED`.

Mounts are in memory, so every kill is a reboot as well. It prints a line after each dataset that it has completed.
"""

import random
import sys
from contextlib import suppress
from pathlib import Path

from gigaslice.core.dataset.errors import DatasetError
from gigaslice.roles.dataset_node.store import (
    Budget,
    DatasetMetadata,
    DatasetStore,
    DiskSpace,
    Volume,
    VolumeSource,
    digest_of,
)
from tests.fakes.mounts import MemoryMounts

SIZE = 64 << 10
KEYS = [f"{number:x}" * 64 for number in range(16)]


def content(number: int) -> bytes:
    return bytes([number + 1]) * SIZE


def open_store(root: Path) -> DatasetStore:
    store = DatasetStore(
        root / "state",
        MemoryMounts(),
        budget=Budget(capacity=10 * SIZE, keep_free=0.0),
        pod_is_there=lambda volume: False,
        disk=lambda: DiskSpace(1 << 40, 1 << 40),
    )
    store.open()
    return store


def volume(root: Path, number: int) -> Volume:
    target = root / "pods" / str(number) / "mount"
    target.parent.mkdir(parents=True, exist_ok=True)
    return Volume(f"v{number}", str(target), f"uid-{number}", "default", f"p{number}")


def fetch(store: DatasetStore, number: int) -> None:
    part = store.begin_fetch(DatasetMetadata(KEYS[number], SIZE, f"s3://b/{number}"))
    data = content(number)
    with part.image.open("r+b") as file:
        for offset in range(0, SIZE, SIZE // 8):
            file.seek(offset)
            file.write(data[offset : offset + SIZE // 8])
    part.bits.write_bytes(b"\xff")
    store.complete(part, digest_of(part.image))


def main(root: Path, seed: int) -> None:
    store, chance = open_store(root), random.Random(seed)
    print("open", flush=True)
    while True:
        number = chance.randrange(16)
        with suppress(DatasetError):
            if store.ready(KEYS[number]) is None:
                fetch(store, number)
                print(number, flush=True)
            one = volume(root, chance.randrange(4))
            if chance.random() < 0.5:
                store.publish(one, [VolumeSource(key=KEYS[number])])
            else:
                store.remove(one.id, one.target)
            if chance.random() < 0.3:
                store.evict([KEYS[chance.randrange(16)]])
            if chance.random() < 0.1:  # some of a fetch, to be discarded
                other = KEYS[chance.randrange(16)]
                if store.ready(other) is None:
                    store.discard(store.begin_fetch(DatasetMetadata(other, SIZE, "s3://b/x")).key)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
