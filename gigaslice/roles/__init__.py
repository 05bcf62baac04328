# SPDX-License-Identifier: Apache-2.0
"""The roles of the cluster: scheduler, controller with webhook and web page, dataset service.

Each has its settings, metrics, command and composition root in its own folder. None imports another, but for the
webhook, which the controller serves.
"""
