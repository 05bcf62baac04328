# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what a test machine lacks: a kubelet, an API server, a scheduler, a node with datasets."""
