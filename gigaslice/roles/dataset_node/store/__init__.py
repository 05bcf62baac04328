# SPDX-License-Identifier: Apache-2.0
"""The node's cache of datasets: files, mounts, records, and what is deleted when."""

from gigaslice.roles.dataset_node.store.budget import Budget, DiskSpace
from gigaslice.roles.dataset_node.store.cache import PartialImage, digest_of
from gigaslice.roles.dataset_node.store.documents import DatasetMetadata, Volume, VolumeRecord, VolumeSource
from gigaslice.roles.dataset_node.store.store import DatasetStore, StoredDataset

__all__ = [
    "Budget",
    "DatasetMetadata",
    "DatasetStore",
    "DiskSpace",
    "PartialImage",
    "StoredDataset",
    "Volume",
    "VolumeRecord",
    "VolumeSource",
    "digest_of",
]
