# SPDX-License-Identifier: Apache-2.0
"""Composition roots, one per process: they read the configuration, build the objects, and run them together."""
