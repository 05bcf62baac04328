# SPDX-License-Identifier: Apache-2.0
"""Python programs that tests run under the library."""
