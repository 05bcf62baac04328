# SPDX-License-Identifier: Apache-2.0
"""What the kubelet shows of its state: its pod-resources API and its checkpoint. Read, never written."""
