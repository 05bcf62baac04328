# SPDX-License-Identifier: Apache-2.0
"""The stand-in's CSI side against recorded conversations of a real kubelet: order, bodies, times, events."""

import asyncio
import json
from pathlib import Path

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2 as csi
from gigaslice.roles.dataset_node.csi.pb import csi_v1_pb2_grpc as csi_rpc
from gigaslice.runtime.pb import pluginregistration_v1_pb2 as reg
from gigaslice.runtime.pb import pluginregistration_v1_pb2_grpc as reg_rpc
from tests.fakes.eventually import until
from tests.fakes.kubelet.csi import CsiKubelet, CsiPod, CsiVolumeOfPod

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "transcripts"
DRIVER = "dataset.gigaslice.io"


def transcript(name):
    return [json.loads(line) for line in (RECORDED / f"kubelet-csi-{name}.jsonl").read_text().splitlines()]


def calls(lines, pod=""):
    """The kubelet's calls, those of volumes of one pod if named."""
    found = [one for one in lines if one.get("to") == "driver"]
    if not pod:
        return found
    return [
        one
        for one in found
        if one["body"].get("volume_context", {}).get("csi.storage.k8s.io/pod.name") == pod
    ]


class Driver(csi_rpc.NodeServicer, csi_rpc.IdentityServicer, reg_rpc.RegistrationServicer):
    """Answers as the recorded toy driver did. refusals: (code, text) of the next publishes."""

    def __init__(self, kubelet):
        self.kubelet, self.refusals, self.server, self.registrar = kubelet, [], None, None

    async def start(self):
        directory = self.kubelet.root / "plugins"
        directory.mkdir(exist_ok=True)
        self.server, self.registrar = grpc.aio.server(), grpc.aio.server()
        csi_rpc.add_NodeServicer_to_server(self, self.server)
        reg_rpc.add_RegistrationServicer_to_server(self, self.registrar)
        self.server.add_insecure_port(f"unix:{directory}/csi.sock")
        await self.server.start()
        self.registrar.add_insecure_port(f"unix:{self.kubelet.registry}/{DRIVER}-reg.sock")
        await self.registrar.start()

    async def stop(self):
        await self.server.stop(None)
        await self.registrar.stop(None)

    async def GetInfo(self, request, context):  # noqa: N802
        endpoint = f"{self.kubelet.root}/plugins/csi.sock"
        return reg.PluginInfo(type="CSIPlugin", name=DRIVER, endpoint=endpoint, supported_versions=["1.0.0"])

    async def NotifyRegistrationStatus(self, request, context):  # noqa: N802
        return reg.RegistrationStatusResponse()

    async def NodeGetInfo(self, request, context):  # noqa: N802
        return csi.NodeGetInfoResponse(node_id="lab-node")

    async def NodeGetCapabilities(self, request, context):  # noqa: N802
        return csi.NodeGetCapabilitiesResponse()

    async def NodePublishVolume(self, request, context):  # noqa: N802
        if self.refusals:
            await context.abort(*self.refusals.pop(0))
        return csi.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(self, request, context):  # noqa: N802
        return csi.NodeUnpublishVolumeResponse()


def play(short_dir, story, scale):
    async def main():
        kubelet = CsiKubelet(short_dir, scale=scale)
        driver = Driver(kubelet)
        await kubelet.start()
        await driver.start()
        try:
            await asyncio.wait_for(kubelet.registered.wait(), 20)
            await asyncio.wait_for(story(kubelet, driver), 60)
        finally:
            await kubelet.stop()
            await driver.stop()

    asyncio.run(main())


