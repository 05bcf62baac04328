# SPDX-License-Identifier: Apache-2.0
"""The API server for the cluster's roles: credentials, requests over kept connections, lists with watches, leases."""
