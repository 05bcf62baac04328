# SPDX-License-Identifier: Apache-2.0
"""`make test-nvidia-smi`: the real nvidia-smi of several driver branches under the library."""
