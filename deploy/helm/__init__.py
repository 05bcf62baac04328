# SPDX-License-Identifier: Apache-2.0
"""The chart, and the programs that make what follows from it: its schema, its page, the manifests for kubectl."""
