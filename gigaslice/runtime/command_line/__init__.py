# SPDX-License-Identifier: Apache-2.0
"""What the commands `gigaslice` and `vcuda` have in common: what a command is, exit codes, manual page, completion.

Commands stand with the code that they belong to: those of a role in its folder. A frame (`gigaslice_cli`, `vcuda/cli`)
has a table of their names and modules, parses the command line, runs one of them and reports its errors.
"""
