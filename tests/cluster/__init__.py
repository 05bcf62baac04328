# SPDX-License-Identifier: Apache-2.0
"""Against a real control plane: `make test-cluster`. Binaries come from K8S_BIN or PATH and are never fetched."""
