"""`make demo-cluster`: three nodes of different GPUs, the cluster's parts, and pods that come and go.

The agents, the scheduler and the controller are the programs themselves, each in a process of its own. What they talk
to are the stand-ins of the tests: API server, kube-scheduler, kubelets, driver, and the dataset service's mounts.

nodes: one node, with its agent, its kubelet and its dataset service · control: the API server's objects, admission,
and the cluster's processes · pods: a pod's way from its creation to its end · stage: all of it put up and taken down ·
story: what happens, in order · pictures: the documentation's pictures · waiting: for what happens by itself ·
__main__: the command.
"""
