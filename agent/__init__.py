# SPDX-License-Identifier: Apache-2.0
"""The node agent: finds the GPUs of one machine, shares them out by the slice, and serves the kubelet.

Layers, highest first: commands, roles (composition), control, deviceplugin, limits, allocation, providers,
front, health and accounting, persistence, ledgers and kubelet, apiserver, and lowest inventory, telemetry and config.
Each imports only what is below it, and of `gigaslice` and `vcuda` what it needs. `pyproject.toml` holds the contract
("agent is layered"), docs/architecture.md says what lives where.
"""
