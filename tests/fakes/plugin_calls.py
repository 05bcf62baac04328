# SPDX-License-Identifier: Apache-2.0
"""The kubelet's calls of a device plugin, short enough for a test to be read."""

import grpc
import pytest

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from tests.fakes.nodes import all_device_ids, inventory


def allocate(chosen):
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=sorted(chosen))])


def pre_start(chosen):
    return api.PreStartContainerRequest(devices_ids=sorted(chosen))


async def prefer(stub, size):
    request = api.PreferredAllocationRequest(
        container_requests=[
            api.ContainerPreferredAllocationRequest(
                available_deviceIDs=all_device_ids(inventory()), allocation_size=size
            )
        ]
    )
    (answer,) = (await stub.GetPreferredAllocation(request)).container_responses
    return list(answer.deviceIDs)


async def refusal(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value.details()
