# SPDX-License-Identifier: Apache-2.0
"""The fixtures of a release stay what they were when it was cut: with fewer of them the other tests would say less."""

from __future__ import annotations

from release.artifacts import SUMS, sums
from release.changelog import releases
from tests.releases.conftest import RELEASES, ROOT


def test_fixtures_are_what_they_were(release):
    assert sums(release.fixtures) == (release.fixtures / SUMS).read_text()


def test_every_release_has_its_fixtures():
    assert {path.name for path in RELEASES} == set(releases((ROOT / "CHANGELOG.md").read_text()))
