# SPDX-License-Identifier: Apache-2.0
"""Device IDs and the GPUs they are served from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.deviceplugin.origin import assign_device_ids
from gigaslice.core.errors import StateError
from gigaslice.core.model import Placement, Share
from tests.fakes.nodes import all_device_ids, device_ids, inventory, uuid

APP = ContainerRef("default", "p", "main")


def test_device_ids_are_served_by_the_gpus_they_are_named_after():
    placement = Placement((Share(uuid(0), 2), Share(uuid(1), 2)))
    tokens = assign_device_ids(device_ids(0, 10, 9) | device_ids(1, 1, 2), placement)
    assert [(gpu_tokens.gpu, set(gpu_tokens.device_ids)) for gpu_tokens in tokens] == [
        (uuid(0), device_ids(0, 9, 10)),
        (uuid(1), device_ids(1, 1, 2)),
    ]


def test_a_wrong_number_of_device_ids_is_a_contradiction():
    with pytest.raises(StateError):
        assign_device_ids(device_ids(0, 1), Placement((Share(uuid(0), 2),)))


@given(st.data())
def test_every_device_id_is_served_once_and_every_gpu_gets_its_number(data):
    found = inventory(3, 6)
    wanted = data.draw(
        st.lists(st.sampled_from([*all_device_ids(found), "odd", "x/y"]), min_size=1, unique=True)
    )
    cuts = sorted(data.draw(st.tuples(st.integers(0, len(wanted)), st.integers(0, len(wanted)))))
    parts = (cuts[0], cuts[1] - cuts[0], len(wanted) - cuts[1])
    shares = tuple(Share(uuid(gpu), count) for gpu, count in enumerate(parts) if count)
    tokens = assign_device_ids(wanted, Placement(shares))
    assert [(gpu_tokens.gpu, len(gpu_tokens.device_ids)) for gpu_tokens in tokens] == [
        (share.gpu, share.slices) for share in shares
    ]
    assert sorted(device_id for gpu_tokens in tokens for device_id in gpu_tokens.device_ids) == sorted(wanted)
