"""An API server stand-in that knows pods, events and evictions, and can be as unpleasant as a real one.

    with KubeApi() as api:
        api.put(pod_document("a", {"gigaslice.io/vgpu-memory": 8}))
        ...an agent with api.kubeconfig(directory)...
        api.forget(); api.drop_watches(); api.hanging = True; api.denial = 403; api.events()

Plain HTTP on a free port of the loopback; a watch is a chunked answer with one line per event, as the real one sends
it.
"""

from tests.fakes.kubeapi.server import KubeApi, pod_document, published

__all__ = ["KubeApi", "pod_document", "published"]
