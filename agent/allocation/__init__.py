# SPDX-License-Identifier: Apache-2.0
"""The allocation service: which GPUs a request gets, the record of it, and when its container may start."""
