# SPDX-License-Identifier: Apache-2.0
"""Tests on a real GPU: `make test-gpu` builds, runs and writes a report, with the standard library alone."""
