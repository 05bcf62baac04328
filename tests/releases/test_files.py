# SPDX-License-Identifier: Apache-2.0
"""The files and texts of every release: read by the code of today as by its own, and back.

Upgrade: what a release has written means today what it meant. Way back: what today's code writes, and what it has made
of the release's files, means the same to the release's own code. docs/compatibility.md says what cannot go back.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import vcuda
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.allocation.table import LiveLimit
from gigaslice.core.claims.origin import ClaimOrigin
from release.versions import key
from tests.fakes.nodes import GIB, uuid
from tests.releases import reading, writing
from tests.releases.conftest import as_json
from tests.releases.make import STATES

# What versions before the release of that name do not print: to be added where a fact is new.
LATER: dict[str, str] = {}


def without_later(facts, version):
    """FACTS without those that a release does not know."""
    if isinstance(facts, dict):
        known = {
            name: value for name, value in facts.items() if key(LATER.get(name, version)) <= key(version)
        }
        return {name: without_later(value, version) for name, value in known.items()}
    return [without_later(one, version) for one in facts] if isinstance(facts, list) else facts


def test_versions_are_compared_as_numbers(monkeypatch):
    monkeypatch.setitem(LATER, "new", "0.10.0")
    assert without_later({"old": 1, "new": 2}, "0.9.0") == {"old": 1}
    assert without_later([{"new": {"new": 2}}], "0.10.0") == [{"new": {"new": 2}}]


def today(kind, path, release):
    """What the code of today reads there, in the words of the release."""
    return without_later(as_json(reading.KINDS[kind](path)), release.version)


@pytest.mark.parametrize("name", STATES)
def test_directories_of_a_release_mean_what_they_meant(release, tmp_path, name):
    place = release.state(name, tmp_path / name)
    assert today(STATES[name], place, release) == release.facts[name]


def test_texts_of_a_release_mean_what_they_meant(release):
    assert today("texts", release.fixtures / "texts.json", release) == release.facts["texts"]


@pytest.mark.parametrize("name", STATES)
def test_what_today_makes_of_them_can_go_back(release, tmp_path, name):
    """Opened and mended by the code of today, and then by that of the release: nothing is lost on the way."""
    place = release.state(name, tmp_path / name)
    today(STATES[name], place, release)
    assert release.read(STATES[name], place) == release.facts[name]


def test_a_state_that_went_on_can_go_back(release, tmp_path):
    """An agent of today ends allocations, makes others, and changes limits; the release's agent comes back."""
    place = release.state("state", tmp_path / "state")
    source = tmp_path / "library.so"
    source.write_bytes(writing.LIBRARY)
    store = Store(place, source, codec=CODEC)
    store.open()
    lending, resized, *_ = store.table.allocations
    store.release(store.table.without([lending.id]), [lending])
    claim = next(one for one in store.table.allocations if isinstance(one.origin, ClaimOrigin))
    store.release(store.table.without([claim.id]), [claim])
    grown = replace(resized, limits=(LiveLimit(uuid(0), 5 * GIB), LiveLimit(uuid(1), None, 40)), resizes=4)
    store.resize(grown)
    store.dirs.set_limits(grown.id, {uuid(0): (5 * GIB, 30), uuid(1): (4 * GIB, 40)})
    number = store.table.next_number
    (made, of_claim) = (replace(one, library=store.library) for one in (
        replace(lending, id="f" * 32, number=number, created=1.0), replace(writing.claimed(number + 1), id="e" * 32),
    ))  # fmt: skip
    for one in (made, of_claim):
        store.commit(store.table.with_allocation(one), [one])
        store.write_owner(one)
    store.close()
    after = today("node-state", place, release)
    assert {"f" * 32, "e" * 32} <= set(after["allocations"])
    kept = after["allocations"][grown.id]
    assert (kept["quota"][uuid(0)], kept["cores"][uuid(1)], kept["resizes"]) == (5 * GIB, 40, 4)
    assert kept["page"]["gpus"][uuid(0)][0] == 5 * GIB
    assert release.read("node-state", place) == after


@pytest.mark.parametrize("name", STATES)
def test_a_release_reads_what_today_writes(release, tmp_path, name):
    place = tmp_path / name
    if name == "quotas":
        writing.quotas(place, tmp_path / "machine")
    elif name == "dataset":
        writing.dataset_state(place)
    else:
        writing.node_state(place, claims=name == "state")
    assert release.read(STATES[name], place) == today(STATES[name], place, release)


def test_a_release_reads_the_texts_of_today(release, tmp_path):
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(writing.texts()))
    assert release.read("texts", path) == today("texts", path, release)


def test_pages_and_ledgers_go_both_ways(release, tmp_path):
    """Limits that the agent changes under a running program, and what the program has charged."""
    quotas = release.state("quotas", tmp_path / "quotas")
    (used,) = (path for path in quotas.iterdir() if path.name.startswith("run-"))
    vcuda.set_memory_limit(used / "limits", writing.MACHINE[0], 3 * GIB)
    vcuda.set_undeclared(used / "limits", writing.MACHINE[1], 7 << 20)
    vcuda.set_allowed(used / "limits", writing.MACHINE[1], 450)
    assert release.read("limits", used / "limits") == today("limits", used / "limits", release)
    assert release.read("ledger", used / "ledger") == today("ledger", used / "ledger", release)
    peaks = {
        peak for one in today("ledger", used / "ledger", release)["processes"] for peak in one[3].values()
    }
    assert max(peaks) > 3 * GIB, "the programs of the fixture have used it"
