# SPDX-License-Identifier: Apache-2.0
"""When an agent serves claims."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agent.claims.registration import offer
from agent.config import Config
from agent.roles.claim_parts import CLAIM_TIMES, claims_are_served, claims_may_come
from gigaslice.core.allocation.table import AllocationTable
from tests.fakes.nodes import allocation
from tests.unit.agent.claims.test_records import CLAIM


@pytest.mark.parametrize(
    ("api", "allocations", "registered", "served"),
    [
        ("dra", (), False, True),
        ("device-plugin", (), False, False),
        ("device-plugin", (allocation(1, (0, range(2))),), False, False),
        ("device-plugin", (CLAIM,), False, True),
        ("device-plugin", (), True, True),  # its slices may still send pods here
    ],
)
def test_claims_are_served_where_there_are_or_may_be_some(tmp_path, api, allocations, registered, served):
    socket = tmp_path / "plugins_registry" / "gigaslice.io-reg.sock"
    assert offer(tmp_path).registration == str(socket)
    if registered:
        socket.parent.mkdir()
        socket.touch()
    config = Config(api=api, kubelet_root=tmp_path)
    store = SimpleNamespace(table=AllocationTable(allocations))
    assert claims_are_served(config, store) is served
    assert claims_may_come(config) is (served and CLAIM not in allocations), "of records nothing is known yet"


def test_a_call_is_held_for_nearly_as_long_as_a_kubelet_waits():
    """It gives up after 45 seconds; an answer before that costs the pod 72 more."""
    assert 35 <= CLAIM_TIMES.patience <= 40
    assert CLAIM_TIMES.patience + CLAIM_TIMES.margin < 45
    assert CLAIM_TIMES.unwatched_patience <= CLAIM_TIMES.patience, "a pod that is deleted waits for its end"
