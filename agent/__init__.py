"""The node agent: sees the GPUs of one machine, shares them out by the slice, and tells the kubelet.

Layers, lowest first: errors and units, config, model (values), placement (decisions), discovery and
telemetry, state, kubelet, roles, cli. Each imports only what is below it; `pyproject.toml` holds the
contract.
"""
