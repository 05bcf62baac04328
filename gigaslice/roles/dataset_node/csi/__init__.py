# SPDX-License-Identifier: Apache-2.0
"""The CSI driver: what the kubelet calls, and how it finds the driver. Everything else is in `tasks`."""
