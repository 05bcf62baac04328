# SPDX-License-Identifier: Apache-2.0
"""The process that the kubelet is connected to: it keeps sockets and streams alive while the agent is away.

A stream lives in the process that ends its HTTP/2, and the kubelet takes all devices for unhealthy the moment it ends:
pods that are bound then fail. So the front does nothing that can fail: it imports no grpc, no protobuf and no NVML,
keeps nothing on disk, and passes calls on as bytes.

Why it speaks HTTP/2 itself, and not through a gRPC library:

* A connection goes over to the next front while it is open, so that an upgrade ends no stream. Its state (header table,
  windows, open streams) must be put into a message for that. No gRPC library gives it out, and h2 does not either.
* Memory: `import grpc` takes 31 MiB, where the front takes 15 and shares half of them with its child, the agent.
* Failures: the agent may be killed, or end for lack of memory, and takes no stream with it. What could fail like it,
  grpc's threads among others, is left to the agent. The contract "the front stays small" forbids the imports.
* Size: frames, header compression and flow control are 670 lines without I/O (`http2`, `hpack`), because one kubelet on
  the same machine needs little. They are tested against grpc's client, and by handing a connection over between any two
  bytes.
* Time: an empty call of an Allocate's size takes 0.57 ms at the median through the front and its hop, and took 0.89 ms
  or more at grpc's server (docs/benchmarks.md).

It serves both of the kubelet's APIs: `resource_endpoint` is a device plugin, `claims_endpoint` a driver of claims.
docs/adr/0052 and 0114 have the decisions and what was rejected.
"""
