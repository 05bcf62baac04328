"""What really lies on the cards against what the books say: processes that the library does not see.

`cgroups` and `rules` decide and do no I/O, `processes` reads /proc, `auditor` joins them with the cluster.
"""
