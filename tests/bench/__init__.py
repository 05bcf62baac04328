# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: what the library and the agent cost. Nothing here asserts a time; machines are noisy."""
