# SPDX-License-Identifier: Apache-2.0
"""The commands that show the whole cluster, with the rights of whoever runs them: nodes, top, explain.

They read once and change nothing. Other commands that ask the API server find it in the same way (`cluster.py`).
"""
