# SPDX-License-Identifier: Apache-2.0
"""The locked packages of the image, and the program that chooses them."""
