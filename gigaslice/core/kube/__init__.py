# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects and notations as values. Pure."""
