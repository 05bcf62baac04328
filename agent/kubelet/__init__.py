"""The node's side of the kubelet: its device-plugin and pod-resources APIs.

The only package of the agent that imports grpc. `pb` holds the generated messages; everything else translates
between them and the agent's own values.
"""
