# SPDX-License-Identifier: Apache-2.0
"""The names under which the cluster's parts meet: annotations, resources, API kinds."""

GROUP = "gigaslice.io"
VERSION = "v1alpha1"
RESOURCE_CLASSES = "resourceclasses"
EXTENDED_RESOURCES = "extendedresources"

INVENTORY = "gigaslice.io/inventory"
"""Annotation of a Node: what it has, written by its agent and read by everyone else."""

ASSIGNMENT = "gigaslice.io/assignment"
"""Annotation of a pod: the GPUs that the scheduler chose, written together with the binding."""

WAKE = "gigaslice.io/wake"
"""Annotation of a pod: when its node's agent last had the kubelet ask again for its claims, in Unix milliseconds."""

MEMORY_RESOURCE = "gigaslice.io/vgpu-memory"
GPU_RESOURCE = "gigaslice.io/gpu"
CLASS_PREFIX = "gpuclass.gigaslice.io/"
"""Of the names that users write for a class; no node advertises them."""

SCHEDULER_NAME = "gigaslice-scheduler"
