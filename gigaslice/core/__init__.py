# SPDX-License-Identifier: Apache-2.0
"""Values and decisions that nodes and the cluster share. Nothing here does I/O, or imports what does.

Tests need no fakes: what goes in is a value, and so is what comes out. The contract "the core does no I/O" holds it.
"""
