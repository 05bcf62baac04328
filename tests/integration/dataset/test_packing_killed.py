# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset pack` from bucket to bucket, ended by signals at many points, and run again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from gigaslice.core.dataset.errors import RequestError, SourceError
from gigaslice.roles.dataset_node.packing import check_pack
from tests.fakes.storage_servers import KEY, SECRET, moto_s3, put
from tests.integration.dataset.pack_stores import at, client, objects, uploads

FILES = {f"set/file {i}": os.urandom(200_000 + i) for i in range(120)}


@pytest.fixture(scope="module")
def moto():
    with moto_s3() as endpoint:
        put(endpoint, "raw", FILES)
        put(endpoint, "packs", {})
        yield endpoint


class Runs:
    """Runs the command in processes of its own, with the credentials in a directory."""

    def __init__(self, endpoint, where, name):
        self.endpoint, self.target = endpoint, f"s3://packs/{name}"
        self.reads = where / "reads"
        self.secret = where / "secret"
        (self.secret / "..data").mkdir(parents=True)
        for key, value in (("access_key", KEY), ("secret_key", SECRET)):
            (self.secret / "..data" / key).write_text(value + "\n")
            (self.secret / key).symlink_to(f"..data/{key}")  # as the kubelet does it
        self.scratch = where / "scratch"
        self.scratch.mkdir()

    def run(self, number, where, *words, source="s3://raw/set"):
        """The exit status, what was printed, and the files that were read."""
        self.reads.write_text("")
        done = subprocess.run(
            self.command(number, where, source, *words), env=self.environment, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert KEY not in done.stdout + done.stderr and SECRET not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr, self.reads.read_text().splitlines()

    def command(self, number, where, source, *words):
        return [
            *(sys.executable, "-m", "tests.integration.dataset.packer", str(int(number)), where),
            *(source, self.target, "--scratch", str(self.scratch), "--credentials", str(self.secret)),
            *("--option", f"endpoint={self.endpoint}", *words),
        ]

    @property
    def environment(self):
        return {**os.environ, "READS": str(self.reads)}

    @property
    def pack(self):
        return at(self.endpoint, self.target)


@pytest.fixture
def runs(moto, tmp_path, request):
    found = Runs(moto, tmp_path, request.node.name.replace("[", "-").replace("]", ""))
    yield found
    s3 = client(moto)
    for one in uploads(moto):
        s3.abort_multipart_upload(Bucket="packs", Key=one["Key"], UploadId=one["UploadId"])


@pytest.mark.parametrize(
    ("number", "where", "again"),
    [
        (signal.SIGKILL, "fetch", 100),
        (signal.SIGKILL, "hash", 0),
        (signal.SIGKILL, "upload", 0),
        (signal.SIGKILL, "manifest", 0),
        (signal.SIGINT, "fetch", 100),
        (signal.SIGINT, "upload", 0),
        (signal.SIGTERM, "upload", 0),
    ],
)
def test_nothing_half_is_a_pack_and_the_next_run_goes_on(runs, number, where, again):
    code, _, first = runs.run(number, where)
    assert code == (-9 if number == signal.SIGKILL else 130)
    with pytest.raises((RequestError, SourceError), match=r"is no pack|has nothing at"):
        check_pack(runs.pack)
    left = objects(runs.endpoint, runs.target)
    if number != signal.SIGKILL:
        assert uploads(runs.endpoint) == []
        assert not any(name.endswith(".listing") for name in left)
    code, said, second = runs.run(number, "never")
    assert (code, said.startswith(f"{runs.target}?endpoint=")) == (0, True), said
    assert len(second) <= again
    assert set(first) | set(second) == {name.removeprefix("set/") for name in FILES}
    made = check_pack(runs.pack, at(runs.endpoint, "s3://raw/set"))
    assert set(objects(runs.endpoint, runs.target)) == {"dataset.json", made.image, made.listing}
    assert list(runs.scratch.iterdir()) == []


def test_a_pack_that_is_replaced_is_complete_at_every_moment(runs):
    assert runs.run(0, "never", source="s3://raw/set")[0] == 0
    old = check_pack(runs.pack)
    put(runs.endpoint, "others", {f"set/{i}": os.urandom(150_000) for i in range(120)})
    for where in ("upload", "manifest"):
        code, _, _ = runs.run(signal.SIGKILL, where, "--force", source="s3://others/set")
        assert code == -9
        assert check_pack(runs.pack, at(runs.endpoint, "s3://raw/set")) == old
    code, _, read = runs.run(signal.SIGKILL, "removal", "--force", source="s3://others/set")
    assert (code, read) == (-9, [])
    new = check_pack(runs.pack, at(runs.endpoint, "s3://others/set"))
    assert new != old
    assert list(runs.scratch.iterdir()) == []
    assert runs.run(0, "never", source="s3://others/set")[0] == 0
    assert check_pack(runs.pack) == new


def test_a_run_that_finds_all_done_removes_what_was_left_on_this_machine(runs):
    assert runs.run(signal.SIGKILL, "tidying")[0] == -9
    made = check_pack(runs.pack)
    assert len(list(next(runs.scratch.iterdir()).iterdir())) == 2
    assert runs.run(0, "never")[2] == []
    assert check_pack(runs.pack) == made
    assert list(runs.scratch.iterdir()) == []


def test_the_old_pack_stays_when_its_replacement_is_given_up(runs):
    assert runs.run(0, "never")[0] == 0
    old = check_pack(runs.pack)
    put(runs.endpoint, "givenup", {f"set/{i}": os.urandom(150_000) for i in range(120)})
    assert runs.run(signal.SIGTERM, "upload", "--force", source="s3://givenup/set")[0] == 130
    assert set(objects(runs.endpoint, runs.target)) == {"dataset.json", old.image, old.listing}
    assert uploads(runs.endpoint) == []
    assert check_pack(runs.pack, at(runs.endpoint, "s3://raw/set")) == old


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_kills_at_random_moments(runs):
    """Of two sources in turn, so that packs are replaced as well."""
    made = random.Random(7)
    put(runs.endpoint, "second", {f"set/{i}": os.urandom(210_000) for i in range(90)})
    sources = ("s3://raw/set", "s3://second/set")
    there = None
    ended = killed = 0
    begin = time.monotonic()
    assert runs.run(0, "never")[0] == 0
    whole = time.monotonic() - begin
    client(runs.endpoint).delete_object(
        Bucket="packs", Key=f"{runs.target.removeprefix('s3://packs/')}/dataset.json"
    )
    while killed < 40:
        source = sources[ended % 2]
        process = subprocess.Popen(
            runs.command(0, "never", source, "--force"), env=runs.environment, stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            code = process.wait(made.uniform(0.2 * whole, 1.3 * whole))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
            code = -9
        try:
            found = check_pack(runs.pack)
        except (RequestError, SourceError):
            assert there is None, "a pack that was there is gone"
            continue
        if code == 0:
            ended += 1
            assert check_pack(runs.pack, at(runs.endpoint, source)) == found
            assert list(runs.scratch.iterdir()) == []
        there = found
    assert ended >= 2
