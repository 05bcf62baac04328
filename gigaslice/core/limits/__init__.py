# SPDX-License-Identifier: Apache-2.0
"""Limits of running containers: memory, compute time and time slices, as arithmetic. Pure."""
