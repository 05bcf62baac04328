# SPDX-License-Identifier: Apache-2.0
"""The cluster as values: what nodes publish, what pods ask for and hold, and which node and GPUs a pod gets. Pure."""
