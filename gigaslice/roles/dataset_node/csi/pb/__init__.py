# SPDX-License-Identifier: Apache-2.0
"""Messages and services of the CSI, generated from proto/ by `make proto`; do not edit the other files."""
