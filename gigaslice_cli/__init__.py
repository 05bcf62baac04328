# SPDX-License-Identifier: Apache-2.0
"""The command `gigaslice`: its table of commands, and the frame that reads the command line and reports errors.

The top of the tree: it imports all other packages, and none imports it. The commands themselves stand with what they
command. The front of the node agent runs from here and stays small: `entry` imports nothing before it is forked.
"""
