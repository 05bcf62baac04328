# SPDX-License-Identifier: Apache-2.0
"""Preflight: each thing that can be wrong with a node is told on a line of its own, with what to do."""

import contextlib
import json
import os
import socket
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import vcuda
from agent import config
from agent.commands import gpu_checks, node_checks
from gigaslice.core.errors import MissingError
from gigaslice_cli import frame
from tests.fakes.kubeapi import NODE, ApiServer, Fault, pod_document
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.nodes import inventory, uuid
from vcuda.doctor import Finding


@pytest.fixture
def tmp_path():
    """Short: the path of a socket may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def settings(tmp_path):
    def load(**flags):
        given = {"state-dir": str(tmp_path / "state"), "kube-api": "off"}
        given |= {"kubelet-dir": str(tmp_path / "nowhere"), "pod-resources": str(tmp_path / "no.sock")}
        given |= {"kubelet-root": str(tmp_path / "kubelet"), "cdi-dir": str(tmp_path / "cdi")}
        given["driver-limits-socket"] = str(tmp_path / "limits.sock")
        return config.load(given | {name.replace("_", "-"): value for name, value in flags.items()}, {})

    return load


def findings(settings, look=lambda _: inventory(1)):
    found = list(node_checks.as_lines(node_checks.examine(settings, look)))
    assert all("\n" not in line for _, line in found)
    assert all(one.remedy or one.level == "ok" or one.subject == "GPUs" for one, _ in found)
    return {one.subject: one for one, _ in found}


def test_a_node_that_is_ready(settings):
    with tempfile.TemporaryDirectory(prefix="gs-") as short, FakeKubelet(Path(short)) as kubelet:
        found = findings(
            settings(
                kubelet_dir=str(kubelet.plugin_directory), pod_resources=str(kubelet.pod_resources_socket)
            )
        )
    assert {one.level for one in found.values() if one.subject != "PIDs"} == {"ok"}
    assert "24 slices of 1 GiB" in found["GPU 0"].text


@pytest.mark.parametrize(
    ("told", "words"), [(True, "only where"), (False, "not counted"), (None, "not loaded")]
)
def test_what_lent_memory_needs_of_the_driver(settings, monkeypatch, told, words):
    monkeypatch.setattr(gpu_checks, "counters_are_on", lambda: told)
    found = findings(settings(host_memory="8GiB"))
    assert words in found["page faults"].text
    assert "concurrentManagedAccess" in found["host memory"].text
    assert "page faults" not in findings(settings())


@pytest.mark.parametrize("off", [True, False])
def test_a_driver_that_leaves_memory_as_it_was_is_said(settings, monkeypatch, off):
    monkeypatch.setattr(gpu_checks.memory_clearing, "is_switched_off", lambda: off)
    found = findings(settings())
    assert ("GPU memory" in found) == off
    if off:
        assert found["GPU memory"].level == "warn"
        assert "RMDisableScrubOnFree=1" in found["GPU memory"].text
        assert "NVreg_RegistryDwords" in found["GPU memory"].remedy


def test_a_node_without_a_kubelet_where_it_was_looked_for(settings, tmp_path):
    found = findings(settings())
    assert found["kubelet"].level == found["pod resources"].level == "fail"
    assert "--kubelet-dir" in found["kubelet"].remedy
    (tmp_path / "nowhere").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "nowhere" / "kubelet.sock"))
    found = findings(settings())
    assert (found["kubelet"].level, "refused" in found["kubelet"].text) == ("fail", True)


def test_no_driver_and_an_unhealthy_gpu(settings, tmp_path):
    def nothing(_):
        raise MissingError("no driver; install it")

    empty = str(tmp_path / "sys")
    found = findings(settings(sysfs=empty, without_gpus="exit"), nothing)["GPUs"]
    assert (found.level, found.text) == ("fail", "no driver; install it")
    found = findings(settings(sysfs=empty), nothing)["GPUs"]
    assert found.level == "warn" and "would wait for GPUs" in found.text
    gpu = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    found = findings(settings(sysfs=empty), nothing)["GPUs"]
    assert found.level == "fail" and "1 NVIDIA GPUs are on the PCI bus, but no driver" in found.text
    assert findings(settings(), lambda _: inventory(1, unhealthy=(0,)))["GPU 0"].level == "warn"


@pytest.mark.parametrize("api, flags", [("device-plugin", {"state-dir"}), ("dra", {"state-dir", "cdi-dir"})])
def test_default_directories_that_the_agent_would_refuse_to_make_are_named(monkeypatch, tmp_path, api, flags):
    there = os.path.lexists
    defaults = ("/var/lib/gigaslice", "/var/run/cdi")
    monkeypatch.setattr(os.path, "lexists", lambda path: str(path) not in defaults and there(path))
    given = {"api": api, "driver-limits-socket": str(tmp_path / "limits.sock")}
    found = findings(config.load(given, {}))
    assert {flag for flag in ("state-dir", "cdi-dir") if flag in found} == flags
    assert "ledgers" not in found, "which are tried in a directory that is there"
    for flag in flags:
        assert found[flag].level == "fail" and f"--{flag}=/var" in found[flag].remedy
    named = {"state-dir": str(tmp_path / "state"), "cdi-dir": str(tmp_path / "cdi")}
    assert not flags & set(findings(config.load(given | named, {})))


def test_a_state_directory_that_cannot_be_written(settings, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert findings(settings())["state"].level == "fail"


def test_what_a_lying_api_server_says_acts_on_no_terminal():
    ((_, line),) = node_checks.as_lines(
        iter([Finding("fail", "API server", "a\u202eb\x00\rc\x1b[31m", "remedy")])
    )
    assert line.isprintable()


def test_where_ledgers_would_lie(settings, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    config = settings(ledger_dir=str(tmp_path / "run"))
    losing = []
    monkeypatch.setattr(vcuda, "locks_last", lambda path: not any(path.is_relative_to(one) for one in losing))
    found = findings(config)["ledgers"]
    assert (found.level, found.text) == ("ok", f"new ones would lie in {config.state_dir}")
    config.state_dir.mkdir()
    losing.append(config.state_dir)
    found = findings(config)["ledgers"]
    assert found.level == "ok"
    assert found.text.endswith(f"new ones would lie in {tmp_path}/run")
    losing.append(tmp_path)
    found = findings(config)["ledgers"]
    assert found.level == "warn"
    assert str(config.state_dir) in found.text
    assert str(config.ledger_dir) in found.text
    assert list(config.state_dir.iterdir()) == list(config.ledger_dir.iterdir()) == []


def test_the_pid_namespace_is_told_by_its_number(tmp_path):
    assert node_checks._check_pid_namespace(tmp_path).level == "fail"
    assert node_checks._check_pid_namespace(tmp_path / "missing").level == "warn"


def test_cdi_descriptions_are_looked_for(tmp_path):
    assert gpu_checks.check_cdi((tmp_path / "none", tmp_path)).level == "warn"
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    assert gpu_checks.check_cdi((tmp_path / "none", tmp_path)).level == "ok"


@pytest.fixture
def api(settings, tmp_path):
    """The finding about an API server as the test leaves it."""
    with ApiServer(NODE) as server:

        def find(subject="API server", **more):
            path = str(server.kubeconfig(tmp_path))
            return findings(settings(kube_api="auto", kubeconfig=path, node_name="node-a", **more))[subject]

        yield server, find


def test_an_api_server_is_asked_whether_it_lets_us_in(api):
    server, find = api
    found = find()
    assert found.level == "ok" and "lets us in" in found.text
    assert server.asked("GET", "limit=1") == 1
    assert server.events() == [] and server.sent("POST", "/eviction") == [], "asked and nothing else"


@pytest.mark.parametrize("status, words", [
    (401, ("does not accept the credentials", "token")), (403, ("may not list pods", "daemonset.yaml")),
    (500, ("500", "")), (404, ("404", "")),
])  # fmt: skip
def test_credentials_that_are_refused_are_no_ok(api, status, words):
    server, find = api
    server.denial = status
    found = find()
    assert found.level == "fail"
    assert all(word in f"{found.text}; {found.remedy}" for word in words)


@pytest.mark.parametrize("token, words", [("dead", "401"), ("", "no token in it")])
def test_a_dead_token_is_seen(settings, tmp_path, token, words):
    with ApiServer(NODE) as server:
        path = server.kubeconfig(tmp_path)
        (tmp_path / "token").write_text(token)
        found = findings(settings(kube_api="auto", kubeconfig=str(path), node_name="node-a"))["API server"]
    assert found.level == "fail" and words in found.text and found.remedy
    assert not token or token not in found.text


@pytest.mark.parametrize("right, overuse, level", [
    (("watch", "pods"), "report", "fail"), (("create", "events"), "report", "warn"),
    (("patch", "events"), "report", "warn"), (("create", "pods/eviction"), "report", "ok"),
    (("create", "pods/eviction"), "evict", "fail"), (("create", "pods/eviction"), "dry-run", "fail"),
])  # fmt: skip
def test_rights_that_are_missing_are_named(api, right, overuse, level):
    server, find = api
    server.answers.refused_rights = {right}
    found = find(overuse=overuse)
    assert found.level == level
    assert level == "ok" or " ".join(right) in found.text
    assert ("eviction.yaml" in found.remedy) == (level != "ok" and "eviction" in right[1])


def test_without_the_right_to_publish_little_is_missing_and_it_is_said_where_it_comes_from(api):
    server, find = api
    server.answers.refused_rights = {("patch", "nodes")}
    assert find().level == "ok"
    found = find("publishing")
    assert found.level == "warn" and "deploy/node-policy.yaml" in found.remedy
    assert server.asked("PATCH", "/nodes/") == 0


def test_it_is_tried_whether_a_policy_keeps_the_agent_to_its_own_annotations(api):
    server, find = api
    assert find("publishing").level == "ok"
    server.answers.node_policy = False
    found = find("publishing")
    assert found.level == "fail" and "deploy/node-policy.yaml" in found.remedy
    server.faults.append(Fault("PATCH", "/nodes/", 500))
    assert find("publishing").level == "warn"
    assert "annotations" not in server.get("nodes", NODE)["metadata"], "tried and nothing else"


def test_an_api_server_that_is_not_reached(settings, tmp_path):
    with ApiServer(NODE) as server:
        path = server.kubeconfig(tmp_path)
    found = findings(settings(kube_api="auto", kubeconfig=str(path), node_name="node-a"))["API server"]
    assert found.level == "fail" and "not reached" in found.text


def test_the_command_fails_when_anything_does(tmp_path, capsys):
    path = tmp_path / "inventory.yaml"
    path.write_text(f"gpus:\n  - {{uuid: {uuid(0)}, model: NVIDIA L4, memory: 24GiB}}\n")
    words = ["doctor", "--inventory", str(path), "--state-dir", str(tmp_path), "--kube-api", "off"]
    assert frame.main([*words, "--kubelet-dir", str(tmp_path / "x")]) == 1
    out = capsys.readouterr().out
    assert out.startswith("ok    GPU 0") and "\nfail  kubelet" in out
    assert frame.main(["doctor", "--slice", "8 apples"]) == 2


def test_nothing_is_left_behind(settings, tmp_path):
    before = sorted(Path(tmp_path).rglob("*"))
    findings(settings())
    assert sorted(Path(tmp_path).rglob("*")) == before


@contextlib.contextmanager
def limits_helper(path, answer):
    """Answers one question on the socket PATH."""

    def serve():
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            assert "support" in json.loads(lines.readline())
            connection.sendall(json.dumps(answer).encode() + b"\n")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


LIMITED = {"backend": "dmem", "reason": "", "driver": "615.10", "gpus": {uuid(0): {"total": 1 << 35}}}
FORGETFUL = {**LIMITED, "gpus": {uuid(0): {"total": 1 << 35, "persistence": False}}}
NONE = {"backend": "none", "reason": "branch 580 has none", "driver": "580.1", "gpus": {}}


@pytest.mark.parametrize(
    ("answer", "levels", "words"),
    [
        (LIMITED, ("ok", "ok"), "dmem, driver 615.10"),
        (FORGETFUL, ("warn", "warn"), "persistence"),
        (NONE, ("warn", "fail"), "branch 580"),
        ({"error": "no"}, ("warn", "fail"), "no"),
        ({"backend": "soup"}, ("warn", "fail"), "dmem, misc"),
    ],
)
def test_who_limits_is_asked_of_who_would_set_limits(settings, tmp_path, answer, levels, words):
    for mode, level in zip(("auto", "required"), levels, strict=True):
        with limits_helper(tmp_path / f"{mode}.sock", answer):
            loaded = settings(driver_limits=mode, driver_limits_socket=str(tmp_path / f"{mode}.sock"))
            finding = findings(loaded)["driver limits"]
        assert finding.level == level
        assert words in finding.text + finding.remedy


@pytest.mark.parametrize(("mode", "level"), [("auto", "ok"), ("required", "fail")])
def test_where_nobody_sets_limits_the_library_does(settings, mode, level):
    finding = findings(settings(driver_limits=mode))["driver limits"]
    assert finding.level == level and "only the library" in finding.text


def test_limits_that_are_off_are_not_asked_for(settings):
    assert findings(settings(driver_limits="off"))["driver limits"].level == "ok"


@pytest.fixture
def claims(api, tmp_path):
    """What is found about claims, of a kubelet whose directory is in order."""
    server, find = api
    for name in ("plugins_registry", "plugins", "cdi"):
        (tmp_path / name).mkdir()
    where = {"kubelet-root": str(tmp_path), "cdi-dir": str(tmp_path / "cdi"), "api": "dra"}
    return server, lambda subject="claims", **more: find(subject, **(where | more))


def test_a_node_that_may_serve_claims(claims):
    server, find = claims
    server.answers.pod_policy = True
    found = find()
    assert found.level == "ok" and "no pod of this node waits" in found.text
    server.put("pods", {**pod_document("a"), "spec": {"nodeName": NODE, "containers": []}})
    assert find().level == "ok", "a pod without a claim"


def test_who_waits_with_a_claim_is_named(claims):
    server, find = claims
    server.answers.pod_policy = True
    for name, ending in (("late", False), ("stuck", True)):
        document = pod_document(name)
        document["spec"] |= {"nodeName": NODE, "resourceClaims": [{"name": "g", "resourceClaimName": "c"}]}
        document["status"] = {"phase": "Running" if ending else "Pending"}
        if ending:
            document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        server.put("pods", document)
    found = find()
    assert found.level == "warn"
    assert found.text.endswith("default/late (Pending), default/stuck (Terminating)")


@pytest.mark.parametrize(
    ("right", "subject", "level"),
    [
        (("get", "resourceclaims"), "API server", "fail"),
        (("update", "resourceslices"), "API server", "fail"),
        (("patch", "pods"), "claims", "warn"),
    ],
)
def test_rights_for_claims_that_are_missing_are_named(claims, right, subject, level):
    server, find = claims
    server.answers.refused_rights = {right}
    found = find(subject)
    assert found.level == level
    assert "90 seconds" in found.text if subject == "claims" else " ".join(right) in found.text


def test_a_cluster_without_claims_is_no_place_for_them(claims):
    server, find = claims
    server.faults.append(Fault("GET", "/resourceslices", 404))
    found = find()
    assert found.level == "fail" and "--api=device-plugin" in found.remedy


def test_a_right_to_patch_pods_that_nothing_bounds_wakes_none(claims):
    server, find = claims
    document = pod_document("a")
    document["spec"]["nodeName"] = NODE
    server.put("pods", document)
    found = find()
    assert found.level == "warn" and found.remedy.startswith("apply deploy/claims.yaml")
    assert "may change others' annotations of a" in found.text and "90 seconds" in found.text
    assert server.get("pods", "a", "default")["metadata"]["annotations"] == {}, "tried and nothing else"
    server.answers.pod_policy = True
    assert find().level == "ok"


def test_a_node_that_was_moved_back_says_who_waits_with_a_claim(claims, tmp_path):
    server, find = claims
    document = pod_document("stuck")
    document["spec"] |= {"nodeName": NODE, "resourceClaims": [{"name": "g", "resourceClaimName": "c"}]}
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    server.put("pods", document)
    server.answers.pod_policy = True
    with pytest.raises(KeyError):
        find(api="device-plugin")
    (tmp_path / "plugins_registry" / "gigaslice.io-reg.sock").touch()
    assert find(api="device-plugin").text.endswith("default/stuck (Terminating)")


@pytest.mark.parametrize("missing", ["plugins_registry", "plugins"])
@pytest.mark.usefixtures("claims")
def test_directories_that_are_not_mounted_are_named(tmp_path, missing):
    (tmp_path / missing).rmdir()
    assert any(
        finding.level == "fail" and str(tmp_path / missing) in finding.text
        for finding in node_checks._check_claim_directories(
            SimpleNamespace(kubelet_root=tmp_path, cdi_dir=tmp_path / "cdi")
        )
    )
