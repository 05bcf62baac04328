"""Prints what is no result."""

print('\x00\xff{]}} 17 {"half": ')
