# SPDX-License-Identifier: Apache-2.0
"""Fetches of real trees: killed at random points, asked for by many at once, of sources that change."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time

import blake3
import pytest

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.image import plan
from gigaslice.roles.dataset_node.fetching.engine import fetch
from gigaslice.roles.dataset_node.fetching.fetch_limits import FetchLimits
from gigaslice.roles.dataset_node.fetching.single_flight import SingleFlight
from gigaslice.roles.dataset_node.sources.posix import PosixSource
from tests.fakes.dataset_layout import PartFiles

FILES, LARGE = 3000, 4 << 20


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Small files, inline and not, and some larger ones."""
    root, chance = tmp_path_factory.mktemp("tree"), random.Random(1)
    for index in range(FILES):
        path = root / f"{index % 40}/file{index}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(chance.randbytes(chance.choice([0, 10, 1500, 2100, 5000, 16384])))
    for index in range(4):
        (root / f"large{index}").write_bytes(chance.randbytes(LARGE))
    return root


def fetched(root, where, **options):
    async def run():
        source = PosixSource(root)
        listing = await source.list()
        layout = plan(listing)
        part = PartFiles.begin(where, layout.size)
        try:
            return listing, await fetch(layout, listing, source, part, bounds=FetchLimits(), **options)
        finally:
            await source.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def one_shot(tree, tmp_path_factory):
    where = tmp_path_factory.mktemp("once")
    _, digest = fetched(tree, where)
    return digest, (where / "part.img").read_bytes()


def test_the_digest_is_the_images(one_shot):
    digest, body = one_shot
    assert digest == blake3.blake3(body).hexdigest()


@pytest.mark.parametrize(
    "seed", [1, 2, pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
def test_a_fetch_that_is_killed_again_and_again_ends_with_the_same_image(tree, one_shot, tmp_path, seed):
    digest, body = one_shot
    chance = random.Random(seed)
    command = [sys.executable, "-m", "tests.integration.dataset.fetcher", str(tree), str(tmp_path), "2000"]
    kills = 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout.readline() == "begun\n"
            if kills < 6:
                time.sleep(chance.uniform(0, 0.4))
                process.kill()
                kills += 1
                if process.wait() == -9:
                    continue
            found = process.stdout.readline().strip()
            break
    assert found == digest
    assert (tmp_path / "part.img").read_bytes() == body
    given = sum(int(line) for line in (tmp_path / "given").read_text().split())
    whole = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    assert kills > 2
    assert whole <= given <= whole * (1 + 0.1 * kills), (
        "each kill costs at most a tenth: nine tenths are kept"
    )


def test_eight_who_ask_at_once_read_every_byte_once(tree, one_shot, tmp_path):
    digest, body = one_shot

    async def run():
        flights, bounds = SingleFlight(), FetchLimits()
        sources = [PosixSource(tree) for _ in range(8)]
        given = []

        def counted(source):
            real = source.read_into

            def read_into(entry, offset, size, sink):
                given.append(((entry.path, offset), size))
                real(entry, offset, size, sink)

            source.read_into = read_into

        async def pod(number):
            source = sources[number]
            counted(source)
            listing = await source.list()
            layout = plan(listing)

            async def start(flight):
                part = PartFiles.begin(tmp_path, layout.size)
                return await fetch(layout, listing, source, part, bounds=bounds, started=flight.started)

            return await flights.join(listing.digest.hex(), start)

        found = await asyncio.gather(*(pod(number) for number in range(8)))
        for source in sources:
            await source.close()
        return found, given

    found, given = asyncio.run(run())
    assert found == [digest] * 8
    assert (tmp_path / "part.img").read_bytes() == body
    assert len({what for what, _ in given}) == len(given), "every range once"
    assert sum(size for _, size in given) == sum(
        path.stat().st_size for path in tree.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("files", [5000, pytest.param(50_000, marks=pytest.mark.long)])
def test_one_changed_file_of_many_is_found_and_an_unchanged_tree_is_not_read(tmp_path, monkeypatch, files):
    root = tmp_path / "root"
    for index in range(files):
        if index % 1000 == 0:
            (root / str(index // 1000)).mkdir(parents=True)
        (root / str(index // 1000) / f"f{index}").write_bytes(b"%08d" % index)

    def read(*_):
        raise AssertionError("a listing reads no file")

    monkeypatch.setattr(PosixSource, "read_into", read)

    def digest():
        async def run():
            source = PosixSource(root)
            try:
                return (await source.list()).digest
            finally:
                await source.close()

        return asyncio.run(run())

    before = digest()
    assert digest() == before
    chance, seen = random.Random(5), {before}
    for step in range(12):
        path = chance.choice(sorted((root / str(chance.randrange(files // 1000))).iterdir()))
        if step % 4 == 0:
            path.write_bytes(b"%08d" % (99_000_000 + step))
        elif step % 4 == 1:
            path.rename(path.with_name(f"renamed{step}"))
        elif step % 4 == 2:
            path.unlink()
        else:
            (path.parent / f"added{step}").touch()
        now = digest()
        assert now not in seen, step
        seen.add(now)


def test_a_source_that_changes_while_it_is_fetched_is_fetched_as_one_version(tree, tmp_path):
    """As a task does it: a change is a new listing, a new key, another part."""
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", str(tree), str(root)], check=True)
    changes = iter([root / "large0", root / "3/file3", root / "large3"])

    async def run():
        for attempt in range(10):
            source = PosixSource(root)
            listing = await source.list()
            layout = plan(listing)
            where = tmp_path / listing.digest.hex()
            where.mkdir(exist_ok=True)
            real, reads = source.read_into, []

            def read_into(*arguments, reads=reads, real=real):
                reads.append(1)
                if len(reads) == 20 and (path := next(changes, None)):
                    path.write_bytes(os.urandom(path.stat().st_size))
                real(*arguments)

            source.read_into = read_into
            part = PartFiles.begin(where, layout.size)
            try:
                await fetch(layout, listing, source, part, bounds=FetchLimits())
            except SourceError as error:
                assert error.changed, error
                continue
            finally:
                await source.close()
            if (await PosixSource(root).list()).digest == listing.digest:
                return attempt, part.image.read_bytes()
        raise AssertionError

    attempt, image = asyncio.run(run())
    assert attempt > 0
    once = tmp_path / "once"
    once.mkdir()
    fetched(root, once)
    assert image == (once / "part.img").read_bytes()
