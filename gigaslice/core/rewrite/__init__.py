# SPDX-License-Identifier: Apache-2.0
"""Manifests that ask for GPUs by other projects' names, rewritten to ours: what is changed, and what a person must see.

A manifest is a text in, edits and notes out (`manifest_text`); nothing is read or written here. A pod is rewritten as
a whole or not at all. What each name becomes is one table (`names`), from which the page for those who come over has
its table, too.
"""
