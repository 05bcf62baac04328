# SPDX-License-Identifier: Apache-2.0
"""Datasets on nodes: what a dataset is, how its image is laid out, and what is kept where. Pure."""
