# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random instants: what is ready is right, the rest is resumed or gone, and nothing is left over."""

import random
import subprocess
import sys
import time

import pytest

from tests.unit.gigaslice.roles.dataset_node.store.killing import KEYS, SIZE, content, open_store


def kill_one(tmp_path, seed):
    chance = random.Random(seed)
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.unit.gigaslice.roles.dataset_node.store.killing",
            str(tmp_path),
            str(seed),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "open\n"
    for _ in range(chance.randrange(8)):
        child.stdout.readline()
    time.sleep(chance.uniform(0, 0.01))
    child.kill()
    child.wait()
    child.stdout.close()


def check(tmp_path):
    leftover = len(list((tmp_path / "state/trash").iterdir()))
    store = open_store(tmp_path)
    try:
        state = tmp_path / "state"
        found = {one.metadata.key: one for one in store.stored()}
        for number, key in enumerate(KEYS):
            if key in found and found[key].complete:
                assert (state / "objects" / f"{key}.img").read_bytes() == content(number)
                assert store.ready(key) is not None
        complete = {key for key, one in found.items() if one.complete}
        names = {path.name for path in (state / "objects").iterdir()}
        assert names == {f"{key}{end}" for key in complete for end in (".img", ".json")}
        for path in (state / "partial").iterdir():
            assert path.stem in found and not found[path.stem].complete, path.name
        for key, one in found.items():
            if not one.complete:
                assert (state / "partial" / f"{key}.img").stat().st_size == SIZE
        until = time.monotonic() + 20
        while list((state / "trash").iterdir()):
            assert time.monotonic() < until, "what was in the trash is removed after the next start"
            time.sleep(0.005)
        assert store.trash_failures == 0
        assert store.records() == {} and not list((state / "records").iterdir())
        assert not list((state / "mnt").iterdir()) or {p.name for p in (state / "mnt").iterdir()} <= complete
        return len(complete), leftover
    finally:
        store.close()


def storm(tmp_path, kills):
    ready = thrown = 0
    for seed in range(kills):
        kill_one(tmp_path, seed)
        complete, leftover = check(tmp_path)
        ready, thrown = ready + complete, thrown + leftover
    assert ready, "some of them were completed before the kill"
    assert thrown or kills < 100, "no kill found anything in the trash: nothing was tried"
    print(f"{ready} complete, {thrown} in the trash")


def test_a_store_survives_kills(tmp_path):
    storm(tmp_path, 12)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_store_survives_a_thousand_kills(tmp_path):
    storm(tmp_path, 1000)
