# SPDX-License-Identifier: Apache-2.0
"""Resource classes: selectors over the properties of GPUs, and which GPUs serve which class. Pure."""
