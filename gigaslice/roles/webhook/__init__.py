# SPDX-License-Identifier: Apache-2.0
"""Admission of pods: requests of one line completed, mistakes refused with the sentence that says what to write."""
