# SPDX-License-Identifier: Apache-2.0
"""`make demo-cluster`: three nodes of different GPUs, the cluster's parts, and pods that come and go.

The agents, the scheduler and the controller are the programs themselves, each in a process of its own. Kubelets, driver
and the dataset service's mounts are stand-ins of the tests; the control plane is one too, or a real one.

control_plane: what the demo needs of a control plane · stand_ins, real: the two there are · objects: the API server's
objects, followed and changed over HTTP · processes: scheduler and controller · nodes: one node, with its agent, its
kubelet and its dataset service · pods: a pod's way from its creation to its end · stage: all of it put up and taken
down · story: what happens, in order · pictures: the documentation's pictures · waiting: for what happens by itself ·
__main__: the command.
"""
