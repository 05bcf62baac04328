# SPDX-License-Identifier: Apache-2.0
"""The kubelet's calls about claims as messages of both versions, and their answers."""

import asyncio

import pytest
from structlog.testing import capture_logs

from agent.claims.messages import ClaimName, PrepareAnswer, PreparedDevice
from agent.claims.servicer import ClaimServicer
from agent.front.channel import CLAIM_METHODS
from agent.kubelet.pb import dra_v1_pb2, dra_v1beta1_pb2
from agent.telemetry.counters import Counters
from gigaslice.core.errors import KubeletError

API = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
A, B = ClaimName("ns", "a", "uid-a"), ClaimName("ns", "b", "uid-b")
DEVICE = PreparedDevice(("r", "s"), "node", "gpu-0", ("gigaslice.io/vgpu=a", "nvidia.com/gpu=0"), "share")


class Service:
    """Answers what it is given, or fails."""

    def __init__(self, answers=None, error=None):
        self.answers, self.error, self.asked = answers or {}, error, []

    async def prepare(self, claims, remaining):
        self.asked.append((tuple(claims), remaining))
        if self.error is not None:
            raise self.error
        return self.answers

    async def unprepare(self, claims):
        return await self.prepare(claims, None)


class Context:
    def time_remaining(self):
        return 41.5


def call(service, name, *claims, counters=None):
    """The answer to the kubelet's call, through the wire."""
    version, method = name.split(".")
    api = API[version]
    request = getattr(api, f"{method}Request")(
        claims=[api.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]
    )
    offered = ClaimServicer(service, counters).methods[name]
    response = asyncio.run(offered.answer(offered.request.FromString(request.SerializeToString()), Context()))
    return getattr(api, f"{method}Response").FromString(response.SerializeToString())


def test_every_method_of_the_front_is_answered_and_may_be_left_to_the_next_agent():
    methods = ClaimServicer(Service()).methods
    assert set(methods) == set(CLAIM_METHODS)
    assert all(method.repeatable for method in methods.values())


@pytest.mark.parametrize("version", API)
def test_prepared_devices(version):
    service = Service({"uid-a": PrepareAnswer((DEVICE,)), "uid-b": PrepareAnswer()})
    response = call(service, f"{version}.NodePrepareResources", A, B)
    assert service.asked == [((A, B), 41.5)]
    assert set(response.claims) == {"uid-a", "uid-b"}
    (device,) = response.claims["uid-a"].devices
    assert list(device.request_names) == ["r", "s"]
    assert (device.pool_name, device.device_name) == ("node", "gpu-0")
    assert list(device.cdi_device_ids) == ["gigaslice.io/vgpu=a", "nvidia.com/gpu=0"]
    if version == "v1":
        assert device.share_id == "share"
    assert response.claims["uid-a"].error == response.claims["uid-b"].error == ""


def test_a_device_that_is_not_shared_has_no_share():
    device = PreparedDevice(("r",), "node", "gpu-0", ())
    response = call(Service({"uid-a": PrepareAnswer((device,))}), "v1.NodePrepareResources", A)
    assert not response.claims["uid-a"].devices[0].HasField("share_id")


@pytest.mark.parametrize("version", API)
def test_an_error_of_one_claim_is_the_other_s_no_error(version):
    answers = {"uid-a": PrepareAnswer((DEVICE,), "no room"), "uid-b": PrepareAnswer((DEVICE,))}
    response = call(Service(answers), f"{version}.NodePrepareResources", A, B)
    assert response.claims["uid-a"].error == "no room"
    assert not response.claims["uid-a"].devices, "what is not prepared has nothing"
    assert len(response.claims["uid-b"].devices) == 1 and not response.claims["uid-b"].error


@pytest.mark.parametrize("name", CLAIM_METHODS)
def test_a_claim_that_the_service_leaves_out_is_an_error_that_says_so(name):
    response = call(Service({}), name, A)
    assert "no answer" in response.claims["uid-a"].error


@pytest.mark.parametrize("version", API)
def test_unprepared_claims(version):
    service = Service({"uid-a": "", "uid-b": "the state directory is full"})
    response = call(service, f"{version}.NodeUnprepareResources", A, B)
    assert service.asked[0][0] == (A, B)
    assert {uid: entry.error for uid, entry in response.claims.items()} == service.answers


@pytest.mark.parametrize("name", CLAIM_METHODS)
@pytest.mark.parametrize(
    ("error", "text", "level"),
    [
        (KubeletError("the API server\ndoes not answer"), "the API server does not answer", "error"),
        (RuntimeError("a mistake"), "RuntimeError: a mistake", "error"),
    ],
)
def test_an_exception_is_every_claim_s_error_and_is_logged(name, error, text, level):
    with capture_logs() as logs:
        response = call(Service(error=error), name, A, B)
    assert {uid: entry.error for uid, entry in response.claims.items()} == {"uid-a": text, "uid-b": text}
    (line,) = [entry for entry in logs if entry["event"] == "claims failed"]
    assert (line["claims"], line["log_level"]) == ("ns/a, ns/b", level)
    assert ("exc_info" in line) == isinstance(error, RuntimeError), "a traceback is for mistakes of ours"


def test_calls_and_errors_are_counted():
    counters = Counters()
    call(Service({"uid-a": PrepareAnswer(error="no")}), "v1.NodePrepareResources", A, B, counters=counters)
    call(Service(error=RuntimeError()), "v1.NodeUnprepareResources", A, counters=counters)
    assert counters.claim_errors == {"prepare": 2, "unprepare": 1}
    count = {
        operation: [
            sample.value
            for metric in histogram.collect()
            for sample in metric.samples
            if sample.name.endswith("_count")
        ]
        for operation, histogram in counters.claim_calls.items()
    }
    assert count == {"prepare": [1.0], "unprepare": [1.0]}


def test_a_call_that_is_taken_back_is_no_error():
    class Slow(Service):
        async def prepare(self, claims, remaining):
            await asyncio.Event().wait()

    async def story():
        counters = Counters()
        task = asyncio.ensure_future(ClaimServicer(Slow(), counters).prepare((A,), None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert counters.claim_errors["prepare"] == 0

    asyncio.run(story())
