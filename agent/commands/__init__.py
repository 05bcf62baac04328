# SPDX-License-Identifier: Apache-2.0
"""The commands of one node: `gigaslice node`, and those that look at an agent's state or ask it."""
