# SPDX-License-Identifier: Apache-2.0
"""The version of the distribution, the library and both commands: its only home.

The build reads it from here without importing the package, so this module stays one assignment.
"""

VERSION = "0.2.0-dev"
