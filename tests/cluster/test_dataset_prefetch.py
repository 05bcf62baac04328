"""`gigaslice dataset prefetch` as a tenant of a real cluster: with a scheduler, a kubelet, quotas and Pod Security."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.dataset_site import ROOT, DatasetSite, missing
from tests.fakes.storage_servers import KEY, SECRET, moto_s3, put

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
NAMESPACE = "gs-prefetch"
TENANT = f"""\
apiVersion: v1
kind: Namespace
metadata: {{name: {NAMESPACE}, labels: {{pod-security.kubernetes.io/enforce: restricted}}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: tenant, namespace: {NAMESPACE}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: tenant, namespace: {NAMESPACE}}}
rules:
  - {{apiGroups: [""], resources: [pods], verbs: [create, list, delete]}}
  - {{apiGroups: [""], resources: [events], verbs: [list]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: tenant, namespace: {NAMESPACE}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: tenant}}
subjects: [{{kind: ServiceAccount, name: tenant, namespace: {NAMESPACE}}}]
---
apiVersion: v1
kind: ResourceQuota
metadata: {{name: quota, namespace: {NAMESPACE}}}
spec: {{hard: {{pods: "1", requests.cpu: 100m, limits.memory: 100Mi}}}}
"""


class Tenant:
    """The site with a scheduler, an S3 server, and a namespace whose user may make pods and read no Secret."""

    def __init__(self, site: DatasetSite, endpoint: str) -> None:
        self.site = site
        self.source = ("s3://bucket/d", "--options", f"endpoint={endpoint},region=us-east-1")
        self.kubeconfig = site.root / "tenant.kubeconfig"
        site.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")
        site.kubectl("apply", "-f", "-", stdin=TENANT)
        for name, secret in (("good", SECRET), ("bad", "x" * 32)):
            words = (f"--from-literal=access_key={KEY}", f"--from-literal=secret_key={secret}")
            site.kubectl("-n", NAMESPACE, "create", "secret", "generic", name, *words)
        site.until(self._hard, "the quota is in force")
        config = yaml.safe_load(Path(site.kubeconfig).read_text())
        token = site.kubectl("-n", NAMESPACE, "create", "token", "tenant").strip()
        config["users"][0]["user"] = {"token": token}
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _hard(self) -> object:
        words = ("-n", NAMESPACE, "get", "resourcequota", "quota", "-o", "jsonpath={.status.hard.pods}")
        return self.site.kubectl(*words)

    def command(self, *words: str, kubeconfig: Path | str | None = None) -> list[str]:
        found = [sys.executable, "-m", "agent", "dataset", "prefetch", *words, "-n", NAMESPACE]
        image = f"--image={os.environ['K8S_NODE_IMAGE']}"
        return [*found, image, f"--kubeconfig={kubeconfig or self.kubeconfig}"]

    def run(self, *words: str, kubeconfig: Path | str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words, kubeconfig=kubeconfig),
            cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def pods(self) -> list[str]:
        items = json.loads(self.site.kubectl("-n", NAMESPACE, "get", "pods", "-o", "json"))["items"]
        return [one["metadata"]["name"] for one in items]


@pytest.fixture
def tenant() -> Iterator[Tenant]:
    scheduler = Path(os.environ["K8S_BIN"]) / "kube-scheduler"
    if not scheduler.exists():
        pytest.skip(f"takes {scheduler}")
    config = os.environ["K8S_NODE_KUBECONFIG"]
    kubeconfigs = [f"--{one}kubeconfig={config}" for one in ("", "authentication-", "authorization-")]
    flags = ("--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0")
    with moto_s3() as endpoint, DatasetSite("--bandwidth=3MiB") as site:
        put(endpoint, "bucket", {f"d/{number}": bytes([number]) * 400_000 for number in range(50)})
        with (site.root / "scheduler.log").open("wb") as log:
            process = subprocess.Popen([scheduler, *kubeconfigs, *flags], stdout=log, stderr=log)
        found = Tenant(site, endpoint)
        try:
            yield found
        finally:
            site.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
            process.kill()
            process.wait()


def test_a_tenant_prefetches_with_rights_on_pods_alone(tenant):
    site = tenant.site
    done = tenant.run(*tenant.source, "--nodes", site.node, "--secret", "good")
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, site.node), done.stderr
    assert "nodes cannot be listed with these credentials" in done.stderr
    site.until(lambda: not tenant.pods(), "its pods are gone")
    assert site.logged("fetched") == 1
    again = tenant.run(*tenant.source, "--count", "1", "--secret", "good", kubeconfig=site.kubeconfig)
    assert again.returncode == 0, again.stderr
    assert site.logged("fetch started") == 1, "it is there already"
    site.until(lambda: not site.mounted(), "nothing is in use")
    cache = json.loads(site.kubectl("get", "datasetnode", site.node, "-o", "json"))["status"]["datasets"]
    assert [one["state"] for one in cache] == ["Ready"]


def test_credentials_that_do_not_suffice_are_what_is_said(tenant):
    done = tenant.run(*tenant.source, "--nodes", tenant.site.node, "--secret", "none", "--timeout", "8s")
    assert done.returncode == 1
    assert 'secrets "none" not found' in done.stderr
    assert "do not have it; what they have fetched is kept: run it again to go on" in done.stderr
    tenant.site.until(lambda: not tenant.pods(), "its pods are gone")


def test_a_quota_is_what_is_said(tenant):
    limits = {"requests": {"cpu": "1m"}, "limits": {"memory": "1Mi"}}
    container = {
        "name": "c", "image": "none", "imagePullPolicy": "Never", "resources": limits,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    security = {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": NAMESPACE},
        "spec": {"containers": [container], "securityContext": security, "nodeName": "nowhere"},
    }  # fmt: skip
    tenant.site.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    done = tenant.run(*tenant.source, "--nodes", tenant.site.node)
    assert done.returncode == 1
    assert "a quota of the namespace refuses the pod" in done.stderr
    tenant.site.kubectl("-n", NAMESPACE, "delete", "pod", "other", "--force", "--grace-period=0")


def test_ctrl_c_leaves_no_pod_and_keeps_what_was_fetched(tenant):
    command = tenant.command(*tenant.source, "--nodes", tenant.site.node, "--secret", "good")
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    tenant.site.until(lambda: tenant.site.logged("fetch started"), "it fetches")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    tenant.site.until(lambda: not tenant.pods(), "its pod is gone")
    done = tenant.run(*tenant.source, "--nodes", tenant.site.node, "--secret", "good")
    assert done.returncode == 0, done.stderr
    once = tenant.site.logged("fetch started") == 1  # it was more than half done, and so went on
    assert once or '"resumed": true' in (tenant.site.root / "log").read_text()


def test_a_run_that_is_killed_leaves_a_pod_that_ends_by_itself(tenant):
    """And a volume that nothing waits for any more."""
    site = tenant.site
    source = site.fill("large", 8, 60_000_000)
    command = tenant.command(source, "--nodes", site.node, "--timeout", "1s")
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    site.until(lambda: site.logged("fetch started"), "it fetches")
    process.kill()
    process.wait()
    (name,) = tenant.pods()
    reason = ("-n", NAMESPACE, "get", "pod", name, "-o", "jsonpath={.status.reason}")
    site.until(lambda: site.kubectl(*reason) == "DeadlineExceeded", "the kubelet ends it", 200)
    tasks = [sys.executable, "-m", "agent", "dataset", "ps", "--json", f"--state-dir={site.root}/s"]

    def given_up() -> bool:
        done = subprocess.run(tasks, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
        found = json.loads(done.stdout)
        return not found["tasks"] and all(one["state"] != "fetching" for one in found["datasets"])

    site.until(given_up, "the fetch is given up", 60)
    assert not site.mounted()
