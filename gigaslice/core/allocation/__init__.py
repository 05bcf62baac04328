# SPDX-License-Identifier: Apache-2.0
"""Allocations: the table of a node, what ends one, and whether a container may start. Pure."""
