# SPDX-License-Identifier: Apache-2.0
"""Prints what is no result."""

print('\x00\xff{]}} 17 {"half": ')
