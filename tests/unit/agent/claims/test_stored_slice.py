# SPDX-License-Identifier: Apache-2.0
"""What is read of slices: whether a server has kept what was written, and which of two states is later."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from agent.claims.stored_slice import StoredSlice, keeps_sharing, keeps_taints
from gigaslice.core.claims.slices import PublishedGpu, device_documents
from gigaslice.core.model import Topology
from tests.fakes.gpus import make_gpu
from tests.unit.gigaslice.core.claims.documents import JSON


def device() -> dict[str, Any]:
    gpu = PublishedGpu(make_gpu(healthy=False), "lost")
    return device_documents([gpu], Topology.flat(1), ()).devices[0]


def test_sharing_is_kept_as_a_whole_or_not_at_all():
    assert keeps_sharing([]) and keeps_sharing([device()])
    without = device()
    del without["allowMultipleAllocations"]
    assert not keeps_sharing([device(), without])
    for name in ("memory", "cores"):
        bare = device()
        bare["capacity"][name] = {"value": bare["capacity"][name]["value"]}
        assert not keeps_sharing([bare])
        del bare["capacity"][name]
        assert not keeps_sharing([bare])


def test_taints_are_kept_by_name():
    bare = {key: value for key, value in device().items() if key != "taints"}
    assert keeps_taints([device()], [device()])
    assert not keeps_taints([device()], [bare])
    assert keeps_taints([bare], [bare])


@pytest.mark.parametrize(
    ("version", "other", "newer"),
    [("10", "9", True), ("9", "10", False), ("9", "9", False), ("a", "1", False)],
)
def test_which_state_is_later(version: str, other: str, newer: bool):
    def state(text: str, uid: str = "1") -> StoredSlice:
        return StoredSlice.parse({"metadata": {"name": "a", "uid": uid, "resourceVersion": text}})

    assert state(version).newer_than(state(other)) == newer
    assert not state(version).newer_than(state(other, "2")), "of another slice of that name"


@given(JSON)
def test_no_slice_makes_reading_fail_otherwise(document: Any):
    fields = document if isinstance(document, dict) else {}
    for answer in (fields, {"metadata": {"name": "a"}, "spec": document}, {"spec": fields}):
        try:
            stored = StoredSlice.parse(answer)
        except ValueError:
            continue
        keeps_sharing(stored.devices)
