"""kill -9 at random instants: what is ready is right, the rest is resumed or gone, and nothing is left over."""

import random
import subprocess
import sys
import time

import pytest

from tests.unit.gigaslice.dataset_node.store.killing import KEYS, SIZE, content, open_store


def kill_one(tmp_path, seed):
    chance = random.Random(seed)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.gigaslice.dataset_node.store.killing", str(tmp_path), str(seed)],
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
    store = open_store(tmp_path)
    try:
        state = tmp_path / "state"
        found = {one.about.key: one for one in store.stored()}
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
        assert store.records() == {} and not list((state / "records").iterdir())
        assert not list((state / "mnt").iterdir()) or {p.name for p in (state / "mnt").iterdir()} <= complete
        return len(complete)
    finally:
        store.close()


def storm(tmp_path, kills):
    ready = 0
    for seed in range(kills):
        kill_one(tmp_path, seed)
        ready += check(tmp_path)
    assert ready, "some of them were completed before the kill"


def test_a_store_survives_kills(tmp_path):
    storm(tmp_path, 12)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_store_survives_a_thousand_kills(tmp_path):
    storm(tmp_path, 1000)
