# SPDX-License-Identifier: Apache-2.0
"""Helpers of every long-running role: tasks, wake-ups, logs, files, a small HTTP server, command lines."""
