# SPDX-License-Identifier: Apache-2.0
"""What the kubelet's device-plugin API adds to allocations: device IDs, lending, and ends that nobody reports. Pure."""
