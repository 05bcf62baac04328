"""The process that the kubelet is connected to: it keeps sockets and streams alive while the agent is away.

A stream lives in the process that ends its HTTP/2, and the kubelet takes all devices for unhealthy the moment it ends:
pods that are bound then fail. So the front does nothing that can fail: it imports no grpc, no protobuf and no NVML,
keeps nothing on disk, and passes calls on as bytes. docs/adr/0052 says why it speaks HTTP/2 itself.
"""
