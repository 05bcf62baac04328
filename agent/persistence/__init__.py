# SPDX-License-Identifier: Apache-2.0
"""What makes allocations survive: the state directory, its checkpoint, and one directory per allocation."""
