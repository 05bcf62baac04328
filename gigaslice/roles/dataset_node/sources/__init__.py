# SPDX-License-Identifier: Apache-2.0
"""Where datasets come from: every kind of storage behind `protocol.DataSource`, opened by `opening.open_source`.

Nothing is imported here: who reads a directory (`posix`) loads no client of object stores.
"""
