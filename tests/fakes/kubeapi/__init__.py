# SPDX-License-Identifier: Apache-2.0
"""An API server stand-in: objects of the kinds that the project reads and writes, and the bad days of a real server.

    with ApiServer("node-a") as api:  # in a thread of its own; `async with`: in the running event loop
        api.put("pods", pod_document("a", {"gigaslice.io/vgpu-memory": 8}))
        ...an agent with api.kubeconfig(directory), a KubeClient with api.access...
        api.store.compact(); api.drop_watches(); api.hanging = True; api.denial = 403
        api.faults.append(Fault("POST", "/events", 503, count=2)); api.events(); api.writes

resources.py: which kinds, and their paths · store.py: what a server does with objects · device_rules.py,
slice_rules.py: what it refuses of claims and slices (`api.device_rules.drops_sharing = True`: as 1.35) · answers.py:
status codes · wire.py, server.py: HTTP and bad days · documents.py: pods and nodes · replay.py: another server, which
only plays recorded answers · raw.py: one that sends any bytes.

Plain HTTP on a free port of the loopback; a watch is a chunked answer with one line per event.
"""

from tests.fakes.kubeapi.documents import NODE, new_pod, node_document, pod_document, published
from tests.fakes.kubeapi.server import ApiServer, Fault

__all__ = ["NODE", "ApiServer", "Fault", "new_pod", "node_document", "pod_document", "published"]
