# SPDX-License-Identifier: Apache-2.0
"""The service `gigaslice dataset`: fetches datasets to its node, mounts them, and is the CSI driver of the kubelet."""
