# SPDX-License-Identifier: Apache-2.0
"""What is really in use: memory that the ledgers do not declare, and processes that the library does not see."""
