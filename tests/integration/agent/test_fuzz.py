# SPDX-License-Identifier: Apache-2.0
"""All five calls with whatever a peer can send: an error or a valid answer, never a dead agent, and allocation tables
that hold.

Requests that were thought of are in corpus.txt; hypothesis makes others, of the calls' own forms and of those.
"""

import asyncio
import contextlib
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent.allocation.start_wait import StartTimes
from agent.inventory.holder import InventoryHolder
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.persistence.store import Store, read_only
from agent.roles.records import CODEC
from gigaslice.core.deviceplugin.lifetime import ListedPod
from gigaslice.core.deviceplugin.origin import held
from gigaslice.core.kube.decode import parse_pod
from tests.fakes.cluster import MemoryCluster
from tests.fakes.kubeapi import pod_document
from tests.fakes.nodes import all_device_ids, inventory
from tests.fakes.served import gpu_memory, served
from tests.unit.agent.conftest import make_allocator

GPU = "gigaslice.io/vgpu-memory"
CORPUS = [
    (method, b"" if raw == "-" else bytes.fromhex(raw))
    for method, raw, _ in (
        line.split(" ", 2)
        for line in Path(__file__).with_name("corpus.txt").read_text().splitlines()
        if not line.startswith("#")
    )
]
METHODS = (
    "GetDevicePluginOptions",
    "ListAndWatch",
    "GetPreferredAllocation",
    "Allocate",
    "PreStartContainer",
)
FOUND = inventory(2, 8)

ids = st.sampled_from(all_device_ids(FOUND)) | st.text(max_size=12)
id_lists = st.lists(ids, max_size=20)
sizes = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 20)
preferences = st.builds(
    lambda several: api.PreferredAllocationRequest(container_requests=several),
    st.lists(
        st.builds(
            lambda free, must, size: api.ContainerPreferredAllocationRequest(
                available_deviceIDs=free, must_include_deviceIDs=must, allocation_size=size
            ),
            id_lists,
            id_lists,
            sizes,
        ),
        max_size=3,
    ),
)
occupants = st.builds(
    lambda several: api.AllocateRequest(
        container_requests=[api.ContainerAllocateRequest(devices_ids=one) for one in several]
    ),
    st.lists(id_lists, max_size=3),
)
starts = st.builds(lambda ids: api.PreStartContainerRequest(devices_ids=ids), id_lists)


def changed(request, at, cut, put):
    """A request of the corpus with CUT bytes replaced by PUT."""
    method, raw = request
    at %= len(raw) + 1
    return method, raw[:at] + put + raw[at + cut :]


messages = st.one_of(
    st.tuples(
        st.just("GetPreferredAllocation"), preferences.map(api.PreferredAllocationRequest.SerializeToString)
    ),
    st.tuples(st.just("Allocate"), occupants.map(api.AllocateRequest.SerializeToString)),
    st.tuples(st.just("PreStartContainer"), starts.map(api.PreStartContainerRequest.SerializeToString)),
    st.tuples(st.sampled_from(METHODS), st.binary(max_size=200)),
    st.builds(
        changed, st.sampled_from(CORPUS), st.integers(0, 2000), st.integers(0, 3), st.binary(max_size=3)
    ),
)
annotations = st.dictionaries(
    st.sampled_from(
        [f"gigaslice.io/{name}" for name in ("gpus", "memory", "exclusive", "same-gpu", "cores", "elastic")]
    ),
    st.sampled_from(["1", "2", "3", "true", "4,4", "1,7", "60", "lots", ""]),
    max_size=3,
)
pods = st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=3), annotations), max_size=3)


class Listed:
    """A kubelet that lists every pod of the cluster without devices: more than a real one would leave to doubt."""

    def __init__(self, cluster):
        self.cluster = cluster

    async def pods(self):
        return tuple(
            ListedPod(pod.namespace, pod.name, frozenset(), frozenset(one.name for one in pod.containers))
            for pod in self.cluster.pods.values()
        )


async def send(channel, method, raw):
    """The answer's bytes, or the code of the error. A stream is read at once."""
    path = f"/v1beta1.DevicePlugin/{method}"
    try:
        if method == "ListAndWatch":
            stream = channel.unary_stream(path)(raw, timeout=60)
            answer = await stream.read()
            stream.cancel()
            return answer
        return await channel.unary_unary(path)(raw, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code()


def is_preference(raw):
    """Whether these bytes are such a request: then an error would fail a pod."""
    try:
        api.PreferredAllocationRequest.FromString(raw)
    except DecodeError:
        return False
    return True


def check(store, calls):
    """What is in memory is on disk (but for what the kubelet says again), and every allocation has its directory."""
    table = store.table
    taken = [device_id for allocation in table.allocations for device_id in held(allocation)]
    assert len(taken) == len(set(taken)), "a device ID counts once"
    assert len({allocation.id for allocation in table.allocations}) == len(table.allocations)
    on_disk = {allocation.id for allocation in read_only(store.state_dir, CODEC)[0].allocations}
    assert {allocation.id for allocation in table.allocations} == on_disk
    assert all(store.dirs.problem(allocation) is None for allocation in table.allocations)
    assert set(store.dirs.read_all()) == on_disk, calls


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "libvcuda.so"
    path.write_bytes(b"\x7fELF library")
    return path


def test_every_request_of_the_corpus_has_an_answer_and_spoils_nothing(directory, library):
    assert {method for method, _ in CORPUS} == set(METHODS)
    converse(directory, library, MemoryCluster(), CORPUS)


@settings(
    max_examples=12,
    derandomize=True,  # a random draw of many streams can take minutes on a loaded machine
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(pods, st.lists(messages, min_size=1, max_size=8))
def test_no_message_kills_the_agent_or_spoils_its_allocation_table(directory, library, known, calls):
    cluster = MemoryCluster()
    for number, (counts, all_options) in enumerate(known):
        document = pod_document(f"p{number}", *({GPU: count} for count in counts), annotations=all_options)
        cluster.put(parse_pod(document))
    converse(directory, library, cluster, calls)


def converse(directory, library, cluster, calls):
    """Sends CALLS to an agent that has listed the pods of CLUSTER, and checks its allocation tables after each."""
    answers = {
        "GetDevicePluginOptions": api.DevicePluginOptions,
        "ListAndWatch": api.ListAndWatchResponse,
        "GetPreferredAllocation": api.PreferredAllocationResponse,
        "Allocate": api.AllocateResponse,
        "PreStartContainer": api.PreStartContainerResponse,
    }

    async def story(store):
        gpus = InventoryHolder(FOUND)
        allocator = make_allocator(store, gpus)
        times = StartTimes(patience=0.02)
        parts = gpu_memory(store, allocator, gpus, kubelet=Listed(cluster), cluster=cluster, times=times)
        async with served(parts.servicer, directory) as channel:
            for method, raw in calls:
                answer = await send(channel, method, raw)
                if isinstance(answer, bytes):
                    answers[method].FromString(answer)
                else:
                    assert answer is not grpc.StatusCode.DEADLINE_EXCEEDED, method
                    assert method != "GetPreferredAllocation" or not is_preference(raw), answer
                check(store, calls)
            alive = await send(channel, "GetDevicePluginOptions", b"")
            assert api.DevicePluginOptions.FromString(alive).pre_start_required

    with contextlib.ExitStack() as stack:
        number = len(list(directory.iterdir()))
        store = Store(directory / f"state-{number}", library, codec=CODEC)
        store.open()
        stack.callback(store.close)
        asyncio.run(story(store))
