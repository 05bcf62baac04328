# SPDX-License-Identifier: Apache-2.0
"""A short storm over a node of claims; `make test-claim-kills` is the long one."""

from __future__ import annotations

import pytest

from tests.fakes.kubeapi import NODE, ApiServer
from tests.integration.claims.storm import ClaimStorm

_ROUNDS, _SECONDS = 8, 10.0


@pytest.mark.long  # everything dies at once, so it needs a machine that has time for it
@pytest.mark.parametrize("seed", [1])
def test_the_books_agree_at_any_instant_and_nothing_is_left(directory, seed):
    with ApiServer(NODE) as api:
        storm = ClaimStorm(directory, api, seed)
        try:
            storm.begin()
            storm.blow(_ROUNDS, longest=_SECONDS)
            storm.end()
        finally:
            storm.stop()
    assert storm.counts["comparisons"] and storm.delays
    assert not [log for log in directory.glob("agent*.log") if "Traceback" in log.read_text()]
