# SPDX-License-Identifier: Apache-2.0
"""A simulated NVIDIA driver: libcuda.so.1 and libnvidia-ml.so.1 on a machine that a text file describes."""
