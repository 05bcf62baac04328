# SPDX-License-Identifier: Apache-2.0
"""Fetches a dataset into its image: once per node, in any order, from where an earlier attempt ended."""
