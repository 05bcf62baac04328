# SPDX-License-Identifier: Apache-2.0
"""What hardware is here: GPUs and how they are joined, from the driver or from a file.

`source` has the values and the Protocol, `nvml`, `static` and `sysfs` are the doors to the outside.
"""
