# SPDX-License-Identifier: Apache-2.0
"""The ledgers that containers write: held open, read, and how much of them counts."""