def test_registration_and_publish_are_the_recorded_calls(short_dir):
    recorded = calls(transcript("register-publish"))

    async def story(kubelet, driver):
        attributes = {"dataset": "coco", "mode": "ok", "ready_after": "0"}
        secret = {"access_key": "REDACTED", "secret_key": "REDACTED"}
        pod = kubelet.run(CsiPod("v1", [CsiVolumeOfPod("d", attributes, secret)]))
        await pod.ready.wait()
        kubelet.delete(pod)
        await until(lambda: not kubelet.pods)
        assert [one["rpc"] for one in kubelet.calls] == [one["rpc"] for one in recorded]
        (sent,) = kubelet.rpcs("NodePublishVolume")
        body = MessageToDict(sent["request"], preserving_proto_field_name=True)
        (real,) = [one["body"] for one in recorded if one["rpc"].endswith("NodePublishVolume")]
        uid = real["volume_context"]["csi.storage.k8s.io/pod.uid"]
        assert set(body) == set(real)
        for key in ("volume_capability", "readonly", "secrets"):
            assert body[key] == real[key]
        assert {**body["volume_context"], "csi.storage.k8s.io/pod.uid": uid} == real["volume_context"]
        assert (
            body["target_path"].replace(str(short_dir), "/var/lib/kubelet").replace(pod.uid, uid)
            == real["target_path"]
        )
        assert len(body["volume_id"]) == len(real["volume_id"])
        (gone,) = kubelet.rpcs("NodeUnpublishVolume")
        assert gone["request"].volume_id == body["volume_id"]

    play(short_dir, story, 0.05)


@pytest.mark.parametrize(("pod", "code"), [("v5", "ABORTED"), ("v6", "FAILED_PRECONDITION")])
def test_retries_come_when_the_real_kubelets_came(short_dir, pod, code):
    recorded = calls(transcript("aborted"), pod)
    begun = recorded[0]["t"]
    times = [(one["t"] - begun) / 1000 for one in recorded]
    refusals = [
        (getattr(grpc.StatusCode, code), one["reply"]["details"])
        for one in recorded
        if "code" in one["reply"]
    ]
    scale = 0.1

    async def story(kubelet, driver):
        driver.refusals = list(refusals)
        one = kubelet.run(CsiPod(pod, [CsiVolumeOfPod("d", {"dataset": "coco"})]))
        await one.ready.wait()
        sent = kubelet.rpcs("NodePublishVolume")
        found = [(call["t"] - sent[0]["t"]) / 1000 / scale for call in sent]
        assert len(found) == len(times)
        # Never sooner than the real one by more than its own rounding; later only because this machine is busy.
        assert all(mine >= real * 0.9 - 0.2 for mine, real in zip(found, times, strict=True)), (found, times)

    play(short_dir, story, scale)


def test_events_are_worded_as_the_real_ones(short_dir):
    told = [one for one in transcript("aborted") if one.get("note") == "events of v6"]
    events = [one for line in told for one in line["events"]]
    (real,) = [one["message"] for one in events if one["reason"] == "FailedMount"]
    missing = [one for line in transcript("register-publish") if "events" in line for one in line["events"]]
    (no_secret,) = [one["message"] for one in missing if one["reason"] == "FailedMount"]

    async def story(kubelet, driver):
        driver.refusals = [(grpc.StatusCode.FAILED_PRECONDITION, "no space for dataset coco")]
        one = kubelet.run(CsiPod("v6", [CsiVolumeOfPod("d", {"dataset": "coco"})]))
        await one.ready.wait()
        assert one.events == [real]
        calls_before = len(kubelet.calls)
        two = kubelet.run(CsiPod("v2", [CsiVolumeOfPod("d", {"dataset": "coco"}, None)]))
        await until(lambda: two.events)
        assert two.events[0] == no_secret
        assert len(kubelet.calls) == calls_before, "no call at all"

    play(short_dir, story, 0.05)


def test_a_restart_registers_and_publishes_as_the_real_one(short_dir):
    lines = transcript("kubelet-restart")
    started = next(one["t"] for one in lines if str(one.get("note", "")).startswith("kubelet started"))
    stopped = next(one["t"] for one in lines if str(one.get("note", "")).startswith("driver stops"))
    recorded = [one["rpc"] for one in calls(lines) if started < one["t"] < stopped]

    async def story(kubelet, driver):
        pod = kubelet.run(CsiPod("v3", [CsiVolumeOfPod("d", {"dataset": "coco"})]))
        await pod.ready.wait()
        await kubelet.stop()
        before = len(kubelet.calls)
        await kubelet.start()
        await until(lambda: len(kubelet.rpcs("NodePublishVolume")) == 2)
        assert [one["rpc"] for one in kubelet.calls[before:]] == recorded

    play(short_dir, story, 0.2)
