# SPDX-License-Identifier: Apache-2.0
"""How large listings become, and that the estimate of what they take is not too low."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gigaslice.core.dataset.errors import ListingError, SourceError
from gigaslice.core.dataset.listing import Limits
from gigaslice.roles.dataset_node.sources import listing_memory
from gigaslice.roles.dataset_node.sources.listing_memory import AccountedLimits, ListingMemory
from gigaslice.roles.dataset_node.sources.web_index import index_entries

MIB = 1 << 20

MEASURED = """
import itertools, resource, sys
from gigaslice.core.dataset.errors import ListingError
from gigaslice.core.dataset.image import plan
from gigaslice.core.dataset.listing import Listing
from gigaslice.roles.dataset_node.sources.listing_memory import ListingMemory
from gigaslice.roles.dataset_node.sources.web_index import index_entries

text = int(sys.argv[1])
memory = ListingMemory(128 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def pieces():
    yield b'{"files": [{"path": "first", "size": 1}'
    for at in itertools.count(0, 1000):
        yield b"".join(
            b', {"path": "%s%d", "size": 1, "version": "%d%s"}' % (b"p" * text, one, one, b"v" * text)
            for one in range(at, at + 1000)
        )

account, found = memory.account(), []
try:
    for one in index_entries(pieces(), "x", account.limits):
        found.append(one)
except ListingError as error:
    assert "more than" in str(error), error
del found[memory.most // (300 + 2 * 2 * (text + 6)):]
listing = Listing.of(found, account.limits)
del found
plan(listing)
print(listing.files, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize("text", [0, 200])
def test_an_index_without_end_takes_no_more_than_what_listings_have(text):
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(text)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    files, mib = done.stdout.split()
    assert int(files) > 100_000
    assert float(mib) < 160, "of 128 MiB for listings"


@pytest.mark.parametrize("hostile", [b'{"files": [' + b"[" * 100, b'{"x": [', b'{"files": [{"path": "'])
def test_no_element_of_an_index_is_had_that_is_long(hostile):
    given = []

    def pieces():
        yield hostile
        while len(given) < 1000:
            given.append(b"[],a" * 1024)
            yield given[-1]

    with pytest.raises(ListingError, match="is no index"):
        list(index_entries(pieces(), "x", Limits()))
    assert len(given) < 100


def test_what_others_have_is_waited_for_and_what_never_fits_is_refused():
    memory = ListingMemory(10 * MIB)
    one, other = memory.account(), memory.account()
    one.limits.check(40_000, 0)
    with pytest.raises(SourceError) as caught:
        other.limits.check(40_000, 0)
    assert caught.value.retry and not caught.value.changed
    other.limits.check(4096, 100_000)  # a small one has its place all the same
    with pytest.raises(ListingError, match="more than 50000 entries"):
        one.limits.check(50_000, 0)
    one.close()
    other.limits.check(40_000, 0)
    other.close()
    assert memory.held == 0


def test_an_account_takes_nothing_for_what_it_has_and_nothing_when_it_is_closed():
    memory = ListingMemory(100 * MIB)
    account = memory.account()
    account.grow(100_000, 1_000_000)
    held = memory.held
    account.grow(50_000, 0)
    assert memory.held == held > 0
    account.listed()
    assert 0 < memory.held < held
    account.close()
    account.grow(100_000, 0)
    assert memory.held == 0


def test_the_usual_limits_hold_too():
    with pytest.raises(ListingError, match="more than 5 entries"):
        AccountedLimits(entries=5).check(6, 0)


@pytest.mark.parametrize(
    ("text", "most"),
    [("2147483648\n", 1 << 30), ("max\n", 1 << 30), ("9223372036854771712", 1 << 30), ("67108864", 64 * MIB)],
)
def test_the_memory_follows_from_the_containers(tmp_path, monkeypatch, text, most):
    (tmp_path / "max").write_text(text)
    monkeypatch.setattr(
        listing_memory._memory_limit, "__defaults__", ((tmp_path / "none", tmp_path / "max"),)
    )
    assert ListingMemory().most == most
