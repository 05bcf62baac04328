# SPDX-License-Identifier: Apache-2.0
"""What the agent tells about itself. Nothing in here decides anything."""
