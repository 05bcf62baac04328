# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `gigaslice dataset`, one module each; see gigaslice/roles/dataset_node/command.py."""
