# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: with its own values it is daemonset.yaml, and every value does what its name says."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import config
from gigaslice.kubeapi.access import SERVICE_ACCOUNT
from tests.fakes.kubelet import FakeKubelet
from vcuda.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "gigaslice"
DEFAULTS = config.load({}, {})
GPUS = "gpus: [{uuid: GPU-00000000-0000-4000-8000-000000000000, model: A, memory: 24GiB}]\n"
CHECKED = "--annotation-rights=checked"
Documents = dict[str, dict[str, Any]]


def helm(*words: str, release: str = "gigaslice", tests: bool = False) -> subprocess.CompletedProcess[str]:
    """`helm template` of the chart; the binary comes with the development dependencies.

    TESTS: with the objects of `helm test`.
    """
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    assert found, "helm is missing: run make"
    command = [found, "template", release, str(CHART), "--namespace", "gigaslice", *words]
    command += [] if tests else ["--skip-tests"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def listed(*words: str, release: str = "gigaslice", tests: bool = False) -> list[dict[str, Any]]:
    done = helm(*words, release=release, tests=tests)
    assert done.returncode == 0, done.stderr
    return documents_of(done.stdout)


def documents_of(text: str) -> list[dict[str, Any]]:
    """The documents of a YAML text, read by libyaml, which takes a tenth of the time."""
    return [one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one]


def rendered(*words: str, release: str = "gigaslice") -> Documents:
    """By kind; a second role or binding is under its kind with a plus."""
    found: Documents = {}
    for one in listed(*words, release=release):
        found[one["kind"] + "+" * sum(one["kind"] == known.rstrip("+") for known in found)] = one
    return found


def with_values(path: Path, text: str) -> Documents:
    (path / "values.yaml").write_text(text)
    return rendered("--values", str(path / "values.yaml"))


def settings_of(documents: Documents) -> config.Config:
    """What the agent makes of the flags in the manifest."""
    given = dict(flag.removeprefix("--").split("=", 1) for flag in node(documents)["args"][1:])
    return config.load(given, {})


def pod(documents: Documents) -> dict[str, Any]:
    return documents["DaemonSet"]["spec"]["template"]["spec"]


def node(documents: Documents) -> dict[str, Any]:
    (container,) = pod(documents)["containers"]
    return container


def _by_name(found: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


PLAIN = ("daemonset.yaml", "deploy/node-policy.yaml", "deploy/pod-policy.yaml")


def test_the_chart_with_its_own_values_is_the_manifest_and_the_policies_beside_it():
    plain = _by_name(one for name in PLAIN for one in documents_of((ROOT / name).read_text()))
    # What the manifest's comment says to add where the policies are applied.
    plain["DaemonSet", "gigaslice-node"]["spec"]["template"]["spec"]["containers"][0]["args"] += [CHECKED]
    assert _by_name(listed()) == plain
    assert f'add "{CHECKED}"' in (ROOT / "daemonset.yaml").read_text()


@pytest.mark.parametrize("version", ["1.26.0", "1.29.9-gke.7"])
def test_before_policies_no_agent_may_change_a_node(version):
    """The right comes with the policy that bounds it, or not at all."""
    found = listed("--kube-version", version)
    assert _by_name(found) == _by_name(documents_of((ROOT / "daemonset.yaml").read_text()))
    assert "nodes" not in {
        one for each in found for rule in each.get("rules", ()) for one in rule["resources"]
    }


@pytest.mark.parametrize("words", [(), ("--set", "serviceAccount.name=x"), ("--set", "cluster.enabled=true")])
def test_whoever_may_change_nodes_is_bounded_by_the_policy(words):
    """In every way to install: the subjects of roles that patch nodes are the users that the policy is about."""
    found = listed(*words, "--kube-version", "1.36.0")
    patching = {
        one["metadata"]["name"]
        for one in found
        for rule in one.get("rules", ())
        if "nodes" in rule["resources"] and {"patch", "update", "*"} & set(rule["verbs"])
    }
    users = {
        f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
        for one in found
        if one["kind"].endswith("RoleBinding") and one["roleRef"]["name"] in patching
        for subject in one["subjects"]
    }
    (policy,) = [one for one in found if one["metadata"]["name"] == "gigaslice-node" and "Policy" in one["kind"]
                 and "Binding" not in one["kind"]]  # fmt: skip
    (condition,) = policy["spec"]["matchConditions"]
    assert users == {condition["expression"].partition('"')[2].rstrip('"')}


def test_the_chart_has_the_version_of_the_project():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


@pytest.mark.parametrize("release", ["gigaslice", "gpu"])
def test_kubernetes_takes_it_with_everything_set(release, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text(
        """
image: {repository: example.com/gigaslice, tag: v9, pullPolicy: Always}
imagePullSecrets: [{name: pull}]
settings: {slice: 2GiB, visibleDevices: cdi, pollInterval: 5s}
extraEnv: [{name: TZ, value: UTC}]
extraArgs: ["--log-level=debug"]
kubeletDir: /var/snap/microk8s/common/var/lib/kubelet
stateDir: /data/gigaslice
runtimeClassName: nvidia
nodeSelector: {gpu: "yes"}
affinity: {nodeAffinity: {}}
tolerations: [{key: gpu, operator: Exists}]
priorityClassName: ""
podAnnotations: {a: b}
podLabels: {c: d}
maxSurge: 0
maxUnavailable: 10%
resources: {limits: {memory: 256Mi}}
serviceAccount: {create: true, name: other, annotations: {x: z}}
"""
    )
    documents = rendered("--values", str(values), release=release)
    for document in documents.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    container, spec = node(documents), pod(documents)
    assert container["image"] == "example.com/gigaslice:v9"
    assert spec["runtimeClassName"] == "nvidia" and "priorityClassName" not in spec
    assert spec["nodeSelector"] == {"gpu": "yes"} and spec["serviceAccountName"] == "other"
    assert documents["ServiceAccount"]["metadata"]["name"] == "other"
    paths = {volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == paths | {str(SERVICE_ACCOUNT)}
    assert "/data/gigaslice" in paths and not [path for path in paths if path.startswith("/var/lib/")]
    selector = documents["DaemonSet"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= documents["DaemonSet"]["spec"]["template"]["metadata"]["labels"].items()


def test_a_network_policy_admits_who_is_named_and_nobody_else():
    assert "NetworkPolicy" not in rendered()
    closed = rendered("--set", "networkPolicy.enabled=true")
    labels = closed["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    spec = closed["NetworkPolicy"]["spec"]
    assert spec["podSelector"]["matchLabels"].items() <= labels.items()
    assert spec["policyTypes"] == ["Ingress"] and "ingress" not in spec
    kubernetes_validate.validate(closed["NetworkPolicy"], kubernetes_validate.latest_version(), strict=True)
    peer = "networkPolicy.from[0].namespaceSelector.matchLabels.team=monitoring"
    for more in ([], ["--set", "settings.metricsAddress=:9000"]):
        opened = rendered("--set", f"networkPolicy.enabled=true,{peer}", *more)
        kubernetes_validate.validate(
            opened["NetworkPolicy"], kubernetes_validate.latest_version(), strict=True
        )
        (rule,) = opened["NetworkPolicy"]["spec"]["ingress"]
        assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]
        assert rule["ports"] == [{"protocol": "TCP", "port": node(opened)["ports"][0]["name"]}]


def test_a_secret_becomes_the_token_of_the_metrics():
    documents = rendered("--set", "metricsToken=scrape")
    kubernetes_validate.validate(documents["DaemonSet"], kubernetes_validate.latest_version(), strict=True)
    file = settings_of(documents).metrics_token_file
    (mount,) = [one for one in node(documents)["volumeMounts"] if one["name"] == "metrics-token"]
    (volume,) = [one for one in pod(documents)["volumes"] if one["name"] == "metrics-token"]
    assert file == Path(mount["mountPath"]) / "token" and mount["readOnly"] is True
    assert volume["secret"] == {"secretName": "scrape", "defaultMode": 0o400}
    assert settings_of(rendered()).metrics_token_file is None


def test_metrics_on_the_pods_own_address_alone(tmp_path):
    documents = with_values(
        tmp_path,
        """
settings: {metricsAddress: "$(POD_IP):9445"}
extraEnv: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
""",
    )
    assert "--metrics-address=$(POD_IP):9445" in node(documents)["args"]
    assert node(documents)["ports"][0]["containerPort"] == 9445
    assert "httpGet" in node(documents)["livenessProbe"], "the kubelet asks on that address"
    assert config.load({"metrics-address": "10.1.2.3:9445"}, {}).metrics_address == ("10.1.2.3", 9445)


def test_the_agent_understands_the_flags_that_settings_become():
    words = ["--set", "settings.slice=2GiB,settings.visibleDevices=cdi,kubeletDir=/k,stateDir=/s"]
    command, *flags = node(rendered(*words))["args"]
    assert command == "node"
    given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    settings = config.load(given, {})
    assert (settings.slice_bytes, settings.visible_devices) == (2 << 30, "cdi")
    assert settings.state_dir == Path("/s") and settings.kubelet_dir == Path("/k/device-plugins")
    assert settings.pod_resources == Path("/k/pod-resources/kubelet.sock")


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("stateDir", "write stateDir"),
        ("ledgerDir", "write nothing"),
        ("kubeletDir", "write kubeletDir"),
        ("podResources", "write kubeletDir"),
        ("nodeName", "every node has a name of its own"),
    ],
)
def test_a_setting_that_the_chart_must_know_is_refused_with_where_it_goes(key, instead):
    value = "node-1" if key == "nodeName" else "/elsewhere"
    done = helm("--set", f"settings.{key}={value}")
    assert done.returncode != 0 and f"settings.{key}: " in done.stderr and instead in done.stderr


def test_two_releases_do_not_share_names():
    one, other = rendered(), rendered(release="second")
    for kind, document in one.items():
        assert document["metadata"]["name"] != other[kind]["metadata"]["name"]
    assert one["DaemonSet"]["spec"]["selector"] != other["DaemonSet"]["spec"]["selector"]


def test_without_access_to_the_api_nothing_of_it_is_made():
    documents = rendered("--set", "rbac.create=false,serviceAccount.create=false")
    # What guards pods is no right of the agent.
    assert {kind.rstrip("+") for kind in documents} == {
        "DaemonSet",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    assert pod(documents)["serviceAccountName"] == "default"


@pytest.mark.parametrize(
    "mistake", ["imge.tag=x", "image.pullPolicy=Sometimes", "kubeletDir=relative", "settings.Slice=1GiB"]
)
def test_a_mistake_in_the_values_is_refused(mistake):
    done = helm("--set", mistake)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_the_port_of_metrics_follows_the_setting():
    (port,) = node(rendered("--set", "settings.metricsAddress=:9000"))["ports"]
    assert port["containerPort"] == 9000
    silent = node(rendered("--set", "settings.metricsAddress=off"))
    assert "ports" not in silent and "readinessProbe" not in silent
    private = node(rendered("--set", "settings.metricsAddress=127.0.0.1:9000"))
    assert "ports" in private and "readinessProbe" not in private, "the kubelet asks the pod's address"


@pytest.mark.parametrize(
    "words", [["--set-string", "settings.bindCpus=on"], ["--set", "extraArgs={--bind-cpus=on}"]], ids=str
)
def test_the_capability_for_cpus_comes_with_their_binding_alone(words):
    assert node(rendered(*words))["securityContext"]["capabilities"]["add"] == ["DAC_OVERRIDE", "SYS_NICE"]
    without = node(rendered("--set-string", "settings.bindCpus=off"))
    assert without["securityContext"]["capabilities"]["add"] == ["DAC_OVERRIDE"]


@pytest.mark.parametrize("text", ["off", "Off", "no", "false", '"off"', '"false"', '"No"'])
def test_metrics_are_off_however_yaml_reads_it(tmp_path, text):
    documents = with_values(
        tmp_path, f"settings: {{metricsAddress: {text}, bindCpus: {text}, kubeApi: {text}}}"
    )
    settings = settings_of(documents)
    assert (settings.metrics_address, settings.bind_cpus, settings.kube_api) == (None, "off", "off")
    assert "ports" not in node(documents) and "exec" in node(documents)["livenessProbe"]
    assert node(documents)["securityContext"]["capabilities"]["add"] == ["DAC_OVERRIDE"]
    assert not {"ClusterRole", "ClusterRoleBinding"} & set(documents), "nothing is asked of the API server"
    assert pod(documents)["automountServiceAccountToken"] is False
    assert "service-account" not in {volume["name"] for volume in pod(documents)["volumes"]}
    assert str(SERVICE_ACCOUNT) not in {mount["mountPath"] for mount in node(documents)["volumeMounts"]}


@pytest.mark.parametrize("text", ["on", "On", "yes", "true", '"on"', '"true"', '"YES"'])
def test_a_switch_is_on_however_yaml_reads_it(tmp_path, text):
    documents = with_values(tmp_path, f"settings: {{bindCpus: {text}}}")
    assert settings_of(documents).bind_cpus == "on"
    assert "SYS_NICE" in node(documents)["securityContext"]["capabilities"]["add"]


@pytest.mark.parametrize("text, flag", [
    ("slice: 1073741824", "--slice=1073741824"), ("slice: 17179869184", "--slice=17179869184"),
    ("slice: 8GiB", "--slice=8GiB"), ("pollInterval: 2.5", "--poll-interval=2.5"), ("rdmaShare: 4", "--rdma-share=4"),
    ("hostMemory: 1099511627776", "--host-memory=1099511627776"), ("evictAbove: 4294967296", "--evict-above=4294967296")
])  # fmt: skip
def test_a_number_reaches_the_agent_as_it_stands_there(tmp_path, text, flag):
    """Helm's numbers are floating point ones, and print as 1.073741824e+09."""
    documents = with_values(tmp_path, f"settings: {{{text}}}")
    assert node(documents)["args"] == ["node", flag, CHECKED]
    settings_of(documents)


# --- rights at the API server -----------------------------------------------------------------------------------------


def rights(documents: Documents) -> set[tuple[str, ...]]:
    """What the node agents' account may, by bindings to it."""
    found = set()
    for binding in (one for kind, one in documents.items() if kind.startswith("ClusterRoleBinding")):
        roles = [one for kind, one in documents.items() if kind.rstrip("+") == "ClusterRole"]
        (role,) = [one for one in roles if one["metadata"]["name"] == binding["roleRef"]["name"]]
        assert [one["name"] for one in binding["subjects"]] == [pod(documents)["serviceAccountName"]]
        found |= {(*rule["resources"], *rule["verbs"]) for rule in role["rules"]}
    return found


SEES = {("pods", "list", "watch"), ("events", "create", "patch"), ("nodes", "patch")}
EVICTS = {("pods/eviction", "create")}


@pytest.mark.parametrize("values", [
    "{}", "settings: {overuse: report}", "rbac: {create: true, evict: auto}",
    "{settings: {overuse: evict}, rbac: {create: true, evict: false}}",
    "extraArgs: [--overuse=report, --evict-grace=10s]", "settings: {evictOverLimit: on}",
    "extraEnv: [{name: GIGASLICE_OVERUSE, value: report}]",
])  # fmt: skip
def test_nobody_may_evict_where_no_setting_evicts(tmp_path, values):
    assert rights(with_values(tmp_path, values)) == SEES


@pytest.mark.parametrize("values", [
    "settings: {overuse: evict}", "settings: {overuse: dry-run}", "rbac: {create: true, evict: true}",
    "extraArgs: [--overuse=evict]", "extraArgs: [--overuse, evict]",
    "extraEnv: [{name: GIGASLICE_OVERUSE, value: evict}]", "extraEnv: [{name: GIGASLICE_CONFIG, value: /c}]",
])  # fmt: skip
def test_the_right_to_evict_comes_with_the_setting(tmp_path, values):
    """A dry run needs it too: the API server goes through its permissions. A settings file cannot be read then."""
    documents = with_values(tmp_path, values)
    evicts = rights(documents)
    for document in documents.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    if "GIGASLICE_CONFIG" in values:
        assert evicts == SEES, "rbac.evict says it there"
    else:
        assert evicts == SEES | EVICTS


def test_the_chart_gives_the_right_to_evict_as_the_manifest_beside_it_does():
    manifest = [one for one in yaml.safe_load_all((ROOT / "deploy" / "eviction.yaml").read_text()) if one]
    found = listed("--set", "settings.overuse=evict")
    assert [one for one in found if one["metadata"]["name"].endswith("-evict")] == manifest


@pytest.mark.parametrize(
    "mistake", ["rbac.evict=sometimes", "rbac.evict=on", "terminationGracePeriodSeconds=1"]
)
def test_a_mistake_about_rights_is_refused(mistake):
    assert helm("--set-string", mistake).returncode != 0


# --- the probe where metrics are off ---------------------------------------------------------------------------------


@pytest.fixture
def exec_probe() -> list[str]:
    """The command of both probes of a chart without metrics."""
    documents = rendered("--set", "settings.metricsAddress=off")
    kubernetes_validate.validate(documents["DaemonSet"], kubernetes_validate.latest_version(), strict=True)
    startup, liveness = (node(documents)[name] for name in ("startupProbe", "livenessProbe"))
    assert startup["exec"] == liveness["exec"]
    assert (startup["periodSeconds"], startup["failureThreshold"]) == (2, 30)
    assert (liveness["periodSeconds"], liveness["failureThreshold"]) == (30, 3)
    command: list[str] = liveness["exec"]["command"]
    assert "timeout=5)" in command[2] and liveness["timeoutSeconds"] > 5
    assert (command[0], command[-1]) == ("python", str(DEFAULTS.kubelet_dir / DEFAULTS.socket_name))
    return command


def probe(command: list[str], socket: Path, seconds: float = 5) -> int:
    """Runs the probe's own command, with our interpreter and that socket."""
    words = [sys.executable, *command[1:-1], str(socket)]
    words = [part.replace("timeout=5", f"timeout={seconds}") for part in words]
    return subprocess.run(words, capture_output=True, timeout=60, check=False).returncode


@pytest.fixture
def running() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A node agent that a kubelet stand-in has registered, and its socket."""
    # /tmp and a short name: the path of a unix socket may have 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name,
        FakeKubelet(Path(name) / "k") as kubelet,
    ):
        folder = Path(name)
        inventory = folder / "gpus.yaml"
        inventory.write_text(GPUS)
        flags = f"""--inventory {inventory} --state-dir {folder / "state"} --log-level error --metrics-address off
            --kubelet-dir {kubelet.plugin_directory} --pod-resources {kubelet.pod_resources_socket}"""
        agent = subprocess.Popen(
            [sys.executable, "-m", "gigaslice_cli", "node", *shlex.split(flags)], cwd=ROOT
        )
        try:
            deadline = time.monotonic() + 60
            while not kubelet.allocatable().get(DEFAULTS.resource):
                assert agent.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield agent, kubelet.plugin_directory / DEFAULTS.socket_name
        finally:
            agent.kill()
            agent.wait()


def test_the_probe_tells_a_living_agent_from_a_dead_one(exec_probe, running):
    agent, socket = running
    assert probe(exec_probe, socket, 30) == 0
    agent.send_signal(signal.SIGSTOP)
    assert probe(exec_probe, socket, 0.5) != 0, "an agent that does not answer"
    agent.send_signal(signal.SIGCONT)
    assert probe(exec_probe, socket, 30) == 0
    agent.kill()
    agent.wait()
    assert socket.is_socket(), "a killed agent leaves its socket"
    assert probe(exec_probe, socket) != 0
    assert probe(exec_probe, socket.with_name("nothing")) == 0, "one that waits for GPUs has no socket"
