# SPDX-License-Identifier: Apache-2.0
"""The paths of the API objects of datasets, apart from those of classes and GPUs."""

from __future__ import annotations

from gigaslice.core.dataset.objects import DATASET_NODES, DATASETS, GROUP, VERSION
from gigaslice.kubeapi.client import object_path

__all__ = ["DATASETS_PATH", "DATASET_NODES_PATH", "dataset_path"]

DATASETS_PATH = f"/apis/{GROUP}/{VERSION}/{DATASETS}"
DATASET_NODES_PATH = f"/apis/{GROUP}/{VERSION}/{DATASET_NODES}"


def dataset_path(namespace: str, name: str) -> str:
    """Returns the path of one Dataset."""
    return object_path("apis", GROUP, VERSION, "namespaces", namespace, DATASETS, name)
