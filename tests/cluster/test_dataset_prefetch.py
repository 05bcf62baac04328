# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset prefetch` as a tenant of a real cluster: with a scheduler, a kubelet, quotas and Pod Security."""

from __future__ import annotations

import json
import os
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
Done = subprocess.CompletedProcess[str]
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
  - {{apiGroups: [""], resources: [pods], verbs: [create, get, list, watch, patch, delete, deletecollection]}}
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

    def prefetch(self, *words: str, kubeconfig: Path | str | None = None, stdin: str = "") -> Done:
        flags = ("-n", NAMESPACE, f"--image={os.environ['K8S_NODE_IMAGE']}")
        command = [sys.executable, "-m", "gigaslice_cli", "dataset", "prefetch", *words, *flags]
        command.append(f"--kubeconfig={kubeconfig or self.kubeconfig}")
        return subprocess.run(
            command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=120, check=False
        )

    def make(self, *words: str, kubeconfig: Path | str | None = None) -> Done:
        """Makes the pods that the command prints, as the tenant."""
        printed = self.prefetch(*words, kubeconfig=kubeconfig)
        assert printed.returncode == 0, printed.stderr
        self.site.kubectl("--kubeconfig", str(self.kubeconfig), "apply", "-f", "-", stdin=printed.stdout)
        return printed

    def judged(self) -> Done:
        listed = ("--kubeconfig", str(self.kubeconfig), "-n", NAMESPACE, "get", "pods", "-o", "json")
        return self.prefetch("--judge", stdin=self.site.kubectl(*listed))

    def delete(self) -> None:
        label = "app.kubernetes.io/managed-by=gigaslice-prefetch"
        self.site.kubectl(
            "--kubeconfig", str(self.kubeconfig), "-n", NAMESPACE, "delete", "pods", "-l", label
        )

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
    printed = tenant.make(*tenant.source, "--nodes", site.node, "--secret", "good")
    assert "nodes cannot be listed with these credentials" in printed.stderr
    site.until(lambda: tenant.judged().returncode == 0, "the data are there")
    assert tenant.judged().stdout == f"{site.node}: ready\n"
    tenant.delete()
    assert site.logged("fetched") == 1
    tenant.make(*tenant.source, "--count", "1", "--secret", "good", kubeconfig=site.kubeconfig)
    site.until(lambda: tenant.judged().returncode == 0, "the data are there still")
    assert site.logged("fetch started") == 1, "it is there already"
    tenant.delete()
    site.until(lambda: not site.mounted(), "nothing is in use")
    cache = json.loads(site.kubectl("get", "datasetnode", site.node, "-o", "json"))["status"]["datasets"]
    assert [one["state"] for one in cache] == ["Ready"]


def test_without_the_secret_the_data_are_not_there(tenant):
    tenant.make(*tenant.source, "--nodes", tenant.site.node, "--secret", "none", "--timeout", "8s")
    judged = tenant.judged()
    assert judged.returncode == 1
    assert judged.stdout.startswith(f"{tenant.site.node}: waiting")
    assert "do not have it; what they have fetched is kept" in judged.stderr
    tenant.site.until(lambda: "failed: the pod failed: DeadlineExceeded" in tenant.judged().stdout, "it ends")


def test_a_prefetch_that_is_deleted_keeps_what_was_fetched(tenant):
    words = (*tenant.source, "--nodes", tenant.site.node, "--secret", "good")
    tenant.make(*words)
    tenant.site.until(lambda: tenant.site.logged("fetch started"), "it fetches")
    tenant.delete()
    tenant.site.until(lambda: not tenant.pods(), "its pod is gone")
    tenant.make(*words)
    tenant.site.until(lambda: tenant.judged().returncode == 0, "the data are there")
    once = tenant.site.logged("fetch started") == 1  # it was more than half done, and so went on
    assert once or '"resumed": true' in (tenant.site.root / "log").read_text()


def test_a_pod_that_is_left_ends_by_itself(tenant):
    """And a volume that nothing waits for any more."""
    site = tenant.site
    source = site.fill("large", 8, 60_000_000)
    tenant.make(source, "--nodes", site.node, "--timeout", "60s")
    site.until(lambda: site.logged("fetch started"), "it fetches")
    (name,) = tenant.pods()
    reason = ("-n", NAMESPACE, "get", "pod", name, "-o", "jsonpath={.status.reason}")
    site.until(lambda: site.kubectl(*reason) == "DeadlineExceeded", "the kubelet ends it", 200)
    tasks = [sys.executable, "-m", "gigaslice_cli", "dataset", "ps", "--json", f"--state-dir={site.root}/s"]

    def given_up() -> bool:
        done = subprocess.run(tasks, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
        found = json.loads(done.stdout)
        return not found["tasks"] and all(one["state"] != "fetching" for one in found["datasets"])

    site.until(given_up, "the fetch is given up", 60)
    assert not site.mounted()
