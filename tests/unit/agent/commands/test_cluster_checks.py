# SPDX-License-Identifier: Apache-2.0
"""`gigaslice doctor --cluster`: what is in order in an installation, and what is said where it is not."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent.commands import cluster_checks
from agent.commands import doctor as doctor_command
from gigaslice.kubeapi.access import Access
from gigaslice.roles.webhook.certificates import Certificates, issue_certificates
from gigaslice_cli.frame import main
from tests.fakes.clusters import inventory_gpu, node_inventory
from tests.fakes.kubeapi import ApiServer, Fault, node_document

RESOURCE = "gigaslice.io/vgpu-memory"
NAMESPACE, HOST = "gigaslice", "gigaslice-webhook.gigaslice.svc"
LEASES = {"kube-scheduler": "gigaslice-scheduler", "controller": "gigaslice-controller"}


class Webhook(BaseHTTPRequestHandler):
    """Answers every review as ALLOWED says, with the uid that was asked."""

    allowed = True

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"response": {"uid": asked["request"]["uid"], "allowed": self.allowed}}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def certificates() -> Certificates:
    return issue_certificates(HOST, datetime.datetime.now(datetime.timezone.utc))


@pytest.fixture
def served(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Webhook]]:
    """A webhook behind the Service's name, which no name server here knows."""
    handler = type("Handler", (Webhook,), {})
    server = HTTPServer(("127.0.0.1", 0), handler)
    file = tmp_path / "chain.pem"
    file.write_bytes(certificates.chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    way = cluster_checks.service_access

    def here(service: Any, authority: bytes) -> Access:
        return replace(way(service, authority), host="127.0.0.1", port=server.server_port)

    monkeypatch.setattr(cluster_checks, "service_access", here)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def api(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """An installation in which everything is in order."""
    monkeypatch.setattr(cluster_checks, "_POLL_SECONDS", 0.01)
    with ApiServer() as server:
        server.token = ""  # as behind `kubectl proxy`
        inventory = node_inventory([inventory_gpu("a", 0), inventory_gpu("a", 1)]).encode()
        server.create("nodes", node_document("a", inventory, allocatable={RESOURCE: "32"}))
        server.create("nodes", node_document("plain"))
        for part in ("node", "scheduler", "controller"):
            add_pod(server, part)
        for name in LEASES.values():
            spec = {"holderIdentity": "pod-1", "leaseDurationSeconds": 1, "renewTime": "1"}
            server.create("leases", {"metadata": {"name": name}, "spec": spec}, NAMESPACE)
        renewals(server)
        hook = {
            "clientConfig": {
                "caBundle": base64.b64encode(certificates.bundle).decode(),
                "service": {
                    "name": "gigaslice-webhook",
                    "namespace": NAMESPACE,
                    "path": "/validate",
                    "port": 443,
                },
            }
        }
        labels = {"app.kubernetes.io/name": "gigaslice"}
        document = {"metadata": {"name": "gigaslice-webhook", "labels": labels}, "webhooks": [hook]}
        server.create("validatingwebhookconfigurations", document)
        yield server


def renewals(api: ApiServer) -> None:
    """Who has a lease renews it whenever it is read."""

    def renew(method: str, target: str) -> bool:
        name = target.rpartition("/")[2].partition("?")[0]
        api.change("leases", name, {"spec": {"renewTime": str(len(api.requests))}}, NAMESPACE)
        return False

    api.faults.append(Fault("GET", "/leases/", when=renew))


def add_pod(api: ApiServer, part: str, name: str = "", ready: bool = True, **condition: str) -> None:
    labels = {"app.kubernetes.io/name": "gigaslice", "app.kubernetes.io/component": part}
    state = {"type": "Ready", "status": "True" if ready else "False", **condition}
    containers = [{"name": part}, *([{"name": "kube-scheduler"}] if part == "scheduler" else [])]
    document = {
        "metadata": {"name": name or f"{part}-1", "labels": labels},
        "spec": {"containers": containers},
        "status": {"conditions": [state]},
    }
    api.create("pods", document, NAMESPACE)


def doctor(api: ApiServer, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    code = main(["doctor", "--cluster", "--server", api.url, *words])
    return code, capsys.readouterr().out.splitlines()


def test_an_installation_in_order_is_ok_in_every_part(api, served, capsys):
    code, lines = doctor(api, capsys, "--parts=node,scheduler,controller,webhook")
    assert code == 0, lines
    assert [line.split()[:2] for line in lines] == [
        ["ok", part]
        for part in ("node", "scheduler", "controller", "nodes", "controller", "kube-scheduler", "webhook")
    ]
    assert f"32 {RESOURCE}; 1 nodes have no GPU of ours" in lines[3]
    assert "pod-1 has the lease and renews it" in lines[5]
    assert f"{HOST} answers, by a certificate that the API server trusts" in lines[6]
    assert {method for method, _ in api.requests} == {"GET"}, "asked and nothing else"


def test_an_agent_whose_slices_the_kubelet_does_not_offer_is_named(api, served, capsys):
    api.change("nodes", "a", {"status": {"allocatable": {RESOURCE: "0"}}})
    code, lines = doctor(api, capsys)
    assert code == 1 and [line for line in lines if line.startswith("fail")] == [
        f"fail  nodes            a: its agent shows GPUs, and the kubelet offers no {RESOURCE}; "
        "see the logs of the agent and of the kubelet there"
    ]


def test_a_node_that_serves_claims_offers_them_by_slices(api, served, capsys):
    api.change("nodes", "a", {"status": {"allocatable": {RESOURCE: "0"}}})
    slice_ = {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gigaslice.io",
            "nodeName": "a",
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }
    api.store.create("resourceslices", slice_)
    code, lines = doctor(api, capsys)
    assert code == 0 and any("the nodes offer 2 GPUs by claims" in line for line in lines), lines


def test_before_inventories_what_the_kubelet_offers_counts(api, served, capsys):
    api.clear("nodes")
    api.create("nodes", node_document("old", allocatable={"example.com/mem": "24"}))
    assert doctor(api, capsys)[0] == 1
    code, lines = doctor(api, capsys, "--resource=example.com/mem")
    assert code == 0 and any("24 example.com/mem" in line for line in lines), lines


def test_no_gpu_anywhere_is_a_failure(api, served, capsys):
    api.delete("nodes", "a")
    code, lines = doctor(api, capsys)
    assert code == 1 and any("no node offers gigaslice.io/vgpu-memory" in line for line in lines)


def test_an_annotation_that_is_no_inventory_is_said_of_its_node(api, served, capsys):
    api.change("nodes", "a", {"metadata": {"annotations": {"gigaslice.io/inventory": "{"}}})
    code, lines = doctor(api, capsys)
    assert code == 1 and any(line.startswith("fail  nodes") and " a: " in line for line in lines), lines


def test_a_part_that_must_be_there_and_is_not_is_a_failure(api, served, capsys):
    for name in LEASES.values():
        api.delete("leases", name, NAMESPACE)
    api.clear("validatingwebhookconfigurations")
    for part in ("scheduler", "controller"):
        api.delete("pods", f"{part}-1", NAMESPACE)
    code, lines = doctor(api, capsys)
    assert code == 0, "without --parts what is not found is not missed"
    code, lines = doctor(api, capsys, "--parts", "node, scheduler,controller,webhook")
    failed = [line.split()[1] for line in lines if line.startswith("fail")]
    assert code == 1 and failed == ["scheduler", "controller", "controller", "webhook"]


def test_of_many_agents_one_that_is_not_ready_is_a_warning(api, served, capsys):
    add_pod(api, "node", "node-2", ready=False, message="containers with unready status: [node]")
    code, lines = doctor(api, capsys)
    assert code == 0 and lines[0].startswith("warn  node") and "node-2: containers with unready" in lines[0]
    api.delete("pods", "node-1", NAMESPACE)
    assert doctor(api, capsys)[0] == 1


def test_a_lease_that_nobody_renews_is_a_failure(api, served, capsys):
    api.faults.clear()
    code, lines = doctor(api, capsys)
    assert code == 1
    assert any("pod-1 has the lease and has not renewed it for 1 seconds" in line for line in lines)
    for name in LEASES.values():
        api.change("leases", name, {"spec": {"holderIdentity": ""}}, NAMESPACE)
    assert sum("nobody has the lease" in line for line in doctor(api, capsys)[1]) == 2


def test_the_lease_that_is_taken_on_demand_is_not_missed(api, served, capsys):
    """That of the extender: nobody has it while there is nothing to bind, and who ended with it leaves it to age."""
    spec = {"holderIdentity": "gone", "leaseDurationSeconds": 1, "renewTime": "1"}
    api.create("leases", {"metadata": {"name": "gigaslice-scheduler-service"}, "spec": spec}, NAMESPACE)
    code, lines = doctor(api, capsys)
    assert code == 0 and not [line for line in lines if "gone" in line]


def test_without_a_second_scheduler_its_old_lease_is_not_missed(api, served, capsys):
    pod = api.get("pods", "scheduler-1", NAMESPACE)
    pod["spec"]["containers"] = [{"name": "scheduler"}]
    api.put("pods", pod)
    code, lines = doctor(api, capsys)
    assert code == 0 and not [line for line in lines if line.split()[1] == "kube-scheduler"], lines


@pytest.mark.parametrize("mistake", ["refuses", "other authority", "no authority"])
def test_a_webhook_that_does_not_answer_as_it_should(api, served, capsys, mistake):
    served.allowed = mistake != "refuses"
    other = issue_certificates(HOST, datetime.datetime.now(datetime.timezone.utc)).bundle
    if mistake != "refuses":
        text = base64.b64encode(other).decode() if mistake == "other authority" else ""
        document = api.get("validatingwebhookconfigurations", "gigaslice-webhook")
        document["webhooks"][0]["clientConfig"]["caBundle"] = text
        api.put("validatingwebhookconfigurations", document)
    code, lines = doctor(api, capsys)
    said = {
        "refuses": "does not allow a pod that asks for nothing",
        "other authority": "certificate",
        "no authority": "the API server has no authority for its certificate",
    }[mistake]
    assert code == 1 and lines[-1].startswith("fail  webhook") and said in lines[-1], lines


def test_outside_of_the_cluster_the_webhook_cannot_be_asked_and_that_is_said(api, capsys, monkeypatch):
    async def nowhere(access: Access) -> bool:
        assert (access.host, access.port) == (HOST, 443)
        return False

    monkeypatch.setattr(cluster_checks, "_resolves", nowhere)
    code, lines = doctor(api, capsys)
    assert code == 0 and lines[-1].startswith("warn  webhook") and "helm test" in lines[-1]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_name_that_leads_nowhere_inside_the_cluster_is_a_failure(api, capsys, monkeypatch, hangs):
    async def nowhere(loop: object, host: str, port: int) -> None:
        assert (host, port) == (HOST, 443)
        if hangs:
            await asyncio.sleep(60)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(cluster_checks, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", nowhere)
    monkeypatch.setattr(doctor_command, "kubernetes_service", lambda environment: "here")
    code, lines = doctor(api, capsys)
    assert code == 1 and lines[-1].startswith("fail  webhook") and "leads nowhere in this pod" in lines[-1]


def test_a_webhook_with_several_entries_is_asked_once(api, served, capsys):
    document = api.get("validatingwebhookconfigurations", "gigaslice-webhook")
    document["webhooks"].append({**document["webhooks"][0], "name": "claims.pods.gigaslice.io"})
    api.put("validatingwebhookconfigurations", document)
    code, lines = doctor(api, capsys)
    assert code == 0 and len([line for line in lines if line.split()[1] == "webhook"]) == 1, lines


def test_another_namespace_has_none_of_it(api, served, capsys):
    code = main(["doctor", "--cluster=elsewhere", "--server", api.url])
    lines = capsys.readouterr().out.splitlines()
    assert code == 1 and "none of gigaslice in the namespace elsewhere" in lines[0]


def test_what_may_not_be_read_is_a_failure_and_hides_no_other_answer(api, served, capsys):
    api.faults.append(Fault("GET", "/leases", 403))
    code, lines = doctor(api, capsys)
    assert code == 1 and any(line.startswith("fail  API server") and "leases" in line for line in lines)
    assert lines[-1].startswith("ok    webhook")


@pytest.mark.parametrize(
    "words", [["--parts=node"], ["--cluster", "--namespaces"], ["--cluster", "--parts=nodes"]]
)
def test_words_that_do_not_go_together_are_a_mistake(words, capsys):
    try:
        code = main(["doctor", *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and capsys.readouterr().err
