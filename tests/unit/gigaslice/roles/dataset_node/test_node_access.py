# SPDX-License-Identifier: Apache-2.0
"""How the dataset service finds the API server."""

from __future__ import annotations

import yaml

from gigaslice.role_settings import load
from gigaslice.roles.dataset_node import service
from gigaslice.roles.dataset_node.settings import DatasetSettings


def test_a_persons_kubeconfig_makes_no_node_of_a_machine(tmp_path):
    """$KUBECONFIG of whoever types the command, without a name of the node: the cluster is left alone."""
    path = tmp_path / "config"
    cluster = {"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "k"}}
    path.write_text(yaml.safe_dump({"clusters": [cluster], "contexts": [context], "current-context": "c"}))
    variable = {"KUBECONFIG": str(path)}

    def has_access(**flags):
        access, whence = service.node_access(load(DatasetSettings, flags, variable))
        assert access is not None or "--node-name" in whence
        return access is not None

    assert not has_access()
    assert has_access(**{"node-name": "a"})
    assert has_access(kubeconfig=str(path))
