# SPDX-License-Identifier: Apache-2.0
"""What Kubernetes does with claims to devices beside the kubelet: the scheduler's allocator and the claim controller.

    with ApiServer("node-a") as api, ClaimPlane(api) as plane:
        api.create("deviceclasses", class_document()); api.put("resourceslices", slice_document(device_document()))
        api.create("resourceclaimtemplates", template_document("t", request_document(memory="8Gi")))
        ...a pod that names the template: the claim is made, allocated, reserved, and the pod is bound...

pools: devices in published order · search: the first full solution · allocator: claims of pods that wait, and their
binding · controller: claims of templates, and the end of claims · plane: both, whenever something changed.

Behaviour was taken from a scheduler and a controller manager of 1.36. CEL is not evaluated: a class has a function.
"""

from tests.fakes.claims.allocator import Allocator
from tests.fakes.claims.controller import ClaimController
from tests.fakes.claims.plane import ClaimPlane

__all__ = ["Allocator", "ClaimController", "ClaimPlane"]
