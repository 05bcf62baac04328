# SPDX-License-Identifier: Apache-2.0
"""Making a release: the changelog's section, the version everywhere, and what people download.

`make release VERSION=` runs it (RELEASING.md). Nothing here is installed with the package, and nothing here reaches a
server: what does is printed as a command for a person or a workflow.
"""
