# SPDX-License-Identifier: Apache-2.0
"""What the tests on real control planes leave behind when their own set-up fails: nothing that runs."""

import subprocess
from types import SimpleNamespace

import pytest

from tests.cluster import roles
from tests.cluster.dataset_site import DatasetSite
from tests.cluster.proxy import Proxy
from tests.cluster.test_node import Site
from tests.fakedriver import env


def test_a_dataset_site_whose_set_up_fails(monkeypatch):
    made = []

    def refused(self, *_):
        self.process = subprocess.Popen(["sleep", "600"])
        made.append(self)
        raise AssertionError("refused")

    monkeypatch.setenv("K8S_NODE_KUBECONFIG", "none")
    monkeypatch.setenv("K8S_NODE", "none")
    monkeypatch.setattr(DatasetSite, "kubectl", lambda *_, **__: "")
    monkeypatch.setattr(DatasetSite, "_install", refused)
    with pytest.raises(AssertionError, match="refused"):
        DatasetSite().__enter__()
    (site,) = made
    try:
        assert site.process.poll() is not None
        assert not site.root.exists()
        assert not site.run_dir.exists()
    finally:
        site.process.kill()
        site.process.wait()


@pytest.fixture
def node_site(tmp_path, monkeypatch):
    monkeypatch.setattr(Proxy, "__enter__", lambda self: self)
    monkeypatch.setattr(Proxy, "__exit__", lambda *_: None)
    site = Site(SimpleNamespace(folder=tmp_path, port=1, admin=None, binaries={}, documents=[]), "n", "image")
    yield site
    site.proxy._loop.close()


def test_a_node_site_whose_set_up_fails(node_site, monkeypatch, tmp_path):
    def refused(*_, **more):
        node_site._running.append(subprocess.Popen(["sleep", "600"]))
        raise AssertionError("refused")

    monkeypatch.setattr("tests.cluster.test_node.driver_env", lambda *_: {})
    monkeypatch.setattr(roles, "install", refused)
    with pytest.raises(AssertionError, match="refused"):
        node_site.__enter__()
    (left,) = node_site._running
    try:
        assert left.poll() is not None
    finally:
        left.kill()
        left.wait()


def test_without_the_simulated_driver_it_says_so_at_once(node_site, monkeypatch, tmp_path):
    monkeypatch.setattr(env, "ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match="make fakedriver"):
        node_site.__enter__()
    assert node_site._running == []


def test_a_role_that_has_ended_is_not_waited_for(node_site, tmp_path):
    (tmp_path / "node.log").write_text("no driver here")
    node_site._running.append(subprocess.Popen(["true", "-m", "gigaslice_cli", "node"]))
    node_site._running[0].wait()
    with pytest.raises(AssertionError, match="no driver here"):
        node_site._living()
