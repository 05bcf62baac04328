# SPDX-License-Identifier: Apache-2.0
"""What the API server has allocated is given out as it stands, also where slices have another size since."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.fakes.claims_of_node import claim, claiming, result
from tests.fakes.gpus import GIB, uuid
from tests.fakes.nodes import inventory


def in_slices_of(node, gib):
    """Has the agent started with another --slice."""
    now = inventory(2)
    gpus = tuple(replace(gpu, slices=24 // gib, slice_bytes=gib * GIB) for gpu in now.gpus)
    node.gpus.replace(replace(now, gpus=gpus))


def prepare(node, one):
    return asyncio.run(node.prepare(one))[0]


@pytest.mark.parametrize(
    ("gib", "sentence"),
    [(9, "9 GiB of GPU-"), (25, "4 slices of GPU-")],
)
def test_more_than_was_allocated_is_not_given_out(node, gib, sentence):
    in_slices_of(node, 8)
    one = node.reserve(claim("c", result(0, gib)), claiming("train"))
    answer = prepare(node, one)
    assert sentence in answer.error and "delete the claim and its pods" in answer.error
    assert not node.store.table.allocations


def test_requests_that_are_whole_slices_together_are_given_out(node):
    in_slices_of(node, 8)
    one = node.reserve(claim("c", result(0, 4, "a"), result(0, 12, "b")), claiming("train"))
    assert not prepare(node, one).error
    assert [allocation.quota() for allocation in node.store.table.allocations] == [{uuid(0): 16 * GIB}]


@pytest.mark.parametrize("gib", [9, 23])
def test_what_is_prepared_stays_as_it_is(node, gib):
    """A kubelet that was started again asks for it when the next pod attaches."""
    one = node.reserve(claim("c", result(0, gib)), claiming("first"))
    answer, before = prepare(node, one), node.store.table.allocations
    in_slices_of(node, 16)
    assert prepare(node, one) == answer and not answer.error
    assert node.store.table.allocations == before


def test_the_same_amount_given_anew_is_the_same_allocation(node):
    one = node.reserve(claim("c", result(0, 8)), claiming("train", phase="Running"))
    prepare(node, one)
    (before,) = node.store.table.allocations
    in_slices_of(node, 4)
    node.mounted = {before.id}
    anew = (replace(result(0, 8), share_id="anew"),)
    assert not prepare(
        node, node.claims.put(replace(node.claims.by_name["default", "c"], results=anew))
    ).error
    (after,) = node.store.table.allocations
    assert (after.id, after.quota()) == (before.id, {uuid(0): 8 * GIB})
