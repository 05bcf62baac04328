# SPDX-License-Identifier: Apache-2.0
"""Bytes in use on the GPU, by NVML, in a process that has neither context nor library."""

from driver import Nvml

print(Nvml().used())
