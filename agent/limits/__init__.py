# SPDX-License-Identifier: Apache-2.0
"""Limits of running containers, applied: memory, compute time, time slices, CPUs."""
